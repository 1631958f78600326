//! Keys with limits, against a real control plane with a simulated engine.

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{STEP, SseStream, TestApp, eventually};

/// Few and quick tokens.
const QUICK: [&str; 6] = ["--tokens", "8", "--decode-us-per-token", "1000", "--prefill-us-per-char", "0"];
/// A reply that takes minutes.
const SLOW: [&str; 6] = ["--tokens", "4000", "--decode-us-per-token", "50000", "--prefill-us-per-char", "0"];

/// An app whose calls carry a key that may do everything, with a row `chat`.
async fn app(flags: &[&str]) -> TestApp {
    let mut app = TestApp::start().await;
    app.create_key().await;
    app.ready_sim_row("chat", flags).await;
    app
}

/// Creates a key with these limits; gives back its id and the key itself.
async fn key(app: &TestApp, limits: Value) -> (String, String) {
    let (status, reply) = app.call(Method::POST, "/api/keys", Some(&json!({"name": "laptop", "limits": limits}))).await;
    assert_eq!(status, StatusCode::CREATED, "{reply}");
    (reply["id"].as_str().unwrap().to_owned(), reply["key"].as_str().unwrap().to_owned())
}

fn ask(app: &TestApp, key: &str, model: &str, stream: bool) -> RequestBuilder {
    let body = json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
    app.client.post(app.url("/v1/chat/completions")).bearer_auth(key).json(&body)
}

async fn chat(app: &TestApp, key: &str) -> Response {
    ask(app, key, "chat", false).send().await.unwrap()
}

fn header(reply: &Response, name: &str) -> String {
    reply.headers().get(name).unwrap_or_else(|| panic!("no {name} in {:?}", reply.headers())).to_str().unwrap().to_owned()
}

