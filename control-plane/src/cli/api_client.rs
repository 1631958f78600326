//! The CLI's one way to the control plane: calls of the REST API.
//!
//! Replies are kept as JSON, because `--json` prints them as they are and a newer server may answer more
//! than this binary knows.

use std::time::Duration;

use anyhow::Context;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use super::failure::{Failure, Kind};
use crate::host::http::encode;

/// Connecting to a server on this machine or this network.
const CONNECT: Duration = Duration::from_secs(5);

/// Entries asked for at once.
const PAGE: u32 = 1000;

/// A client of the running server.
#[derive(Debug)]
pub struct ApiClient {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

impl ApiClient {
    /// The server at this address.
    pub fn new(base: impl Into<String>, key: Option<String>) -> anyhow::Result<Self> {
        // An error means that a provider is installed already, which is all that is wanted.
        drop(rustls::crypto::ring::default_provider().install_default());
        // Our own server needs neither the system's certificates nor its proxy.
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .no_proxy()
            .tls_certs_only([])
            .build()
            .context("could not prepare an HTTP client")?;
        Ok(Self { http, base: base.into(), key })
    }

    /// `http://host:port`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The reply of a GET.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::GET, path, None).await
    }

    /// The entries of a list that comes in one page.
    pub async fn entries(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let mut page = self.get(path).await?;
        match page["data"].take() {
            Value::Array(data) => Ok(data),
            _ => Ok(Vec::new()),
        }
    }

    /// All entries of a list, whatever pages it comes in.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut entries = Vec::new();
        let mut next = format!("{path}{joint}limit={PAGE}");
        loop {
            let mut page = self.get(&next).await?;
            if let Value::Array(data) = page["data"].take() {
                entries.extend(data);
            }
            let Some(cursor) = page["next_cursor"].as_str() else { return Ok(entries) };
            next = format!("{path}{joint}limit={PAGE}&cursor={}", encode(cursor));
        }
    }

    /// The reply of a POST.
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.call(Method::POST, path, body).await
    }

    /// The reply of a PATCH.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// The reply of a DELETE.
    pub async fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::DELETE, path, None).await
    }

    /// One call whose reply is JSON (null where it has no body).
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let response = self.open(method, path, body).await?;
        let bytes = response.bytes().await.map_err(|error| self.broken(error))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::new(Kind::Failed, format!("{}{path} did not answer with JSON", self.base)).caused_by(error))
    }

    /// One call whose reply is read piece by piece. Refusals of the server are failures here already.
    pub async fn open(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response, Failure> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| self.broken(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|error| self.broken(error))?;
        Err(refusal(status, &serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    fn broken(&self, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        if error.is_connect() {
            return Failure::new(Kind::NotRunning, format!("no server answers at {}", self.base))
                .hint("start one with `lifeboat serve` or `lifeboat up`")
                .caused_by(error);
        }
        Failure::new(Kind::Failed, format!("the connection to {} broke", self.base)).caused_by(error)
    }
}

/// A refusal as the server words it, with the exit code its status stands for.
fn refusal(status: StatusCode, body: &Value) -> Failure {
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Denied,
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Kind::Conflict,
        _ if status.is_client_error() => Kind::Refused,
        _ => Kind::Failed,
    };
    let error = &body["error"];
    let message = error["message"].as_str().map_or_else(|| format!("the server answered {status}"), str::to_owned);
    // The server's log tells more than it shows, under this id.
    let message = match error["request_id"].as_str() {
        Some(id) if status.is_server_error() => format!("{message} (request id {id})"),
        _ => message,
    };
    let failure = Failure::new(kind, message);
    match error["hint"].as_str() {
        Some(hint) => failure.hint(hint),
        None if kind == Kind::Denied => failure.hint("give a key with --api-key or LIFEBOAT_API_KEY"),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_becomes_the_documented_exit_code() {
        for (status, code) in [(400, 7), (401, 6), (403, 6), (404, 4), (409, 5), (412, 5), (422, 7), (500, 1), (503, 1)] {
            assert_eq!(refusal(StatusCode::from_u16(status).unwrap(), &Value::Null).kind().code(), code, "{status}");
        }
    }

    #[test]
    fn a_failure_of_the_server_is_shown_with_the_id_its_log_has() {
        let body = json!({"error": {"message": "something went wrong inside", "request_id": "r-1"}});
        assert_eq!(refusal(StatusCode::INTERNAL_SERVER_ERROR, &body).to_string(), "something went wrong inside (request id r-1)");
        assert_eq!(refusal(StatusCode::CONFLICT, &body).to_string(), "something went wrong inside");
    }

    #[test]
    fn the_servers_own_words_and_hint_are_kept() {
        let failure = refusal(StatusCode::CONFLICT, &json!({"error": {"message": "the row is at generation 3", "hint": "read it again"}}));
        assert_eq!(failure.to_string(), "the row is at generation 3");
    }
}
