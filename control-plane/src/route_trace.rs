//! Why a request went where it went: made by the router, shown in a header of the reply, kept in the request log.
//!
//! Plain data, so that the router, the log and the API speak of the same thing. Never anything of a prompt: a session is
//! named by the begin of its hash, a reason by a code of ours.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::RowId;

/// Where a request belongs in its client's trace: the W3C header `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: u128,
    /// The client's span.
    pub span: u64,
    /// Whether it is to be kept.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header; `None` = it is not of that form.
    pub fn read(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let sizes = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
        // Later versions may add parts, the first one has none.
        let whole = version != "ff" && (version != "00" || parts.next().is_none());
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !(sizes && whole && [version, trace, span, flags].into_iter().all(hex)) {
            return None;
        }
        let read = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (read.trace != 0 && read.span != 0).then_some(read)
    }
}

/// What the choice aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouteMode {
    /// The shortest time to the first token of this request.
    #[default]
    Ttft,
    /// The most work done by the pool.
    Throughput,
    /// The row the session is on.
    Sticky,
}

/// One decision of the router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouteTrace {
    /// Row that was chosen; after a resume, the last one.
    #[schema(value_type = String)]
    pub row: RowId,
    /// Slot that was chosen on it, where the router steers slots.
    pub slot: Option<u32>,
    /// Code of what decided.
    #[schema(value_type = String)]
    pub reason: Cow<'static, str>,
    /// Prompt tokens expected in the engine's cache.
    pub predicted_cached_tokens: u64,
    /// Wait for a slot that was expected at the arrival, milliseconds.
    pub predicted_wait_ms: u64,
    /// How often the reply was carried on by another row after its first byte.
    pub resumed: u32,
    /// Whether it failed and was not tried again, because too many requests of its pool were already.
    #[serde(default)]
    pub retry_refused: bool,
    /// What the choice aimed at.
    pub mode: RouteMode,
    /// First 8 hex digits of the session's hash, where the request belongs to one.
    pub session: Option<String>,
}

impl RouteTrace {
    /// The value of `x-lifeboat-route`. `cached` is what the engine says it had, known before the head of a reply only
    /// where that is not streamed.
    pub fn header(&self, cached: Option<u64>, queue_wait: Option<Duration>, retries: u32) -> String {
        let mut text = String::with_capacity(128);
        // Writing to a string cannot fail.
        let _ = write!(text, "row={}", self.row);
        if let Some(slot) = self.slot {
            let _ = write!(text, "; slot={slot}");
        }
        let _ = write!(text, "; reason={}; predicted={}", self.reason, self.predicted_cached_tokens);
        if let Some(cached) = cached {
            let _ = write!(text, "; cached={cached}");
        }
        let queue_ms = queue_wait.unwrap_or_default().as_millis();
        let _ = write!(text, "; queue_ms={queue_ms}; retries={retries}");
        if self.resumed > 0 {
            let _ = write!(text, "; resumed={}", self.resumed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_trace_is_read_and_nonsense_is_not() {
        let sane = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = TraceParent::read(sane).unwrap();
        assert_eq!((read.trace, read.span, read.sampled), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331, true));
        assert!(!TraceParent::read(&sane.replace("-01", "-00")).unwrap().sampled);
        assert!(TraceParent::read(&format!("cc{}-later", &sane[2..])).is_some());
        for wrong in [
            "",
            "00",
            &sane[..54],
            &format!("{sane}-more"),
            &sane.replace("00-0a", "ff-0a"),
            &sane.replace("b7ad", "+7ad"),
            &format!("00-{:032}-b7ad6b7169203331-01", 0),
        ] {
            assert_eq!(TraceParent::read(wrong), None, "{wrong}");
        }
    }

    fn trace() -> RouteTrace {
        RouteTrace {
            row: "0193ac00-0000-7000-8000-000000000001".parse().unwrap(),
            slot: Some(3),
            reason: "session".into(),
            predicted_cached_tokens: 812,
            predicted_wait_ms: 40,
            resumed: 0,
            retry_refused: false,
            mode: RouteMode::Ttft,
            session: Some("89abcdef".into()),
        }
    }

    #[test]
    fn the_header_says_what_is_known_and_leaves_out_what_is_not() {
        let row = "row=0193ac00-0000-7000-8000-000000000001";
        let waited = Some(Duration::from_micros(12_900));
        for (slot, resumed, cached, expected) in [
            (Some(3), 0, Some(800), "; slot=3; reason=session; predicted=812; cached=800; queue_ms=12; retries=1"),
            (None, 0, None, "; reason=session; predicted=812; queue_ms=12; retries=1"),
            (None, 2, None, "; reason=session; predicted=812; queue_ms=12; retries=1; resumed=2"),
        ] {
            let text = RouteTrace { slot, resumed, ..trace() }.header(cached, waited, 1);
            assert_eq!(text, format!("{row}{expected}"));
            assert!(http::HeaderValue::try_from(text).is_ok());
        }
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let text = serde_json::to_string(&trace()).unwrap();
        assert!(text.contains(r#""mode":"ttft""#), "{text}");
        assert_eq!(serde_json::from_str::<RouteTrace>(&text).unwrap(), trace());
    }
}
