//! What is waiting to be written: lines of the log as one JSON document, and sums by day, key and model.

use std::collections::HashMap;
use std::fmt::Write as _;

use uuid::Uuid;

use super::UsageEvent;

/// Milliseconds of a day.
const DAY: i64 = 24 * 3600 * 1000;
/// Sums that may wait for a disk that takes nothing. Days times keys times models: a bound against a disk that stays full.
const SUMS: usize = 65_536;

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
    lines: String,
    count: usize,
    sums: HashMap<Whose, Sum>,
}

impl Batch {
    /// Takes one event; false = there is no room for its sum.
    pub(super) fn push(&mut self, event: &UsageEvent) -> bool {
        let Ok(line) = serde_json::to_string(event) else { return false };
        self.lines.push(if self.count == 0 { '[' } else { ',' });
        self.lines.push_str(&line);
        self.count += 1;
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
        self.count
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.sums.is_empty()
    }

    /// Both as JSON arrays, as the store takes them.
    pub(super) fn documents(&self) -> (String, String) {
        let lines = if self.count == 0 { "[]".to_owned() } else { format!("{}]", self.lines) };
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
        (lines, sums)
    }

    /// All of it is written. The room is kept for the next ones, unless it has become large.
    pub(super) fn written(&mut self) {
        self.drop_lines();
        self.sums.clear();
    }

    /// Gives up the lines, keeps the sums; how many lines that were.
    pub(super) fn drop_lines(&mut self) -> usize {
        self.lines.clear();
        self.lines.shrink_to(256 << 10);
        std::mem::take(&mut self.count)
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
        let (lines, sums) = batch.documents();
        assert_eq!(serde_json::from_str::<Vec<UsageEvent>>(&lines).unwrap().len(), 3);
        let mut sums: Vec<serde_json::Value> = serde_json::from_str(&sums).unwrap();
        sums.sort_by_key(|sum| sum[1].to_string());
        assert_eq!(
            serde_json::Value::from(sums),
            serde_json::json!([["2025-12-01", key.to_string(), "a\"b", 1, 0, 7, 5, 10], ["2025-12-01", "none", "chat", 2, 1, 14, 10, 20]])
        );
        assert_eq!(batch.drop_lines(), 3);
        assert_eq!(batch.documents().0, "[]");
        assert!(!batch.is_empty());
        batch.written();
        assert!(batch.is_empty());
        assert_eq!(batch.documents().1, "[]");
    }
}
