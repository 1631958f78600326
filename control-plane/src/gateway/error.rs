//! Everything that can go wrong on the data plane, and the one place that turns it into a reply.
//!
//! Codes, statuses and shapes come from the dialect; the words are here. The same failure is a status line while nothing
//! was sent, and an event in a stream that has begun. Where an engine listens and which key it takes never shows.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use lifeboat_engines::dialect::{ApiError, Dialect, ErrorCode, PeekError};
use rand::RngExt as _;

use super::admission::Refusal;
use super::intake::IntakeError;
use super::proxy::Fault;
use crate::keys::{Denied, LimitReached};
use crate::registry::Endpoint;

/// Model names listed in one message.
const NAMES_SHOWN: usize = 20;
/// Characters of a client's own words that are repeated to it.
const ECHO_CHARS: usize = 256;
/// Shortest and longest `Retry-After` we give.
const RETRY_AFTER_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// An error on its way to a client, and when it is worth trying again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    error: ApiError,
    retry_after: Option<Duration>,
}

impl From<ApiError> for Failure {
    /// Whatever is refused for now says when to come back, whoever refused it.
    fn from(error: ApiError) -> Self {
        let for_now = matches!(error.status, 429 | 503);
        let failure = Self { error, retry_after: None };
        if for_now { failure.after(Duration::ZERO) } else { failure }
    }
}

impl From<PeekError> for Failure {
    fn from(error: PeekError) -> Self {
        ApiError::from(error).into()
    }
}

