//! Adapter of the engine kind `external`: a server somebody else runs.
//!
//! It is probed, balanced and accounted like any other row and never started, stopped, sized or given
//! arguments. Its URL must be plain: a credential inside a URL would end up in logs and in the API's answers.

use crate::EngineAdapter;
use crate::host::HostFacts;
use crate::model::ModelFacts;
use crate::sizing::SizingError;
use crate::spec::{
    CacheType, Capabilities, EngineKind, EngineSpec, Health, LaunchInput, LaunchPlan, MemoryNeed, Resolved, SpecError, Task,
};
use crate::validate::{check_common, refuse};

/// Requests at once where the row does not say: what a llama-server serves by default.
const DEFAULT_SLOTS: u32 = 4;

/// The adapter.
#[derive(Debug, Clone, Copy)]
pub struct External;

impl EngineAdapter for External {
    fn kind(&self) -> EngineKind {
        EngineKind::External
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { needs_build: false, needs_model: false, health_path: "/health", props_path: None }
    }

    fn validate(&self, spec: &EngineSpec, _open_arguments: bool) -> Result<(), SpecError> {
        check_common(spec)?;
        match &spec.url {
            Some(url) => check_url(url),
            None => Err(refuse("url", "is missing", "give the base URL, for example http://127.0.0.1:9001")),
        }
    }

    fn resolve(&self, spec: &EngineSpec, _model: Option<&ModelFacts>, _host: &HostFacts) -> Result<Resolved, SizingError> {
        let slots = spec.slots.unwrap_or(DEFAULT_SLOTS);
        let mut arithmetic = vec![match spec.slots {
            Some(slots) => format!("slots {slots}: as the row says"),
            None => format!("slots {slots}: the default for a server somebody else runs"),
        }];
        arithmetic.push("memory 0: the server is not ours".into());
        Ok(Resolved {
            task: spec.task.unwrap_or(Task::Chat),
            context: spec.context.unwrap_or(0),
            slots,
            threads: 0,
            gpu_layers: None,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            host_cache_mib: 0,
            context_checkpoints: 0,
            pooling: None,
            memory: MemoryNeed::default(),
            arithmetic,
        })
    }

    /// An external server has no process of ours, and nobody asks how to start it: the plan is empty.
    fn launch(&self, _input: &LaunchInput<'_>) -> LaunchPlan {
        LaunchPlan { program: std::path::PathBuf::new(), args: Vec::new(), env: Vec::new() }
    }

    /// Servers differ in what their health path says, and some have none: any answer that is not a server's
    /// error means that something serves there. Whether it is the right model is found by `/v1/models`.
    fn read_health(&self, status: u16, _body: &[u8]) -> Health {
        match status {
            200..=499 => Health::Ready,
            503 => Health::Loading,
            _ => Health::Broken,
        }
    }

    fn read_load_progress(&self, _line: &str) -> Option<f32> {
        None
    }
}

/// Accepts `http(s)://host[:port][/prefix]` and nothing else.
fn check_url(url: &str) -> Result<(), SpecError> {
    let wrong = |problem: &str| Err(refuse("url", problem, "write it as http://host:port, with a path only if the server has a prefix"));
    if url.len() > 2048 || url.chars().any(|letter| letter.is_control() || letter.is_whitespace() || !letter.is_ascii()) {
        return wrong("is longer than 2048 bytes or holds a space or a letter that must be percent-encoded");
    }
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        return wrong("must begin with http:// or https://");
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(refuse("url", "holds a user name or a password", "put the key into `api_key`"));
    }
    if path.contains(['?', '#']) {
        return wrong("holds a query or a fragment");
    }
    if path.trim_end_matches('/').ends_with("/v1") {
        return Err(refuse("url", "ends with /v1", "leave /v1 out: it is added to every call"));
    }
    match split_port(authority) {
        Some((host, port)) if host_is_plain(host) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) => Ok(()),
        _ => wrong("has no usable host and port"),
    }
}

/// Host and port text; IPv6 hosts keep their brackets.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, rest) = authority.split_at(authority.find(']')? + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None if rest.is_empty() => Some((host, None)),
            None => None,
        };
    }
    Some(authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))))
}

fn host_is_plain(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::tests::row;

    #[test]
    fn urls_are_accepted_or_refused_by_table() {
        let table = [
            ("http://127.0.0.1:9001", true),
            ("http://127.0.0.1:9001/", true),
            ("https://models.example/prefix", true),
            ("http://[::1]:8080", true),
            ("http://[::1]", true),
            ("ftp://host", false),
            ("127.0.0.1:9001", false),
            ("http://", false),
            ("http://:80", false),
            ("http://host:0", false),
            ("http://host:99999", false),
            ("http://host:80x", false),
            ("http://user:pass@host", false),
            ("http://host/v1", false),
            ("http://host/v1/", false),
            ("http://host?x=1", false),
            ("http://ho st", false),
            ("http://[::1", false),
            ("http://[zz]:1", false),
            ("http://höst", false),
        ];
        for (url, good) in table {
            let mut spec = row("external");
            spec.url = Some(url.into());
            assert_eq!(External.validate(&spec, false).is_ok(), good, "{url}");
        }
    }

    #[test]
    fn a_row_without_url_is_refused() {
        let mut spec = row("external");
        spec.url = None;
        assert_eq!(External.validate(&spec, false).unwrap_err().field, "url");
    }

    #[test]
    fn a_server_that_wants_a_key_for_its_health_still_counts_as_up() {
        assert_eq!(External.read_health(401, b""), Health::Ready);
        assert_eq!(External.read_health(404, b""), Health::Ready);
        assert_eq!(External.read_health(503, b""), Health::Loading);
        assert_eq!(External.read_health(500, b""), Health::Broken);
    }
}
