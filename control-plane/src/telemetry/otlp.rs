//! Traces of finished requests for a collector: OTLP over HTTP, in its JSON form.
//!
//! A request's three spans (the request, its wait for a slot, its engine) are made from the event that the log is made from,
//! after it has ended, so tracing costs a request nothing. One task sends them in batches. Its queue is bounded, and what
//! a collector does not take in time is dropped and counted: it must never hold up accounting. Names follow `OpenTelemetry`'s
//! conventions for generative AI where they have one. No prompt, no reply and no key is in a span. The format is a few
//! members of JSON, which is why no SDK stands here: it would double what the program keeps resident.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::Metrics;
use crate::causes::chain;
use crate::config::TelemetryConfig;
use crate::host::http::Http;
use crate::recorder::UsageEvent;
use crate::route_trace::TraceParent;

/// Requests sent at once.
const BATCH: usize = 256;
/// Longest time a span waits for others.
const SEND_EVERY: Duration = Duration::from_secs(2);
/// Longest time a collector may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Longest time what is left may take at a stop.
const AT_STOP: Duration = Duration::from_secs(2);

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// The status of a span that failed.
const FAILED: u8 = 2;

/// A handle on the task that sends spans.
#[derive(Debug, Clone)]
pub struct Spans {
    inbox: mpsc::Sender<UsageEvent>,
    metrics: Arc<Metrics>,
}

impl Spans {
    /// Starts the task on `tracker`, where a collector is set. It ends with `token`, after one more try to send what is left.
    pub fn start(
        config: &TelemetryConfig,
        http: Http,
        metrics: &Arc<Metrics>,
        tracker: &TaskTracker,
        token: CancellationToken,
    ) -> Option<Self> {
        let base = config.otlp_endpoint.as_deref()?.trim_end_matches('/');
        let (sender, inbox) = mpsc::channel(config.otlp_queue);
        let sending = Sender { url: format!("{base}/v1/traces"), http, metrics: Arc::clone(metrics), failing: false };
        tracker.spawn(sending.run(inbox, token));
        Some(Self { inbox: sender, metrics: Arc::clone(metrics) })
    }

    /// Takes one finished request. Never waits.
    pub fn take(&self, event: &UsageEvent) {
        let wanted = event.parent.is_none_or(|parent| parent.sampled);
        if wanted && self.inbox.try_send(event.clone()).is_err() {
            self.metrics.traces_lost(1);
        }
    }
}

/// The task.
struct Sender {
    url: String,
    http: Http,
    metrics: Arc<Metrics>,
    failing: bool,
}

impl Sender {
    async fn run(mut self, mut inbox: mpsc::Receiver<UsageEvent>, token: CancellationToken) {
        let mut events = Vec::with_capacity(BATCH);
        let mut due: Option<Instant> = None;
        loop {
            let room = BATCH - events.len();
            tokio::select! {
                biased;
                count = inbox.recv_many(&mut events, room) => {
                    if count == 0 {
                        break;
                    }
                    due.get_or_insert_with(|| Instant::now() + SEND_EVERY);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = token.cancelled() => break,
            }
            if events.len() == BATCH || due.is_some_and(|due| due <= Instant::now()) {
                self.send(&events, WITHIN).await;
                events.clear();
                due = None;
            }
        }
        while let Ok(event) = inbox.try_recv() {
            events.push(event);
        }
        if !events.is_empty() {
            self.send(&events, AT_STOP).await;
        }
    }

    async fn send(&mut self, events: &[UsageEvent], within: Duration) {
        match self.post(&document(events), within).await {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.metrics.traces_lost(events.len() as u64);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(url = self.url, error, "the collector does not take traces; they are dropped and counted until it does");
                }
            }
        }
    }

    async fn post(&self, document: &Value, within: Duration) -> Result<(), String> {
        let http = self.http.clone();
        // Reading the system's certificates takes milliseconds the first time.
        let client =
            tokio::task::spawn_blocking(move || http.client()).await.map_err(|error| chain(&error))?.map_err(|error| chain(&error))?;
        let sent = client.post(&self.url).json(document).timeout(within).send().await.map_err(|error| chain(&error))?;
        if sent.status().is_success() { Ok(()) } else { Err(format!("it answered with status {}", sent.status())) }
    }
}

/// `ExportTraceServiceRequest`.
fn document(events: &[UsageEvent]) -> Value {
    let spans: Vec<Value> = events.iter().flat_map(spans).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": [attribute("service.name", "lifeboat"), attribute("service.version", env!("CARGO_PKG_VERSION"))] },
        "scopeSpans": [{ "scope": { "name": "lifeboat.gateway" }, "spans": spans }],
    }] })
}

fn attribute(key: &str, value: impl Into<Attribute>) -> Value {
    json!({ "key": key, "value": value.into().0 })
}

/// `AnyValue`; whole numbers are text in this form.
struct Attribute(Value);

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self(json!({ "stringValue": text }))
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self(json!({ "intValue": number.to_string() }))
    }
}

impl From<bool> for Attribute {
    fn from(value: bool) -> Self {
        Self(json!({ "boolValue": value }))
    }
}

/// The name of what a route does, as the conventions have it.
fn operation(endpoint: &str) -> &'static str {
    match endpoint {
        "/v1/completions" | "/api/generate" => "text_completion",
        "/v1/embeddings" | "/api/embed" => "embeddings",
        endpoint if endpoint.contains("chat") || endpoint.ends_with("/messages") || endpoint.ends_with("/responses") => "chat",
        _ => "other",
    }
}

