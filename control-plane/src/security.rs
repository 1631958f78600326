//! Who may talk to this server at all, before any route is looked at: Host and Origin checks, CORS, and
//! which addresses may be listened on.
//!
//! A web page the user happens to visit can make the browser send requests to loopback (and, by rebinding a
//! host name of its own to 127.0.0.1, even read the answers). So every request, whatever its route, must
//! name us by a host name we know, and a request a browser marks with an `Origin` must come from our own
//! pages or from an origin the operator allowed. Programs send no `Origin` and are not concerned.
//! Keys are checked later, by the routes ([`crate::keys`]).

mod guard;

use std::net::{IpAddr, SocketAddr};

use http::header::HeaderName;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer, ExposeHeaders};

use crate::config::SecurityConfig;

pub use guard::{Guard, GuardLayer};

/// Why a request is turned away before its route is looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The request names a host we do not answer for.
    #[error("this server does not answer for the host `{0}`")]
    Host(String),
    /// The request names no host.
    #[error("the request has no `Host` header")]
    NoHost,
    /// The request names more than one host, so whoever stands between may have believed in the other one.
    #[error("the request has more than one `Host` header")]
    TwoHosts,
    /// The request comes from a web page that is not ours.
    #[error("the origin `{0}` may not call this server")]
    Origin(String),
}

impl Refused {
    /// The status of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::NoHost | Self::TwoHosts => StatusCode::BAD_REQUEST,
            Self::Origin(_) => StatusCode::FORBIDDEN,
        }
    }

    /// The cure.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Host(_) => "call it by its address, or start it with --allowed-host <name>",
            Self::NoHost | Self::TwoHosts => "send one",
            Self::Origin(_) => "start it with --allowed-origin <origin>",
        }
    }
}

/// A server that would listen beyond this machine while anybody could use it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} can be reached from other machines and no API key exists: anybody there could use and change this server")]
pub struct OpenToOthers(pub SocketAddr);

impl OpenToOthers {
    /// The cure.
    pub const HINT: &'static str = "create a key first: lifeboat key create <name> --scope inference --scope admin";
}

/// Refuses to listen beyond loopback while no key exists.
pub fn check_listen(listen: SocketAddr, keys_exist: bool) -> Result<(), OpenToOthers> {
    if keys_exist || is_loopback(listen.ip()) { Ok(()) } else { Err(OpenToOthers(listen)) }
}

/// Whether only this machine can reach the address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The rules of one run.
#[derive(Debug, Clone)]
pub struct Rules {
    listen: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Rules {
    /// From the settings and the address listened on.
    pub fn new(config: &SecurityConfig, listen: SocketAddr) -> Self {
        let lower = |list: &[String]| list.iter().map(|entry| entry.trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { listen: listen.ip().to_canonical(), hosts: lower(&config.allowed_hosts), origins: lower(&config.allowed_origins) }
    }

    /// Checks a request's head.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        if headers.get_all(http::header::HOST).iter().nth(1).is_some() {
            return Err(Refused::TwoHosts);
        }
        let host = uri.authority().map_or_else(|| text(headers.get(http::header::HOST)), Authority::as_str);
        if host.is_empty() {
            return Err(Refused::NoHost);
        }
        if !self.answers_for(host) {
            return Err(Refused::Host(host.to_owned()));
        }
        let Some(origin) = headers.get(http::header::ORIGIN) else { return Ok(()) };
        let origin = text(Some(origin));
        let own = origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host));
        if own || self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
            return Ok(());
        }
        Err(Refused::Origin(origin.to_owned()))
    }

    /// The port of a Host header is not looked at: rebinding changes where a name points to, not its port.
    fn answers_for(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            // An address in a Host header cannot be rebound; where we listen on all of them, any may be ours.
            return address.is_loopback() || address == self.listen || self.listen.is_unspecified() || self.lists(name);
        }
        name.eq_ignore_ascii_case("localhost") || self.lists(name) || self.lists(host)
    }

    fn lists(&self, name: &str) -> bool {
        self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// CORS for the allowed origins; `None` where there are none, because our own pages need none.
pub fn cors(config: &SecurityConfig) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> =
        config.allowed_origins.iter().filter_map(|origin| HeaderValue::from_str(origin.trim_end_matches('/')).ok()).collect();
    if origins.is_empty() {
        return None;
    }
    Some(
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods(AllowMethods::list([Method::GET, Method::POST, Method::PATCH, Method::DELETE]))
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(ExposeHeaders::list([
                HeaderName::from_static("x-request-id"),
                HeaderName::from_static("request-id"),
                http::header::RETRY_AFTER,
                HeaderName::from_static("retry-after-ms"),
                http::header::ETAG,
                http::header::LOCATION,
            ])),
    )
}

