//! Row metrics, read from the registry at the moment of a scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::registry::{Registry, RowState, RowView};

/// Every state, so that a row that leaves one is seen at 0 there.
const STATES: [RowState; 7] = [
    RowState::Stopped,
    RowState::Sleeping,
    RowState::Downloading,
    RowState::Starting,
    RowState::Ready,
    RowState::Draining,
    RowState::Failed,
];

/// Reads the registry.
#[derive(Debug)]
pub(super) struct Rows(Arc<Registry>);

impl Rows {
    pub(super) const fn new(registry: Arc<Registry>) -> Self {
        Self(registry)
    }
}

fn labels(row: &RowView) -> [(&'static str, String); 2] {
    [("model", row.model_name.clone()), ("row", row.id.to_string())]
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    rows: &[Arc<RowView>],
    name: &str,
    help: &str,
    read: impl Fn(&RowView) -> i64,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for row in rows {
        ConstGauge::new(read(row)).encode(family.encode_family(&labels(row))?)?;
    }
    Ok(())
}

impl Collector for Rows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.0.snapshot();
        let mut rows: Vec<_> = snapshot.rows.values().cloned().collect();
        rows.sort_by_key(|row| row.id);
        gauge(&mut encoder, &rows, "slots", "Requests the row may serve at once; 0 while it is not up", |row| {
            row.endpoint.as_ref().map_or(0, |endpoint| i64::from(endpoint.slots))
        })?;
        gauge(&mut encoder, &rows, "slots_in_use", "Requests on the row now", |row| {
            row.endpoint.as_ref().map_or(0, |endpoint| i64::from(endpoint.load.in_flight()))
        })?;
        gauge(&mut encoder, &rows, "row_demand", "Requests waiting for the row to come up", |row| i64::from(row.demand.waiting()))?;
        let mut restarts =
            encoder.encode_descriptor("engine_restarts", "Engines started again after a death", None, MetricType::Counter)?;
        for row in &rows {
            ConstCounter::new(u64::from(row.status.restarts)).encode(restarts.encode_family(&labels(row))?)?;
        }
        let mut states = encoder.encode_descriptor("row_state", "1 for the state the row is in", None, MetricType::Gauge)?;
        for row in &rows {
            let [model, id] = labels(row);
            for state in STATES {
                let labels = [model.clone(), id.clone(), ("state", state.as_str().to_owned())];
                ConstGauge::new(i64::from(row.status.state == state)).encode(states.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