/// The spans of one request.
fn spans(event: &UsageEvent) -> Vec<Value> {
    let (trace, parent) =
        event.parent.map_or_else(|| (rand::random::<u128>().max(1), None), |TraceParent { trace, span, .. }| (trace, Some(span)));
    let fresh = || rand::random::<u64>().max(1);
    let root = fresh();
    let start = u128::try_from(event.at).unwrap_or_default() * 1_000_000;
    let at = |after: Duration| (start + after.as_nanos()).to_string();
    let span = |id: u64, parent: Option<u64>, kind: u8, name: String, from: Duration, to: Duration| {
        let parent = parent.map_or_else(String::new, |parent| format!("{parent:016x}"));
        json!({
            "traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"), "parentSpanId": parent, "kind": kind, "name": name,
            "startTimeUnixNano": at(from), "endTimeUnixNano": at(to.max(from)),
        })
    };
    let operation = operation(&event.endpoint);
    let model = event.model.as_deref().unwrap_or_default();
    let mut all = Vec::with_capacity(3);
    let mut request = span(root, parent, SERVER, format!("{operation} {model}").trim_end().to_owned(), Duration::ZERO, event.total);
    request["attributes"] = request_attributes(event, operation).into();
    if event.is_error() {
        request["status"] = json!({ "code": FAILED, "message": event.error.as_deref().unwrap_or_default() });
    }
    all.push(request);
    let Some(wait) = event.queue_wait else { return all };
    all.push(span(fresh(), Some(root), INTERNAL, "queue".to_owned(), Duration::ZERO, wait));
    let mut engine = span(fresh(), Some(root), CLIENT, "upstream".to_owned(), wait, event.total);
    let mut attributes = vec![attribute("lifeboat.retries", u64::from(event.retries))];
    if let Some(route) = &event.route {
        attributes.push(attribute("lifeboat.row", route.row.to_string().as_str()));
        attributes.push(attribute("lifeboat.route.reason", &*route.reason));
        attributes.push(attribute("lifeboat.route.predicted_cached_tokens", route.predicted_cached_tokens));
        attributes.push(attribute("lifeboat.resumed", u64::from(route.resumed)));
        if let Some(slot) = route.slot {
            attributes.push(attribute("lifeboat.slot", u64::from(slot)));
        }
    }
    engine["attributes"] = attributes.into();
    if let Some(first) = event.first_byte {
        engine["events"] = json!([{ "name": "first_token", "timeUnixNano": at(first) }]);
    }
    all.push(engine);
    all
}

fn request_attributes(event: &UsageEvent, operation: &str) -> Vec<Value> {
    let mut attributes = vec![
        attribute("gen_ai.operation.name", operation),
        attribute("gen_ai.provider.name", "lifeboat"),
        attribute("http.route", &*event.endpoint),
        attribute("http.response.status_code", u64::from(event.status)),
        attribute("lifeboat.request_id", event.request_id.as_str()),
        attribute("lifeboat.streamed", event.streamed),
    ];
    if let Some(model) = &event.model {
        attributes.push(attribute("gen_ai.request.model", model.as_str()));
    }
    if event.prompt_tokens > 0 {
        attributes.push(attribute("gen_ai.usage.input_tokens", event.prompt_tokens));
        attributes.push(attribute("gen_ai.usage.cache_read.input_tokens", event.cached_tokens));
    }
    if event.completion_tokens > 0 {
        attributes.push(attribute("gen_ai.usage.output_tokens", event.completion_tokens));
    }
    if let Some(error) = &event.error {
        attributes.push(attribute("error.type", error.as_str()));
    }
    if let Some(key) = &event.key {
        attributes.push(attribute("lifeboat.key", &**key));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::testing::event;

    #[test]
    fn a_request_becomes_three_spans_of_the_clients_trace() {
        let parent = TraceParent::read("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let failed = UsageEvent { parent, error: Some("upstream_failed".into()), ..event(502) };
        let all = spans(&failed);
        assert_eq!(all.iter().map(|span| span["name"].as_str().unwrap()).collect::<Vec<_>>(), ["chat chat", "queue", "upstream"]);
        for span in &all {
            assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
        }
        assert_eq!(all[0]["parentSpanId"], "b7ad6b7169203331");
        assert_eq!((&all[1]["parentSpanId"], &all[2]["parentSpanId"]), (&all[0]["spanId"], &all[0]["spanId"]));
        assert_eq!(all[0]["startTimeUnixNano"], "1764547200000000000");
        assert_eq!(
            (&all[1]["endTimeUnixNano"], &all[2]["startTimeUnixNano"]),
            (&json!("1764547200003000000"), &json!("1764547200003000000"))
        );
        assert_eq!(all[2]["endTimeUnixNano"], "1764547200110000000");
        assert_eq!(all[2]["events"][0]["timeUnixNano"], "1764547200020000000");
        assert_eq!(all[0]["status"], json!({ "code": 2, "message": "upstream_failed" }));
        let attributes = all[0]["attributes"].as_array().unwrap();
        for expected in [
            attribute("gen_ai.request.model", "chat"),
            attribute("gen_ai.usage.output_tokens", 10),
            attribute("error.type", "upstream_failed"),
        ] {
            assert!(attributes.contains(&expected), "{expected} {attributes:?}");
        }
    }

    #[test]
    fn one_that_was_refused_before_it_could_wait_is_one_span_of_its_own_trace() {
        let refused = UsageEvent { queue_wait: None, first_byte: None, model: None, ..event(404) };
        let all = spans(&refused);
        assert_eq!((all.len(), &all[0]["name"], &all[0]["parentSpanId"]), (1, &json!("chat"), &json!("")));
        assert_ne!(spans(&refused)[0]["traceId"], all[0]["traceId"]);
    }
}
