//! Keys, names, bodies and paths that are turned away, in the client's own dialect.

use lifeboat::config::GatewayConfig;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::soon;
use super::{Engine, Step, World, chat};

#[tokio::test]
async fn a_wrong_or_missing_key_is_refused_in_both_dialects_before_the_body_is_read() {
    let world = World::with(GatewayConfig::default(), false).await;
    for key in [None, Some("lb_wrong")] {
        for (path, kind) in [("/v1/chat/completions", "authentication_error"), ("/v1/messages", "authentication_error")] {
            let mut request = world.post(path).body("{");
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            let reply = soon(request.send()).await.unwrap();
            assert_eq!(reply.status(), 401);
            let error = reply.json::<Value>().await.unwrap();
            assert_eq!((&error["error"]["type"], &error["error"]["code"]), (&json!(kind), &json!("invalid_api_key")));
            assert_eq!(error["type"] == "error", path == "/v1/messages");
        }
    }
    let reply = soon(world.client.get(format!("{}/v1/models", world.base)).send()).await.unwrap();
    assert_eq!(reply.status(), 401);
    world.stop().await;
}

#[tokio::test]
async fn an_unknown_model_names_those_there_are() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    let (status, error) = world.call("/v1/chat/completions", &chat("nope", false)).await;
    assert_eq!((status, &error["error"]["code"], &error["error"]["param"]), (404, &json!("model_not_found"), &json!("model")));
    world.serve("one", &engine, 1);
    world.serve("two", &engine, 1);
    let (status, error) = world.call("/v1/messages", &chat("nope", true)).await;
    assert_eq!((status, &error["error"]["type"]), (404, &json!("not_found_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("one, two"), "{error}");
    // A name a caller made up is no label.
    assert_eq!(world.finished(2).await.model, None);
    assert!(!world.metrics.encode().unwrap().contains("nope"));
    // Which of two models is meant cannot be guessed.
    assert_eq!(world.call("/tokenize", &json!({ "content": "x" })).await.0, 400);
    world.stop().await;
}

#[tokio::test]
async fn a_body_that_is_encoded_or_a_form_is_told_as_that() {
    let world = World::start().await;
    let reply = soon(world.post("/v1/chat/completions").header("content-encoding", "gzip").body(vec![31_u8, 139]).send()).await.unwrap();
    assert_eq!(reply.status(), 415);
    assert!(soon(reply.text()).await.unwrap().contains("gzip"));
    let form = world.post("/v1/chat/completions").header("content-type", "multipart/form-data; boundary=x").body("--x--");
    let reply = soon(form.send()).await.unwrap();
    assert_eq!(reply.status(), 400);
    assert!(soon(reply.text()).await.unwrap().contains("form"));
    world.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused() {
    let world = World::start().await;
    let table = [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ("", "invalid_json"),
        ("{}", "invalid_request"),
        (r#"{"model":1}"#, "invalid_request"),
        (r#"{"model":"a","model":"b"}"#, "invalid_request"),
    ];
    for (body, code) in table {
        let reply = soon(world.post("/v1/chat/completions").body(body).send()).await.unwrap();
        assert_eq!(reply.status(), 400, "{body}");
        assert!(reply.headers().contains_key("x-request-id"));
        assert_eq!(reply.json::<Value>().await.unwrap()["error"]["code"], code, "{body}");
    }
    let reply = soon(world.post("/v1/audio/transcriptions").body("x").send()).await.unwrap();
    assert_eq!(reply.status(), 400);
    world.stop().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_answer_with_the_dialects_object() {
    let world = World::start().await;
    let table = [
        (Method::GET, "/v1/nothing", 404, "not_found"),
        (Method::POST, "/v1/messages/batches", 404, "not_found"),
        (Method::GET, "/v1/chat/completions", 405, "method_not_allowed"),
        (Method::DELETE, "/v1/models/x", 405, "method_not_allowed"),
        (Method::GET, "/v1/models/%FF", 404, "model_not_found"),
    ];
    for (method, path, status, code) in table {
        let reply = soon(world.client.request(method, format!("{}{path}", world.base)).send()).await.unwrap();
        assert_eq!(reply.status(), status, "{path}");
        let error = reply.json::<Value>().await.unwrap();
        assert_eq!(error["error"]["code"], code, "{path}");
        assert_eq!(error["type"] == "error", path.starts_with("/v1/messages"), "{path}");
    }
    world.stop().await;
}

#[tokio::test]
async fn models_are_listed_in_both_dialects() {
    let engine = Engine::start(|_| Step::json(200, "{}")).await;
    let world = World::start().await;
    let mut view = world.serve("b", &engine, 1);
    view.aliases = vec!["a".into()];
    world.registry.publish(view);
    let get = |path: &str| world.client.get(format!("{}{path}", world.base));
    let openai: Value = soon(get("/v1/models").send()).await.unwrap().json().await.unwrap();
    assert_eq!((&openai["object"], openai["data"].as_array().unwrap().len()), (&json!("list"), 2));
    assert_eq!((&openai["data"][0]["id"], &openai["data"][0]["object"]), (&json!("a"), &json!("model")));
    assert!(openai["data"][0]["created"].as_i64().unwrap() > 1_600_000_000);
    let anthropic: Value = soon(get("/v1/models").header("anthropic-version", "2023-06-01").send()).await.unwrap().json().await.unwrap();
    assert_eq!((&anthropic["has_more"], &anthropic["first_id"], &anthropic["last_id"]), (&json!(false), &json!("a"), &json!("b")));
    assert_eq!((&anthropic["data"][1]["type"], &anthropic["data"][1]["id"]), (&json!("model"), &json!("b")));
    let one: Value = soon(get("/v1/models/b").header("anthropic-version", "2023-06-01").send()).await.unwrap().json().await.unwrap();
    assert_eq!((&one["type"], &one["display_name"]), (&json!("model"), &json!("b")));
    world.stop().await;
}
