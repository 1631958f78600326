//! The REST API over a real database and a real socket. Where no engine is needed, the control plane runs in
//! this process with its API alone.

mod events;
mod keys;
mod live;
mod openapi;
mod security;
mod servers;

use lifeboat::app::{Mode, RunningApp};
use lifeboat::config::Config;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::client;

/// The API of a fresh data directory.
struct Api {
    app: Option<RunningApp>,
    base: String,
    data_dir: TempDir,
    client: reqwest::Client,
}

/// One reply.
struct Reply {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl Api {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_as(Mode::ApiOnly, change).await
    }

    async fn start_as(mode: Mode, change: impl FnOnce(&mut Config)) -> Self {
        let data_dir = TempDir::with_prefix("lifeboat-api-").unwrap();
        let mut config = Config::new(data_dir.path().join("data"));
        config.listen.set_port(0);
        change(&mut config);
        let app = RunningApp::start(config, mode).await.unwrap();
        Self { base: app.base_url(), app: Some(app), data_dir, client: client() }
    }

    async fn stop(mut self) {
        self.app.take().unwrap().stop().await;
        let left: Vec<_> = std::fs::read_dir(self.data_dir.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name == "admin.token" || name == "control-plane.json"), "{left:?}");
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let request = self.request(method, path);
        Reply::of(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(Method::POST, path, Some(body)).await
    }
}

impl Reply {
    async fn of(request: reqwest::RequestBuilder) -> Self {
        let reply = request.send().await.unwrap();
        let (status, headers) = (reply.status(), reply.headers().clone());
        let bytes = reply.bytes().await.unwrap();
        Self { status, headers, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The error's code; panics if the reply is not the envelope with everything it must have.
    fn error_code(&self) -> &str {
        let error = &self.body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.body);
        assert!(error["request_id"].as_str().is_some_and(|id| id.len() == 36), "{}", self.body);
        for field in ["field", "hint"] {
            assert!(error[field].is_null() || error[field].is_string(), "{}", self.body);
        }
        error["code"].as_str().unwrap()
    }
}