/// The seconds after which a refused request may come back: 429, with both headers, which agree.
fn come_back(refused: &Response) -> u64 {
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let [seconds, milliseconds]: [u64; 2] = ["retry-after", "retry-after-ms"].map(|name| header(refused, name).parse().unwrap());
    assert_eq!(seconds, milliseconds.div_ceil(1000), "{milliseconds} ms");
    seconds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_past_its_requests_a_minute_is_told_which_limit_and_when_to_come_back_in_either_dialect() {
    let app = app(&QUICK).await;
    let (_, key) = key(&app, json!({"requests_per_minute": 2})).await;
    let first = chat(&app, &key).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(header(&first, "x-ratelimit-limit-requests"), "2");
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), "1");
    assert!(header(&first, "x-ratelimit-reset-requests").ends_with('s'));
    assert!(first.headers().get("x-ratelimit-limit-tokens").is_none(), "tokens are not limited");
    assert_eq!(chat(&app, &key).await.status(), StatusCode::OK);

    let refused = chat(&app, &key).await;
    assert!((1..=30).contains(&come_back(&refused)), "{:?}", refused.headers());
    assert_eq!(header(&refused, "x-ratelimit-remaining-requests"), "0");
    let error = refused.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limit_exceeded"), &json!("rate_limit_error")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("`laptop`") && message.contains("2 requests a minute") && message.contains("lifeboat key edit"), "{message}");

    let body = json!({"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]});
    let refused = app.client.post(app.url("/v1/messages")).header("x-api-key", &key).json(&body).send().await.unwrap();
    assert!((1..=30).contains(&come_back(&refused)), "{:?}", refused.headers());
    let error = refused.json::<Value>().await.unwrap();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("rate_limit_error")));

    let (_, unlimited) = self::key(&app, json!({})).await;
    let other = chat(&app, &unlimited).await;
    assert_eq!(other.status(), StatusCode::OK, "another key has its own count");
    assert!(other.headers().keys().all(|name| !name.as_str().starts_with("x-ratelimit")));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_are_counted_to_the_end_of_the_reply_however_it_ends() {
    let app = app(&SLOW).await;
    let (_, key) = key(&app, json!({"concurrent_requests": 1})).await;
    for _ in 0..2 {
        let mut running = SseStream::new(ask(&app, &key, "chat", true).send().await.unwrap());
        assert!(running.next().await.unwrap().is_some());
        let refused = chat(&app, &key).await;
        assert_eq!(come_back(&refused), 1);
        let error = refused.json::<Value>().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("1 requests at once"), "{error}");
        // The client leaves half way, and the next turn finds the count at zero again.
        drop(running);
        eventually("the request is counted out", STEP, async || {
            let answer = ask(&app, &key, "no such model", false).send().await.unwrap();
            (answer.status() == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_charged_after_the_reply_and_the_next_request_waits_the_debt_off() {
    let app = app(&QUICK).await;
    let (_, key) = key(&app, json!({"tokens_per_minute": 4})).await;
    let first = chat(&app, &key).await;
    assert_eq!(first.status(), StatusCode::OK, "one request larger than the limit is served");
    assert_eq!(header(&first, "x-ratelimit-remaining-tokens"), "4");
    let used = first.json::<Value>().await.unwrap()["usage"].clone();
    let refused = eventually("the tokens are charged", STEP, async || {
        let reply = chat(&app, &key).await;
        (reply.status() == StatusCode::TOO_MANY_REQUESTS).then_some(reply)
    })
    .await;
    let cached = used["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    let spent = used["prompt_tokens"].as_u64().unwrap() - cached + used["completion_tokens"].as_u64().unwrap();
    let wait = come_back(&refused);
    assert!(wait.abs_diff((spent - 4 + 1) * 15) <= 1, "{wait} s for {spent} tokens at one in 15 s");
    assert_eq!(header(&refused, "x-ratelimit-remaining-tokens"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_before_the_engine_tells_its_tokens_is_charged_for_what_it_got() {
    let app = app(&SLOW).await;
    let (_, key) = key(&app, json!({"tokens_per_minute": 4})).await;
    let mut stream = SseStream::new(ask(&app, &key, "chat", true).send().await.unwrap());
    let mut words = 0;
    while words < 8 {
        let event = stream.next().await.unwrap().expect("the stream goes on").json();
        assert!(event["usage"].is_null() && event["timings"].is_null(), "{event}");
        words += u64::from(event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()));
    }
    drop(stream);
    let refused = eventually("what it got is charged", STEP, async || {
        let reply = ask(&app, &key, "no such model", false).send().await.unwrap();
        (reply.status() == StatusCode::TOO_MANY_REQUESTS).then_some(reply)
    })
    .await;
    // At one token in 15 s: 8 were read, and a few more may have been on their way.
    let wait = come_back(&refused);
    assert!((4 * 15..20 * 15).contains(&wait), "{wait} s");
    let message = refused.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("4 tokens a minute"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_and_uses_its_models_only() {
    let app = app(&QUICK).await;
    app.ready_sim_row("code", &QUICK).await;
    let (id, key) = key(&app, json!({"models": ["chat"]})).await;
    let listed = async |path: &str, header: (&str, &str)| {
        let reply = app.client.get(app.url(path)).bearer_auth(&key).header(header.0, header.1).send().await.unwrap();
        let status = reply.status();
        (status, reply.json::<Value>().await.unwrap())
    };
    for header in [("accept", "*/*"), ("anthropic-version", "2023-06-01")] {
        let (_, list) = listed("/v1/models", header).await;
        let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(names, ["chat"]);
        assert_eq!(listed("/v1/models/chat", header).await.0, StatusCode::OK);
        let (status, error) = listed("/v1/models/code", header).await;
        assert_eq!((status, &error["error"]["code"]), (StatusCode::FORBIDDEN, &json!("model_not_allowed")));
    }
    assert_eq!(chat(&app, &key).await.status(), StatusCode::OK);
    let refused = ask(&app, &key, "code", false).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let error = refused.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("permission_error"), &json!("model_not_allowed")));
    let unknown = ask(&app, &key, "nobody", false).send().await.unwrap().json::<Value>().await.unwrap();
    let message = unknown["error"]["message"].as_str().unwrap();
    assert!(message.contains("served here: chat") && !message.contains("code"), "{message}");

    // `null` lifts the limit, at once and for the key in use.
    let (status, edited) = app.call(Method::PATCH, &format!("/api/keys/{id}"), Some(&json!({"limits": {"models": null}}))).await;
    assert_eq!((status, &edited["limits"]["models"]), (StatusCode::OK, &json!([])));
    assert_eq!(ask(&app, &key, "code", false).send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_edited_live_by_rest_and_by_the_command_line() {
    let app = app(&QUICK).await;
    let (id, key) = key(&app, json!({"requests_per_minute": 1, "priority": "interactive"})).await;
    assert_eq!(chat(&app, &key).await.status(), StatusCode::OK);
    assert_eq!(chat(&app, &key).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let path = format!("/api/keys/{id}");
    for (change, field) in [
        (json!({"limits": {"requests_per_minute": 0}}), "limits.requests_per_minute"),
        (json!({"limits": {"speed": 1}}), "limits.speed"),
        (json!({"name": " "}), "name"),
        (json!({"scopes": ["admin"]}), "scopes"),
    ] {
        let (status, reply) = app.call(Method::PATCH, &path, Some(&change)).await;
        assert_eq!((status, &reply["error"]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(field)), "{change}: {reply}");
    }
    let (status, _) = app.call(Method::PATCH, &path.replace(&id, "none"), Some(&json!({"name": "x"}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    let lifeboat = |arguments: &[&str]| {
        let output = app.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let edit =
        ["key", "edit", "laptop", "--name", "desk", "--requests-per-minute", "none", "--concurrent-requests", "3", "--model", "chat"];
    assert_eq!(lifeboat(&edit), format!("desk {id} changed\n"));
    let list = lifeboat(&["key", "list"]);
    assert!(list.contains("3 at once; priority interactive; only chat"), "{list}");
    for _ in 0..3 {
        assert_eq!(chat(&app, &key).await.status(), StatusCode::OK, "the limit is lifted for the key in use");
    }
    let created = lifeboat(&["--json", "key", "create", "ci", "--tokens-per-minute", "1000", "--priority", "bulk"]);
    let created: Value = serde_json::from_str(&created).unwrap();
    assert_eq!((&created["limits"]["tokens_per_minute"], &created["limits"]["priority"]), (&json!(1000), &json!("bulk")));
}
