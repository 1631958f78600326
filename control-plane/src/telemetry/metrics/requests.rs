//! Metrics of finished requests: by model, by row and by key.
//!
//! The series of a label are looked up once and kept, since finding them costs more than counting. The number of rows and
//! keys that get labels of their own is bounded, because both come and go while a process runs; later ones are counted
//! together as `other`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::recorder::UsageEvent;

/// The model label of requests that name no model of ours.
const NO_MODEL: &str = "";
/// The key label of callers that needed none.
const NO_KEY: &str = "none";
/// The label of all that have none of their own.
const OTHER: &str = "other";
/// Keys with a label of their own.
const KEYS: usize = 64;
/// Rows with a label of their own.
const ROWS: usize = 256;

/// Upper edges in seconds of the buckets for waits and first tokens: 5 ms to 11 minutes.
const WAIT_BUCKETS: [f64; 14] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 660.0];
/// Upper edges in seconds of the buckets for the time between two tokens: 1 ms to 5 s.
const TOKEN_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: String,
    endpoint: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RowLabels {
    model: String,
    row: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyLabels {
    key: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn waits<L: Clone + Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor(|| Histogram::new(WAIT_BUCKETS))
}

fn gaps<L: Clone + Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor(|| Histogram::new(TOKEN_BUCKETS))
}

/// Counters of tokens, as models, rows and keys have them.
#[derive(Debug, Clone)]
struct TokenFamilies<L> {
    prefill: Family<L, Counter>,
    cached: Family<L, Counter>,
    completion: Family<L, Counter>,
}

impl<L: Clone + Hash + Eq + EncodeLabelSet + Send + Sync + std::fmt::Debug + 'static> TokenFamilies<L> {
    fn register(registry: &mut Registry, prefix: &str) -> Self {
        let mut family = |name: &str, help: &str| registered(registry, &format!("{prefix}{name}"), help, Family::default());
        Self {
            prefill: family("prefill_tokens", "Prompt tokens that were computed"),
            cached: family("cached_prompt_tokens", "Prompt tokens that came from the engine's cache"),
            completion: family("completion_tokens", "Tokens generated"),
        }
    }

    fn of(&self, labels: &L) -> Tokens {
        Tokens {
            prefill: self.prefill.get_or_create_owned(labels),
            cached: self.cached.get_or_create_owned(labels),
            completion: self.completion.get_or_create_owned(labels),
        }
    }
}

#[derive(Debug)]
struct Tokens {
    prefill: Counter,
    cached: Counter,
    completion: Counter,
}

impl Tokens {
    fn add(&self, event: &UsageEvent) {
        self.prefill.inc_by(event.prefill_tokens());
        self.cached.inc_by(event.cached_tokens);
        self.completion.inc_by(event.completion_tokens);
    }
}

/// The series of one model.
#[derive(Debug)]
struct ModelSeries {
    prompt: Counter,
    tokens: Tokens,
    retries: Counter,
    retries_refused: Counter,
    resumes: Counter,
    first_token: Histogram,
    queue_wait: Histogram,
    between_tokens: Histogram,
    reasons: HashMap<String, Counter>,
}

/// The series of one row.
#[derive(Debug)]
struct RowSeries {
    requests: Counter,
    tokens: Tokens,
    retries: Counter,
    resumes: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
}

/// The series of one key.
#[derive(Debug)]
struct KeySeries {
    requests: Counter,
    errors: Counter,
    tokens: Tokens,
}

