//! API keys over REST, and binding beyond loopback.

use std::net::{Ipv4Addr, SocketAddr};

use lifeboat::app::{Mode, RunningApp, StartError};
use lifeboat::config::Config;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Api, Reply};

async fn with_key(api: &Api, method: Method, path: &str, key: &str) -> Reply {
    Reply::of(api.request(method, path).bearer_auth(key)).await
}

#[tokio::test]
async fn with_the_first_key_everything_needs_one_and_the_local_token_always_works() {
    let api = Api::start().await;
    let created = api.post("/api/keys", json!({"name": "laptop", "scopes": ["admin"]})).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let key = created.body["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("lb_") && key.len() == 46, "{key}");

    let missing = api.get("/api/servers").await;
    assert_eq!((missing.status, missing.error_code()), (StatusCode::UNAUTHORIZED, "key_missing"));
    assert_eq!(missing.header("www-authenticate"), "Bearer");
    let wrong = with_key(&api, Method::GET, "/api/servers", "lb_wrong").await;
    assert_eq!((wrong.status, wrong.error_code()), (StatusCode::UNAUTHORIZED, "key_invalid"));
    assert_eq!(with_key(&api, Method::GET, "/api/servers", &key).await.status, StatusCode::OK);
    assert_eq!(with_key(&api, Method::GET, "/metrics", &key).await.status, StatusCode::OK);
    let metrics = api.get("/metrics").await;
    assert_eq!((metrics.status, metrics.error_code()), (StatusCode::UNAUTHORIZED, "key_missing"));
    for open in ["/health", "/ready", "/openapi.json"] {
        assert_ne!(api.get(open).await.status, StatusCode::UNAUTHORIZED, "{open}");
    }
    let token = std::fs::read_to_string(api.data_dir.path().join("data/admin.token")).unwrap();
    let list = with_key(&api, Method::GET, "/api/keys", &token).await;
    assert_eq!(list.body["data"][0]["name"], "laptop");
    assert!(list.body["data"][0]["last_used_at"].is_string());
    assert!(!list.body.to_string().contains(&key), "a key is shown once");
    api.stop().await;
}

#[tokio::test]
async fn of_two_changes_at_once_none_is_lost_and_a_refused_one_changes_nothing() {
    let api = Api::start().await;
    let created = api.post("/api/keys", json!({"name": "laptop", "scopes": ["admin"]})).await;
    let (key, path) = (created.body["key"].as_str().unwrap(), format!("/api/keys/{}", created.body["id"].as_str().unwrap()));
    let patch = async |body: serde_json::Value| Reply::of(api.request(Method::PATCH, &path).bearer_auth(key).json(&body)).await;
    for round in 1..=20 {
        let (one, other, third) = tokio::join!(
            patch(json!({"limits": {"requests_per_minute": round * 1000}})),
            patch(json!({"limits": {"tokens_per_minute": round * 2000}})),
            patch(json!({"limits": {"requests_per_minute": 1, "concurrent_requests": 0}})),
        );
        let statuses = [one.status, other.status, third.status];
        assert_eq!(statuses, [StatusCode::OK, StatusCode::OK, StatusCode::UNPROCESSABLE_ENTITY], "{}", third.body);
        let limits = with_key(&api, Method::GET, "/api/keys", key).await.body["data"][0]["limits"].clone();
        assert_eq!(
            (&limits["requests_per_minute"], &limits["tokens_per_minute"], &limits["concurrent_requests"]),
            (&json!(round * 1000), &json!(round * 2000), &json!(null))
        );
    }
    api.stop().await;
}

#[tokio::test]
async fn a_revoked_key_is_dead_at_once_and_keeps_the_time_of_its_last_use() {
    let api = Api::start().await;
    let admin = api.post("/api/keys", json!({"name": "admin", "scopes": ["admin"]})).await;
    let admin = admin.body["key"].as_str().unwrap();
    let other = Reply::of(api.request(Method::POST, "/api/keys").bearer_auth(admin).json(&json!({"name": "other", "scopes": ["admin"]})));
    let other = other.await.body;
    let (key, path) = (other["key"].as_str().unwrap(), format!("/api/keys/{}", other["id"].as_str().unwrap()));
    assert_eq!(with_key(&api, Method::GET, "/api/keys", key).await.status, StatusCode::OK);
    let used = with_key(&api, Method::GET, "/api/keys", admin).await.body["data"][1]["last_used_at"].clone();
    assert!(used.is_string());
    assert_eq!(with_key(&api, Method::DELETE, &path, admin).await.status, StatusCode::NO_CONTENT);
    assert_eq!(with_key(&api, Method::GET, "/api/keys", key).await.status, StatusCode::UNAUTHORIZED);
    let listed = with_key(&api, Method::GET, "/api/keys", admin).await.body["data"][1].clone();
    assert!(listed["revoked_at"].is_string());
    assert_eq!(listed["last_used_at"], used);
    api.stop().await;
}

#[tokio::test]
async fn an_id_that_is_no_text_is_refused_in_the_envelope_of_every_error() {
    let api = Api::start().await;
    for (method, path) in [
        (Method::PATCH, "/api/keys/%FF"),
        (Method::DELETE, "/api/keys/%FF"),
        (Method::GET, "/api/servers/%FF"),
        (Method::GET, "/api/jobs/%FF"),
        (Method::DELETE, "/api/jobs/%FF"),
        (Method::DELETE, "/api/engines/%FF"),
        (Method::POST, "/api/engines/%FF/activate"),
        (Method::GET, "/api/servers/%FF/logs"),
        (Method::GET, "/api/requests/%FF"),
        (Method::POST, "/api/requests/%FF/cancel"),
        (Method::GET, "/api/pools/%FF"),
    ] {
        let refused = Reply::of(api.request(method.clone(), path)).await;
        assert_eq!(
            (refused.status, refused.error_code()),
            (StatusCode::BAD_REQUEST, "invalid_request"),
            "{method} {path}: {}",
            refused.body
        );
    }
    api.stop().await;
}

#[tokio::test]
async fn the_first_key_says_what_it_changes_and_how_not_to_be_locked_out() {
    for (scopes, told) in [(json!(["inference"]), "key create NAME --scope admin"), (json!(["admin"]), "every call needs one")] {
        let api = Api::start().await;
        let first = api.post("/api/keys", json!({"name": "first", "scopes": scopes})).await;
        assert!(first.body["hint"].as_str().unwrap().contains(told), "{}", first.body);
        let token = std::fs::read_to_string(api.data_dir.path().join("data/admin.token")).unwrap();
        let second = Reply::of(api.request(Method::POST, "/api/keys").bearer_auth(token).json(&json!({"name": "second"}))).await;
        assert_eq!(second.body["hint"], json!(null), "{}", second.body);
        let limits = json!({"name": "x", "limits": {"requests_per_minute": 0}});
        let wrong = Reply::of(api.request(Method::POST, "/api/keys").bearer_auth(first.body["key"].as_str().unwrap()).json(&limits)).await;
        if scopes == json!(["admin"]) {
            assert_eq!(wrong.body["error"]["field"], "limits.requests_per_minute", "{}", wrong.body);
        } else {
            assert!(wrong.body["error"]["hint"].as_str().unwrap().contains("lifeboat key create"), "{}", wrong.body);
        }
        api.stop().await;
    }
}

#[tokio::test]
async fn an_inference_key_cannot_administer_and_a_revoked_key_can_nothing() {
    let api = Api::start().await;
    let admin =
        api.post("/api/keys", json!({"name": "admin", "scopes": ["admin", "inference"]})).await.body["key"].as_str().unwrap().to_owned();
    let create = api.request(Method::POST, "/api/keys").bearer_auth(&admin).json(&json!({"name": "app"}));
    let app = Reply::of(create).await.body;
    assert_eq!(app["scopes"], json!(["inference"]));
    let refused = with_key(&api, Method::GET, "/api/servers", app["key"].as_str().unwrap()).await;
    assert_eq!((refused.status, refused.error_code()), (StatusCode::FORBIDDEN, "key_scope"));
    let path = format!("/api/keys/{}", app["id"].as_str().unwrap());
    assert_eq!(with_key(&api, Method::DELETE, &path, &admin).await.status, StatusCode::NO_CONTENT);
    assert_eq!(with_key(&api, Method::DELETE, &path, &admin).await.status, StatusCode::NOT_FOUND);
    let dead = with_key(&api, Method::GET, "/api/servers", app["key"].as_str().unwrap()).await;
    assert_eq!((dead.status, dead.error_code()), (StatusCode::UNAUTHORIZED, "key_invalid"));
    api.stop().await;
}

#[tokio::test]
async fn a_key_without_a_name_or_a_scope_is_refused() {
    let api = Api::start().await;
    for (body, field) in [
        (json!({"name": " "}), "name"),
        (json!({"name": "x".repeat(101)}), "name"),
        (json!({"name": "x", "scopes": []}), "scopes"),
        (json!({"scopes": ["admin"]}), "name"),
    ] {
        let reply = api.post("/api/keys", body.clone()).await;
        assert_eq!((reply.status, &reply.body["error"]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(field)), "{body}");
    }
    assert_eq!(api.post("/api/keys", json!({"name": "x", "scopes": ["root"]})).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    api.stop().await;
}

#[tokio::test]
async fn listening_beyond_this_machine_needs_a_key_that_stays() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(data_dir.path().into());
    config.listen.set_port(0);
    let mut public = config.clone();
    public.listen = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);

    let refused = RunningApp::start(public.clone(), Mode::ApiOnly).await.unwrap_err();
    assert!(matches!(refused, StartError::OpenToOthers(_)), "{refused}");
    assert!(refused.hint().unwrap().contains("lifeboat key create"));

    let client = crate::support::client();
    let app = RunningApp::start(config, Mode::ApiOnly).await.unwrap();
    let key: serde_json::Value = client
        .post(format!("{}/api/keys", app.base_url()))
        .json(&json!({"name": "first", "scopes": ["admin"]}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    app.stop().await;

    let app = RunningApp::start(public, Mode::ApiOnly).await.unwrap();
    let revoke = client.delete(format!("{}/api/keys/{}", app.base_url(), key["id"].as_str().unwrap()));
    let last = Reply::of(revoke.bearer_auth(key["key"].as_str().unwrap())).await;
    assert_eq!((last.status, last.error_code()), (StatusCode::CONFLICT, "conflict"), "the last key of an open address stays");
    app.stop().await;
}
