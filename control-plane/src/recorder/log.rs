//! Reads the request log: newest first, a few segments at a time, until a page is full.
//!
//! A line is looked at as text before it is parsed, since most lines of a narrow question are not meant.

use super::UsageEvent;
use crate::store::requests::StoredSegment;
use crate::store::{Store, StoreError};

/// Segments read at once: about 1 MB where they are full.
const SEGMENTS: u32 = 8;

/// Which lines. What is `None` is not looked at.
#[derive(Debug, Clone, Default)]
pub struct RequestFilter {
    /// Public name.
    pub model: Option<String>,
    /// Id or name.
    pub key: Option<String>,
    /// Id.
    pub row: Option<String>,
    /// Lowest and highest status.
    pub status: Option<(u16, u16)>,
    /// Code.
    pub error: Option<String>,
    /// First digits of the session's hash.
    pub session: Option<String>,
    /// Shortest whole time, milliseconds.
    pub min_total_ms: Option<f64>,
    /// Arrival, Unix milliseconds: the first.
    pub from: Option<i64>,
    /// Arrival, Unix milliseconds: the first not.
    pub to: Option<i64>,
    /// The request's id.
    pub request_id: Option<String>,
    /// A part of the request's id.
    pub request_id_part: Option<String>,
    /// Only lines older than this one.
    pub before: Option<i64>,
}

impl RequestFilter {
    /// Words that a line which is meant has in it, as JSON writes them.
    fn words(&self) -> Vec<String> {
        let named = [
            ("model", &self.model),
            ("row", &self.row),
            ("error", &self.error),
            ("session", &self.session),
            ("request_id", &self.request_id),
        ];
        let exact = named.into_iter().filter_map(|(name, value)| Some(format!("\"{name}\":{}", json(value.as_deref()?))));
        let parts = [&self.key, &self.request_id_part].into_iter().flatten().map(|part| json(part).trim_matches('"').to_owned());
        exact.chain(parts).collect()
    }

    fn wants(&self, event: &UsageEvent) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|wanted| found == Some(wanted));
        let key_id = event.key_id.map(|id| id.to_string());
        let row = event.row.map(|id| id.to_string());
        is(&self.model, event.model.as_deref())
            && (is(&self.key, event.key.as_deref()) || is(&self.key, key_id.as_deref()))
            && is(&self.row, row.as_deref())
            && is(&self.error, event.error.as_deref())
            && is(&self.session, event.route.as_ref().and_then(|route| route.session.as_deref()))
            && is(&self.request_id, Some(&event.request_id))
            && self.request_id_part.as_ref().is_none_or(|part| event.request_id.contains(part))
            && self.status.is_none_or(|(low, high)| (low..=high).contains(&event.status))
            && self.min_total_ms.is_none_or(|least| event.total.as_secs_f64() * 1000.0 >= least)
            && self.from.is_none_or(|from| event.at >= from)
            && self.to.is_none_or(|to| event.at < to)
    }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Up to `limit` lines that are meant, newest first, each with its number.
pub async fn list(store: &Store, filter: &RequestFilter, limit: usize) -> Result<Vec<(i64, UsageEvent)>, StoreError> {
    let (from, to) = (filter.from.unwrap_or(i64::MIN), filter.to.unwrap_or(i64::MAX));
    let words = filter.words();
    let mut before = filter.before.unwrap_or(i64::MAX);
    let mut found = Vec::new();
    loop {
        let segments = store.list_request_segments(before, from, to, SEGMENTS).await?;
        let Some(oldest) = segments.last() else { return Ok(found) };
        let next = oldest.last_line + 1 - i64::try_from(oldest.events.lines().count()).unwrap_or(i64::MAX);
        for segment in &segments {
            read(segment, before, filter, &words, limit, &mut found)?;
            if found.len() >= limit {
                return Ok(found);
            }
        }
        before = next;
    }
}

fn read(
    segment: &StoredSegment,
    before: i64,
    filter: &RequestFilter,
    words: &[String],
    limit: usize,
    found: &mut Vec<(i64, UsageEvent)>,
) -> Result<(), StoreError> {
    for (back, line) in (0..).zip(segment.events.lines().rev()) {
        let number = segment.last_line - back;
        if number >= before || !words.iter().all(|word| line.contains(word.as_str())) {
            continue;
        }
        let event: UsageEvent = serde_json::from_str(line).map_err(|error| StoreError::line(number, error))?;
        if filter.wants(&event) {
            found.push((number, event));
            if found.len() >= limit {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::batch::Batch;
    use crate::recorder::testing::event;

    async fn log(lines: impl IntoIterator<Item = Vec<UsageEvent>>) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("lifeboat.db")).await.unwrap();
        for written_together in lines {
            let mut batch = Batch::default();
            for event in &written_together {
                assert!(batch.push(event));
            }
            let (segments, sums) = batch.documents();
            store.record_requests(segments, &sums).await.unwrap();
        }
        (dir, store)
    }

    fn numbered(number: u32) -> UsageEvent {
        UsageEvent { at: i64::from(number), request_id: format!("r{number}"), ..event(200) }
    }

    #[tokio::test]
    async fn pages_follow_each_other_over_segments_of_every_size_without_a_gap() {
        // One by one, then more than a segment, then a few: joined, cut and joined segments.
        let mut written: Vec<Vec<UsageEvent>> = (0..40).map(|number| vec![numbered(number)]).collect();
        written.push((40..700).map(numbered).collect());
        written.extend([(700..705).map(numbered).collect(), (705..710).map(numbered).collect()]);
        let (_dir, store) = log(written).await;
        for page in [1, 7, 256, 1000] {
            let (mut filter, mut seen) = (RequestFilter::default(), Vec::new());
            loop {
                let lines = list(&store, &filter, page).await.unwrap();
                let Some((last, _)) = lines.last() else { break };
                filter.before = Some(*last);
                seen.extend(lines.into_iter().map(|(_, event)| event.at));
            }
            assert_eq!(seen, (0..710).rev().collect::<Vec<_>>(), "pages of {page}");
        }
        let few = RequestFilter { from: Some(30), to: Some(50), ..RequestFilter::default() };
        assert_eq!(list(&store, &few, 100).await.unwrap().len(), 20);
        let one = RequestFilter { request_id: Some("r7".into()), ..RequestFilter::default() };
        assert_eq!(list(&store, &one, 100).await.unwrap()[0].0, 8, "lines are numbered from one");
        let part = RequestFilter { request_id_part: Some("r7".into()), ..RequestFilter::default() };
        assert_eq!(list(&store, &part, 100).await.unwrap().len(), 1 + 10 + 10);
    }

    #[tokio::test]
    async fn names_with_quotes_and_other_scripts_are_found_and_nothing_that_only_looks_like_them() {
        let named = |model: &str, id: &str| UsageEvent { model: Some(model.into()), request_id: id.into(), ..event(200) };
        let tricky = [named("a\"b/модель", "1"), named("chat", r#""model":"a\"b/модель""#), named("chat", "\"model\":\"code\"")];
        let (_dir, store) = log([tricky.to_vec()]).await;
        for (model, count) in [("a\"b/модель", 1), ("chat", 2), ("code", 0)] {
            let filter = RequestFilter { model: Some(model.into()), ..RequestFilter::default() };
            assert_eq!(list(&store, &filter, 10).await.unwrap().len(), count, "{model}");
        }
    }
}