/// The counters of one model by route and status.
type ByStatus = HashMap<(Cow<'static, str>, u16), Counter>;

/// Series that were found before.
#[derive(Debug, Default)]
struct Known {
    counts: HashMap<Option<String>, ByStatus>,
    models: HashMap<String, ModelSeries>,
    rows: HashMap<uuid::Uuid, RowSeries>,
    keys: HashMap<Option<Arc<str>>, KeySeries>,
}

/// All families fed by usage events.
#[derive(Debug)]
pub(super) struct Requests {
    by_status: Family<RequestLabels, Counter>,
    prompt: Family<ModelLabels, Counter>,
    tokens: TokenFamilies<ModelLabels>,
    retries: Family<ModelLabels, Counter>,
    retries_refused: Family<ModelLabels, Counter>,
    resumes: Family<ModelLabels, Counter>,
    first_token: Histograms<ModelLabels>,
    queue_wait: Histograms<ModelLabels>,
    between_tokens: Histograms<ModelLabels>,
    reasons: Family<ReasonLabels, Counter>,
    of_row: Family<RowLabels, Counter>,
    row_tokens: TokenFamilies<RowLabels>,
    row_retries: Family<RowLabels, Counter>,
    row_resumes: Family<RowLabels, Counter>,
    row_first_token: Histograms<RowLabels>,
    row_between_tokens: Histograms<RowLabels>,
    of_key: Family<KeyLabels, Counter>,
    key_errors: Family<KeyLabels, Counter>,
    key_tokens: TokenFamilies<KeyLabels>,
    known: Mutex<Known>,
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Requests {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut family = |name: &str, help: &str| registered(registry, name, help, Family::default());
        let prompt = family("prompt_tokens", "Prompt tokens, cached ones included");
        let retries = family("retries", "Attempts repeated because an engine failed before its first byte");
        let retries_refused = family("retries_refused", "Failed requests not repeated because too many of their model were already");
        let resumes = family("resumes", "Replies carried on by another row after their first byte");
        let mut family = |name: &str, help: &str| registered(registry, name, help, Family::default());
        let of_row = family("row_requests", "Requests that ended on the row");
        let row_retries = family("row_retries", "Attempts repeated before a request ended on the row");
        let row_resumes = family("row_resumes", "Replies of other rows carried on by the row");
        let mut family = |name: &str, help: &str| registered(registry, name, help, Family::default());
        let of_key = family("key_requests", "Requests of the key");
        let key_errors = family("key_errors", "Requests of the key that were refused or failed");
        Self {
            prompt,
            retries,
            retries_refused,
            resumes,
            of_row,
            row_retries,
            row_resumes,
            of_key,
            key_errors,
            by_status: registered(
                registry,
                "requests",
                "Requests by model, route and status sent (499 = the client left first)",
                Family::default(),
            ),
            reasons: registered(registry, "route_reasons", "Requests by what decided on their row", Family::default()),
            tokens: TokenFamilies::register(registry, ""),
            row_tokens: TokenFamilies::register(registry, "row_"),
            key_tokens: TokenFamilies::register(registry, "key_"),
            first_token: registered(
                registry,
                "time_to_first_token_seconds",
                "From the request's arrival to the first byte of its reply",
                waits(),
            ),
            queue_wait: registered(registry, "queue_wait_seconds", "From the request's arrival to its slot", waits()),
            between_tokens: registered(registry, "inter_token_seconds", "Mean time between two tokens of one streamed reply", gaps()),
            row_first_token: registered(registry, "row_time_to_first_token_seconds", "The same by row", waits()),
            row_between_tokens: registered(registry, "row_inter_token_seconds", "The same by row", gaps()),
            known: Mutex::default(),
        }
    }

    /// Counts one finished request.
    pub(super) fn observe(&self, event: &UsageEvent) {
        let known = &mut *self.known.lock();
        self.count(known, event);
        self.by_key(known, event);
        let Some(model) = &event.model else { return };
        self.by_model(known, model, event);
        if let Some(row) = event.row {
            self.by_row(known, model, row.0, event);
        }
    }

    fn count(&self, known: &mut Known, event: &UsageEvent) {
        let of_model = found(&mut known.counts, &event.model, HashMap::default);
        let counter = found(of_model, &(event.endpoint.clone(), event.status), || {
            let model = event.model.as_deref().unwrap_or(NO_MODEL).to_owned();
            self.by_status.get_or_create_owned(&RequestLabels { model, endpoint: event.endpoint.to_string(), status: event.status })
        });
        counter.inc();
    }

    fn by_model(&self, known: &mut Known, model: &String, event: &UsageEvent) {
        let series = found(&mut known.models, model, || {
            let labels = ModelLabels { model: model.clone() };
            ModelSeries {
                prompt: self.prompt.get_or_create_owned(&labels),
                tokens: self.tokens.of(&labels),
                retries: self.retries.get_or_create_owned(&labels),
                retries_refused: self.retries_refused.get_or_create_owned(&labels),
                resumes: self.resumes.get_or_create_owned(&labels),
                first_token: self.first_token.get_or_create_owned(&labels),
                queue_wait: self.queue_wait.get_or_create_owned(&labels),
                between_tokens: self.between_tokens.get_or_create_owned(&labels),
                reasons: HashMap::new(),
            }
        });
        series.prompt.inc_by(event.prompt_tokens);
        series.tokens.add(event);
        series.retries.inc_by(event.retries.into());
        if let Some(wait) = event.queue_wait {
            series.queue_wait.observe(wait.as_secs_f64());
        }
        if let Some(first) = event.first_byte {
            series.first_token.observe(first.as_secs_f64());
        }
        if let Some(gap) = event.between_tokens() {
            series.between_tokens.observe(gap.as_secs_f64());
        }
        if let Some(route) = &event.route {
            series.resumes.inc_by(route.resumed.into());
            series.retries_refused.inc_by(route.retry_refused.into());
            // Looked up by the text itself: a code is owned only where it came back from the log.
            if let Some(counter) = series.reasons.get(route.reason.as_ref()) {
                counter.inc();
            } else {
                let reason = route.reason.clone().into_owned();
                let counter = self.reasons.get_or_create_owned(&ReasonLabels { model: model.clone(), reason: reason.clone() });
                counter.inc();
                series.reasons.insert(reason, counter);
            }
        }
    }

    fn by_row(&self, known: &mut Known, model: &str, row: uuid::Uuid, event: &UsageEvent) {
        let own = known.rows.len() < ROWS || known.rows.contains_key(&row);
        let series = found(&mut known.rows, &if own { row } else { uuid::Uuid::nil() }, || {
            let labels = if own {
                RowLabels { model: model.to_owned(), row: row.to_string() }
            } else {
                RowLabels { model: OTHER.to_owned(), row: OTHER.to_owned() }
            };
            RowSeries {
                requests: self.of_row.get_or_create_owned(&labels),
                tokens: self.row_tokens.of(&labels),
                retries: self.row_retries.get_or_create_owned(&labels),
                resumes: self.row_resumes.get_or_create_owned(&labels),
                first_token: self.row_first_token.get_or_create_owned(&labels),
                between_tokens: self.row_between_tokens.get_or_create_owned(&labels),
            }
        });
        series.requests.inc();
        series.tokens.add(event);
        series.retries.inc_by(event.retries.into());
        series.resumes.inc_by(event.route.as_ref().map_or(0, |route| route.resumed.into()));
        if let Some(first) = event.first_byte {
            series.first_token.observe(first.as_secs_f64());
        }
        if let Some(gap) = event.between_tokens() {
            series.between_tokens.observe(gap.as_secs_f64());
        }
    }

    fn by_key(&self, known: &mut Known, event: &UsageEvent) {
        let own = known.keys.len() < KEYS || known.keys.contains_key(&event.key);
        let name = if own { event.key.clone() } else { Some(OTHER.into()) };
        let series = found(&mut known.keys, &name, || {
            let labels = KeyLabels { key: name.as_deref().unwrap_or(NO_KEY).to_owned() };
            KeySeries {
                requests: self.of_key.get_or_create_owned(&labels),
                errors: self.key_errors.get_or_create_owned(&labels),
                tokens: self.key_tokens.of(&labels),
            }
        });
        series.requests.inc();
        series.errors.inc_by(event.is_error().into());
        series.tokens.add(event);
    }
}

/// The series of a label, made where it is new.
fn found<'a, K: Hash + Eq + Clone, V>(known: &'a mut HashMap<K, V>, label: &K, make: impl FnOnce() -> V) -> &'a mut V {
    known.entry(label.clone()).or_insert_with(make)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RowId;
    use crate::recorder::testing::event;
    use crate::route_trace::{RouteMode, RouteTrace};

    fn encoded(events: impl IntoIterator<Item = UsageEvent>) -> String {
        let mut registry = Registry::default();
        let requests = Requests::register(&mut registry);
        events.into_iter().for_each(|event| requests.observe(&event));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_request_is_counted_for_its_model_its_row_and_its_key() {
        let row: RowId = "0193ac00-0000-7000-8000-000000000001".parse().unwrap();
        let route = RouteTrace {
            row,
            slot: None,
            reason: "session".into(),
            predicted_cached_tokens: 4,
            predicted_wait_ms: 0,
            resumed: 1,
            retry_refused: true,
            mode: RouteMode::Ttft,
            session: None,
        };
        let routed = UsageEvent { row: Some(row), retries: 2, route: Some(route), key: Some("laptop".into()), ..event(200) };
        let text = encoded([routed.clone(), routed, event(503)]);
        for line in [
            r#"requests_total{model="chat",endpoint="/v1/chat/completions",status="200"} 2"#,
            r#"prompt_tokens_total{model="chat"} 21"#,
            r#"prefill_tokens_total{model="chat"} 6"#,
            r#"cached_prompt_tokens_total{model="chat"} 15"#,
            r#"retries_total{model="chat"} 4"#,
            r#"retries_refused_total{model="chat"} 2"#,
            r#"resumes_total{model="chat"} 2"#,
            r#"route_reasons_total{model="chat",reason="session"} 2"#,
            r#"inter_token_seconds_bucket{le="0.01",model="chat"} 3"#,
            r#"row_requests_total{model="chat",row="0193ac00-0000-7000-8000-000000000001"} 2"#,
            r#"row_prefill_tokens_total{model="chat",row="0193ac00-0000-7000-8000-000000000001"} 4"#,
            r#"row_resumes_total{model="chat",row="0193ac00-0000-7000-8000-000000000001"} 2"#,
            r#"row_inter_token_seconds_count{model="chat",row="0193ac00-0000-7000-8000-000000000001"} 2"#,
            r#"key_requests_total{key="laptop"} 2"#,
            r#"key_cached_prompt_tokens_total{key="laptop"} 10"#,
            r#"key_errors_total{key="none"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn rows_and_keys_beyond_the_bound_are_counted_together() {
        let by_key = encoded((0..100).map(|number| UsageEvent { key: Some(format!("key {number}").into()), ..event(200) }));
        assert_eq!(by_key.lines().filter(|line| line.starts_with("key_requests_total")).count(), KEYS + 1);
        assert!(by_key.contains(r#"key_requests_total{key="other"} 36"#), "{by_key}");
        let by_row = encoded((0..300u128).map(|number| UsageEvent { row: Some(RowId(uuid::Uuid::from_u128(number + 1))), ..event(200) }));
        assert_eq!(by_row.lines().filter(|line| line.starts_with("row_requests_total")).count(), ROWS + 1);
        assert!(by_row.contains(r#"row_requests_total{model="other",row="other"} 44"#), "{by_row}");
    }

    #[test]
    fn what_names_no_model_of_ours_is_counted_without_one() {
        let text = encoded([UsageEvent { model: None, ..event(404) }]);
        assert!(text.contains(r#"requests_total{model="",endpoint="/v1/chat/completions",status="404"} 1"#), "{text}");
        assert!(!text.contains("prompt_tokens_total{model"), "{text}");
    }
}