fn text(value: Option<&HeaderValue>) -> &str {
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(listen: &str, hosts: &[&str], origins: &[&str]) -> Rules {
        let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        let config = SecurityConfig { allowed_hosts: owned(hosts), allowed_origins: owned(origins), ..Default::default() };
        Rules::new(&config, listen.parse().unwrap())
    }

    fn check(rules: &Rules, host: &str, origin: Option<&str>) -> Result<(), Refused> {
        let mut headers = HeaderMap::new();
        headers.insert("host", host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().unwrap());
        }
        rules.check(&Uri::from_static("/v1/models"), &headers)
    }

    #[test]
    fn a_request_with_two_hosts_is_refused_whichever_they_are() {
        let mut headers = HeaderMap::new();
        headers.append("host", HeaderValue::from_static("127.0.0.1"));
        headers.append("host", HeaderValue::from_static("127.0.0.1"));
        let checked = rules("127.0.0.1:4180", &[], &[]).check(&Uri::from_static("/v1/models"), &headers);
        assert_eq!(checked, Err(Refused::TwoHosts));
        assert_eq!(Refused::TwoHosts.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_loopback_server_answers_for_loopback_names_and_listed_ones_only() {
        let rules = rules("127.0.0.1:4180", &["box.lan", "gate:8443"], &[]);
        for host in
            ["localhost", "LOCALHOST:4180", "127.0.0.1:4180", "127.1.2.3", "[::1]:4180", "[::ffff:127.0.0.1]", "Box.lan:80", "gate:8443"]
        {
            assert_eq!(check(&rules, host, None), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:4180", "localhost.evil.example", "10.0.0.5", "a b", "gate", "127.0.0.1.evil.example"] {
            assert_eq!(check(&rules, host, None), Err(Refused::Host(host.into())), "{host}");
        }
        assert_eq!(check(&rules, "", None), Err(Refused::NoHost));
    }

    #[test]
    fn a_server_on_all_addresses_answers_for_any_address_but_not_for_any_name() {
        let rules = rules("0.0.0.0:4180", &[], &[]);
        assert_eq!(check(&rules, "192.168.1.7:4180", None), Ok(()));
        assert_eq!(check(&rules, "[fd00::7]:4180", None), Ok(()));
        assert!(check(&rules, "rebound.example:4180", None).is_err());
    }

    #[test]
    fn a_web_page_may_call_only_if_it_is_ours_or_allowed() {
        let rules = rules("127.0.0.1:4180", &["box.lan"], &["https://chat.example/"]);
        for (host, origin) in
            [("127.0.0.1:4180", "http://127.0.0.1:4180"), ("box.lan", "https://box.lan"), ("localhost:4180", "https://chat.example")]
        {
            assert_eq!(check(&rules, host, Some(origin)), Ok(()), "{origin}");
        }
        for origin in ["http://evil.example", "null", "", "http://127.0.0.1:9", "http://chat.example", "https://chat.example.evil"] {
            assert_eq!(check(&rules, "127.0.0.1:4180", Some(origin)), Err(Refused::Origin(origin.into())), "{origin}");
        }
    }

    #[test]
    fn an_absolute_target_is_what_counts() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/v1/models");
        assert!(rules("127.0.0.1:1", &[], &[]).check(&uri, &headers).is_err());
    }

    #[test]
    fn listening_beyond_loopback_needs_a_key() {
        for (listen, keys, allowed) in [
            ("127.0.0.1:1", false, true),
            ("[::1]:1", false, true),
            ("0.0.0.0:1", false, false),
            ("[::]:1", false, false),
            ("192.168.1.7:1", false, false),
            ("0.0.0.0:1", true, true),
        ] {
            assert_eq!(check_listen(listen.parse().unwrap(), keys).is_ok(), allowed, "{listen}");
        }
    }
}
