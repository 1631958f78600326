//! What is waiting to be written: lines of the log in segments, and sums by day, key and model.

use std::collections::HashMap;
use std::fmt::Write as _;

use uuid::Uuid;

use super::UsageEvent;
use crate::store::requests::Segment;

/// Milliseconds of a day.
const DAY: i64 = 24 * 3600 * 1000;
/// Sums that may wait for a disk that takes nothing. Days times keys times models: a bound against a disk that stays full.
const SUMS: usize = 65_536;
/// Lines of a full segment, about 150 KB: what a reader holds at once is a few of them.
const SEGMENT: u32 = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Whose {
    /// Days since 1970-01-01.
    day: i64,
    key_id: Option<Uuid>,
    model: Option<String>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    requests: u64,
    errors: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
}

/// Events that are not written yet.
#[derive(Debug, Default)]
pub(super) struct Batch {
    segments: Vec<Segment>,
    lines: usize,
    sums: HashMap<Whose, Sum>,
}

impl Batch {
    /// Takes one event; false = there is no room for its sum.
    pub(super) fn push(&mut self, event: &UsageEvent) -> bool {
        let Ok(line) = serde_json::to_string(event) else { return false };
        if self.segments.last().is_none_or(|last| last.lines >= SEGMENT) {
            self.segments.push(Segment { oldest_at: event.at, newest_at: event.at, ..Segment::default() });
        }
        if let Some(last) = self.segments.last_mut() {
            last.lines += 1;
            last.oldest_at = last.oldest_at.min(event.at);
            last.newest_at = last.newest_at.max(event.at);
            last.events.push_str(&line);
            last.events.push('\n');
        }
        self.lines += 1;
        let whose = Whose { day: event.at.div_euclid(DAY), key_id: event.key_id, model: event.model.clone() };
        if self.sums.len() >= SUMS && !self.sums.contains_key(&whose) {
            return false;
        }
        let sum = self.sums.entry(whose).or_default();
        sum.requests += 1;
        sum.errors += u64::from(event.is_error());
        sum.prompt_tokens += event.prompt_tokens;
        sum.cached_tokens += event.cached_tokens;
        sum.completion_tokens += event.completion_tokens;
        true
    }

    /// Lines that wait.
    pub(super) const fn lines(&self) -> usize {
        self.lines
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lines == 0 && self.sums.is_empty()
    }

    /// Segments, and sums as a JSON array, as the store takes them.
    pub(super) fn documents(&self) -> (&[Segment], String) {
        let mut sums = String::from("[");
        for (whose, sum) in &self.sums {
            if sums.len() > 1 {
                sums.push(',');
            }
            let day = day(whose.day);
            let key = whose.key_id.map_or_else(|| "none".to_owned(), |id| id.to_string());
            let model = serde_json::Value::from(whose.model.clone().unwrap_or_default());
            let Sum { requests, errors, prompt_tokens, cached_tokens, completion_tokens } = sum;
            // Writing to a string cannot fail.
            let _ = write!(sums, r#"["{day}","{key}",{model},{requests},{errors},{prompt_tokens},{cached_tokens},{completion_tokens}]"#);
        }
        sums.push(']');
        (&self.segments, sums)
    }

    /// All of it is written.
    pub(super) fn written(&mut self) {
        self.drop_lines();
        self.sums.clear();
    }

    /// Gives up the lines, keeps the sums; how many lines that were.
    pub(super) fn drop_lines(&mut self) -> usize {
        self.segments = Vec::new();
        std::mem::take(&mut self.lines)
    }
}

/// `YYYY-MM-DD` of a day since 1970-01-01.
pub(super) fn day(number: i64) -> String {
    let start = jiff::Timestamp::from_millisecond(number.saturating_mul(DAY)).unwrap_or_default();
    start.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::testing::event;

    #[test]
    fn a_day_begins_at_midnight_utc() {
        for (at, expected) in [(1_764_547_200_000, "2025-12-01"), (1_764_547_199_999, "2025-11-30"), (0, "1970-01-01")] {
            assert_eq!(day(i64::div_euclid(at, DAY)), expected);
        }
    }

    #[test]
    fn sums_are_by_day_key_and_model_and_outlive_lines_that_were_given_up() {
        let mut batch = Batch::default();
        let key = Uuid::from_u128(7);
        for event in [event(200), event(429), UsageEvent { key_id: Some(key), model: Some("a\"b".into()), ..event(499) }] {
            assert!(batch.push(&event));
        }
        let (segments, sums) = batch.documents();
        assert_eq!((segments.len(), segments[0].lines, segments[0].events.lines().count()), (1, 3, 3));
        let mut sums: Vec<serde_json::Value> = serde_json::from_str(&sums).unwrap();
        sums.sort_by_key(|sum| sum[1].to_string());
        assert_eq!(
            serde_json::Value::from(sums),
            serde_json::json!([["2025-12-01", key.to_string(), "a\"b", 1, 0, 7, 5, 10], ["2025-12-01", "none", "chat", 2, 1, 14, 10, 20]])
        );
        assert_eq!(batch.drop_lines(), 3);
        assert!(batch.documents().0.is_empty());
        assert!(!batch.is_empty());
        batch.written();
        assert!(batch.is_empty());
        assert_eq!(batch.documents().1, "[]");
    }

    #[test]
    fn segments_are_cut_at_their_size_and_know_their_times() {
        let mut batch = Batch::default();
        for number in 0..600 {
            batch.push(&UsageEvent { at: 1000 - number, ..event(200) });
        }
        let (segments, _) = batch.documents();
        assert_eq!(segments.iter().map(|segment| segment.lines).collect::<Vec<_>>(), [256, 256, 88]);
        assert_eq!((segments[1].oldest_at, segments[1].newest_at), (489, 744));
        assert_eq!(batch.lines(), 600);
    }
}