impl Failure {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ApiError::new(code, message).into()
    }

    fn with_status(mut self, status: StatusCode) -> Self {
        self.error.status = status.as_u16();
        self
    }

    /// Spread by a fifth, so that those turned away together do not come back together.
    fn after(mut self, wait: Duration) -> Self {
        let spread = rand::rng().random_range(0.8..1.2);
        self.retry_after = Some(wait.clamp(RETRY_AFTER_RANGE.0, RETRY_AFTER_RANGE.1).mul_f64(spread));
        self
    }

    pub(super) fn denied(denied: Denied) -> Self {
        match denied {
            Denied::Missing => Self::new(
                ErrorCode::InvalidApiKey,
                "no API key was sent; send one as `Authorization: Bearer …` or `x-api-key` (`lifeboat key create` makes one)",
            ),
            Denied::Unknown => {
                Self::new(ErrorCode::InvalidApiKey, "the API key is not known here or was revoked (`lifeboat key list` shows all)")
            }
            Denied::Scope(_) => Self::new(ErrorCode::InsufficientScope, "the API key lacks the scope `inference`"),
        }
    }

    /// The wait is exact, and nobody else is turned away with this one: it is not spread.
    pub(super) fn limited(reached: &LimitReached) -> Self {
        let message =
            format!("{reached}, and that is used up; wait as long as `retry-after` says, or raise the limit (`lifeboat key edit`)");
        Self { retry_after: Some(reached.retry_after), ..Self::new(ErrorCode::RateLimitExceeded, message) }
    }

    pub(super) fn model_not_allowed<'a>(asked: &str, allowed: impl Iterator<Item = &'a str>) -> Self {
        let message = format!("the API key may not use the model `{}` (`lifeboat key edit` changes that); {}", echo(asked), list(allowed));
        ApiError::new(ErrorCode::ModelNotAllowed, message).with_param("model").into()
    }

    /// A form came where JSON is wanted.
    pub(super) fn form() -> Self {
        Self::new(ErrorCode::InvalidJson, "the body is a form (`multipart/…`); this endpoint takes a JSON object")
    }

    pub(super) fn intake(error: &IntakeError) -> Self {
        match error {
            IntakeError::TooLarge { limit } => {
                Self::new(ErrorCode::BodyTooLarge, format!("the request body is larger than the limit of {limit} bytes"))
            }
            IntakeError::NoRoom => Self::new(ErrorCode::Overloaded, "too many bytes of request bodies are held at the moment"),
            IntakeError::Encoded(coding) => {
                let message = format!("the request body is encoded (`content-encoding: {}`); send it as it is", echo(coding));
                Self::new(ErrorCode::InvalidRequest, message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            IntakeError::Broken => Self::new(
                ErrorCode::InvalidRequest,
                "the request body broke off, or is not framed as HTTP asks (`content-length`, or chunks); send it whole",
            ),
            IntakeError::Slow(limit) => {
                Self::new(ErrorCode::InvalidRequest, format!("no byte of the request body came for {} s", limit.as_secs()))
                    .with_status(StatusCode::REQUEST_TIMEOUT)
            }
            IntakeError::Late(limit) => {
                let message = format!("the request body was not complete within {} s (`http.body_timeout`)", limit.as_secs_f64());
                Self::new(ErrorCode::InvalidRequest, message).with_status(StatusCode::REQUEST_TIMEOUT)
            }
            IntakeError::Stopping => Self::new(ErrorCode::Overloaded, "the server is stopping and no longer waits for the request body"),
        }
    }

    pub(super) fn invalid_form(why: &str) -> Self {
        Self::new(ErrorCode::InvalidRequest, format!("the request body is not a valid form: {why}"))
    }

    pub(super) fn missing_model<'a>(known: impl Iterator<Item = &'a str>) -> Self {
        ApiError::new(ErrorCode::InvalidRequest, format!("`model` is missing; {}", list(known))).with_param("model").into()
    }

    pub(super) fn unknown_model<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let message = format!("the model `{}` does not exist here; {}", echo(asked), list(known));
        ApiError::new(ErrorCode::ModelNotFound, message).with_param("model").into()
    }

    pub(super) fn unknown_path(method: &Method, path: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {method} {} here", echo(path)))
    }

    pub(super) fn wrong_method(method: &Method, path: &str) -> Self {
        Self::new(ErrorCode::MethodNotAllowed, format!("{} does not answer to {method}", echo(path)))
    }

    pub(super) fn refused<'a>(refusal: &Refusal, asked: &str, known: impl Iterator<Item = &'a str>) -> Self {
        match refusal {
            Refusal::UnknownModel => Self::unknown_model(asked, known),
            Refusal::TooHeavy { wanted, slots } => {
                let message = format!(
                    "the request wants {wanted} replies at once, no row of `{asked}` has more than {slots} slots; ask for at most {slots}, or raise the slots of a row"
                );
                ApiError::new(ErrorCode::InvalidRequest, message).with_param("n").into()
            }
            Refusal::Full { waiting, retry_after } => {
                Self::new(ErrorCode::QueueFull, format!("all slots of `{asked}` are taken and {waiting} requests wait already"))
                    .after(*retry_after)
            }
            Refusal::TooLong { waited, retry_after } => {
                Self::new(ErrorCode::QueueTimeout, format!("no slot of `{asked}` came free within {} s", waited.as_secs()))
                    .after(*retry_after)
            }
            Refusal::NotUp { waited } => {
                Self::new(ErrorCode::NoReadyRow, format!("`{asked}` did not come up within {} s", waited.as_secs()))
                    .after(RETRY_AFTER_RANGE.1)
            }
            Refusal::Hopeless(reasons) => {
                Self::new(ErrorCode::NoReadyRow, format!("`{asked}` cannot serve now ({reasons})")).after(RETRY_AFTER_RANGE.1)
            }
            Refusal::NoOther => Self::new(ErrorCode::UpstreamFailed, format!("the engine of `{asked}` failed")),
        }
    }

    pub(super) fn fault(fault: &Fault, endpoint: &Endpoint) -> Self {
        match fault {
            Fault::Refused { status, retry_after, body } => {
                let mut error = ApiError::from_engine(status.as_u16(), body);
                if error.message.contains(endpoint.authority.as_str()) {
                    "the engine failed".clone_into(&mut error.message);
                }
                let failure = Self::from(error);
                match retry_after.as_ref().and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok()) {
                    Some(seconds) => Self { retry_after: Some(Duration::from_secs(seconds.into())), ..failure },
                    None => failure,
                }
            }
            Fault::Said(error) => error.clone().into(),
            Fault::Silent(limit) => Self::new(ErrorCode::UpstreamTimeout, format!("the engine sent nothing for {} s", limit.as_secs())),
            Fault::Cancelled => Self::cancelled(),
            Fault::TooLong(limit) => Self::new(ErrorCode::UpstreamTimeout, format!("the request took longer than {} s", limit.as_secs())),
            Fault::Ended => Self::new(ErrorCode::NoReadyRow, "the engine is being stopped or restarted").after(Duration::from_secs(5)),
            Fault::Connect(_) => Self::new(ErrorCode::UpstreamFailed, "the engine cannot be reached"),
            Fault::Closed(_) => Self::new(ErrorCode::UpstreamFailed, "the engine closed the connection before it answered"),
            Fault::Garbled(what) => Self::new(
                ErrorCode::UpstreamFailed,
                format!("the engine's answer cannot be understood ({what}); does its row's `url` lead to a model server?"),
            ),
            Fault::Torn(_) => Self::new(ErrorCode::UpstreamFailed, "the engine broke off before its answer was complete"),
            Fault::Strange(status) => Self::new(
                ErrorCode::UpstreamFailed,
                format!("the engine answered with status {}, which no model server gives here; is its row's `url` right?", status.as_u16()),
            ),
        }
    }

    /// An operator ended it.
    pub(super) fn cancelled() -> Self {
        Self::new(ErrorCode::Cancelled, "the request was ended by an operator of this server")
    }

    /// The request was sent by this very control plane.
    pub(super) fn request_loop() -> Self {
        let message = "the request has come back to a Lifeboat that passed it on: the `url` of one of its rows leads to itself; give that row the address of a model server";
        Self::new(ErrorCode::RequestLoop, message)
    }

    /// A stream was wanted and the engine answered with something else.
    pub(super) fn no_stream() -> Self {
        Self::new(ErrorCode::UpstreamFailed, "the engine did not answer with a stream")
    }

    /// What is told to the client.
    pub(super) const fn error(&self) -> &ApiError {
        &self.error
    }

    /// Its stable code.
    pub(super) fn code(&self) -> &'static str {
        self.error.code.as_str()
    }

    /// The status it goes out with in this dialect. Anthropic's clients know 529, not 503, as "come back later".
    pub(super) const fn status(&self, dialect: Dialect) -> u16 {
        match (dialect, self.error.status) {
            (Dialect::Anthropic, 503) => 529,
            (_, status) => status,
        }
    }

    /// A whole reply.
    pub(super) fn response(&self, dialect: Dialect) -> Response {
        let mut response = Response::new(Body::from(self.error.body(dialect)));
        *response.status_mut() = StatusCode::from_u16(self.status(dialect)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            // Rounded up: who comes back a moment early is turned away again.
            let milliseconds = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, HeaderValue::from(milliseconds.div_ceil(1000)));
            headers.insert("retry-after-ms", HeaderValue::from(milliseconds));
        }
        response
    }

    /// An event for a stream that has begun.
    pub(super) fn event(&self, dialect: Dialect) -> Bytes {
        self.error.event(dialect).into()
    }
}

fn echo(words: &str) -> String {
    words.chars().take(ECHO_CHARS).collect()
}

fn list<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = known.take(NAMES_SHOWN + 1).collect();
    if names.is_empty() {
        return "no model is served yet (`lifeboat up` or the console creates one)".to_owned();
    }
    if names.len() > NAMES_SHOWN {
        names[NAMES_SHOWN] = "…";
    }
    format!("served here: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::testing::endpoint;

    #[test]
    fn a_busy_answer_says_when_to_come_back_in_seconds_and_milliseconds() {
        let failure = Failure::refused(&Refusal::Full { waiting: 9, retry_after: Duration::from_secs(10) }, "m", std::iter::empty());
        let response = failure.response(Dialect::OpenAi);
        let header = |name: &str| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(response.status(), 429);
        assert!((8000..=12000).contains(&header("retry-after-ms")));
        assert_eq!(header("retry-after"), header("retry-after-ms").div_ceil(1000));
    }

    #[test]
    fn all_that_is_refused_for_now_says_when_to_come_back_and_what_is_not_does_not() {
        let second = Duration::from_secs(1);
        let refused = |status: u16, retry_after: Option<&'static str>| Fault::Refused {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: retry_after.map(HeaderValue::from_static),
            body: Bytes::new(),
        };
        let intakes = [
            IntakeError::TooLarge { limit: 1 },
            IntakeError::NoRoom,
            IntakeError::Broken,
            IntakeError::Slow(second),
            IntakeError::Late(second),
            IntakeError::Stopping,
        ];
        let refusals = [
            Refusal::UnknownModel,
            Refusal::TooHeavy { wanted: 2, slots: 1 },
            Refusal::Full { waiting: 1, retry_after: Duration::ZERO },
            Refusal::TooLong { waited: second, retry_after: Duration::ZERO },
            Refusal::NotUp { waited: second },
            Refusal::Hopeless("x".into()),
            Refusal::NoOther,
        ];
        let faults = (400..=599).map(|status| refused(status, None)).chain([
            refused(429, Some("Wed, 21 Oct 2026 07:28:00 GMT")),
            Fault::Said(ApiError::from_engine(503, b"")),
            Fault::Ended,
            Fault::Silent(second),
            Fault::Cancelled,
        ]);
        let engine = endpoint(40123, 1);
        let failures =
            intakes.iter().map(Failure::intake).chain(refusals.iter().map(|refusal| Failure::refused(refusal, "m", std::iter::empty())));
        let failures = failures.chain(faults.map(|fault| Failure::fault(&fault, &engine)));
        let mut refused_for_now = 0;
        for failure in failures {
            for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Ollama] {
                let response = failure.response(dialect);
                let number = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
                let for_now = matches!(response.status().as_u16(), 429 | 503 | 529);
                let (seconds, milliseconds) = (number("retry-after"), number("retry-after-ms"));
                assert_eq!((seconds.is_some(), milliseconds.is_some()), (for_now, for_now), "{failure:?}");
                assert_eq!(seconds, milliseconds.map(|wait| wait.div_ceil(1000)), "{failure:?}");
                assert!(milliseconds.is_none_or(|wait| (800..=72_000).contains(&wait)), "{failure:?}");
                refused_for_now += u32::from(for_now);
            }
        }
        assert_eq!(refused_for_now, 3 * (2 + 4 + 3 + 3), "intake, admission, statuses of engines, other faults");
        let said = Failure::fault(&refused(503, Some(" 7 ")), &engine);
        assert_eq!(said.retry_after, Some(Duration::from_secs(7)), "an engine's own word is passed on");
    }

    #[test]
    fn overload_is_529_to_anthropic_clients_and_503_to_the_others() {
        let failure = Failure::refused(&Refusal::Hopeless("failed: out of memory".into()), "m", std::iter::empty());
        assert_eq!((failure.status(Dialect::Anthropic), failure.status(Dialect::OpenAi)), (529, 503));
        assert!(failure.error.message.contains("out of memory"));
    }

    #[test]
    fn where_the_engine_listens_is_never_shown() {
        let engine = endpoint(40123, 1);
        let body = Bytes::from_static(br#"{"error":{"message":"proxy to http://127.0.0.1:40123 failed"}}"#);
        let failure = Failure::fault(&Fault::Refused { status: StatusCode::BAD_REQUEST, retry_after: None, body }, &engine);
        assert_eq!(failure.error.message, "the engine failed");
        let failure = Failure::fault(&Fault::Connect("tcp connect error 127.0.0.1:40123".into()), &engine);
        assert!(!failure.error.message.contains("40123"));
    }

    #[test]
    fn only_so_many_names_are_listed() {
        let names: Vec<_> = (0..100).map(|number| format!("model-{number}")).collect();
        let message = Failure::unknown_model("x", names.iter().map(String::as_str)).error.message;
        assert!(message.contains("model-19") && !message.contains("model-20") && message.ends_with('…'), "{message}");
    }
}
