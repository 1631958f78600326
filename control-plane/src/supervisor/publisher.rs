//! Shows the world where a row stands: the registry at once, the status columns for every change that lasts.
//!
//! A database that cannot be written never stops an engine from serving.

use std::sync::Arc;
use std::time::Duration;

use super::Deps;
use crate::causes::chain;
use crate::ids::{Generation, RowId};
use crate::progress::Progress;
use crate::registry::{Demand, Endpoint, RowStatus, RowView};
use crate::store::servers::ServerRow;

/// Longest wait for the status columns.
const RECORDING: Duration = Duration::from_secs(2);

/// The public face of one row. Owned by its task.
#[derive(Debug)]
pub struct Publisher {
    deps: Arc<Deps>,
    row: ServerRow,
    demand: Arc<Demand>,
    status: RowStatus,
    endpoint: Option<Arc<Endpoint>>,
    room: Option<Vec<RowId>>,
    recorded: Option<(Generation, RowStatus)>,
}

impl Publisher {
    /// Nothing is shown yet.
    pub fn new(deps: Arc<Deps>, row: ServerRow) -> Self {
        let demand = deps.registry.demand(row.id);
        Self { deps, row, demand, status: RowStatus::default(), endpoint: None, room: None, recorded: None }
    }

    /// The row as last taken over.
    pub const fn row(&self) -> &ServerRow {
        &self.row
    }

    /// What is shown.
    pub const fn status(&self) -> &RowStatus {
        &self.status
    }

    /// Takes over an edited row and shows it.
    pub async fn take_row(&mut self, row: ServerRow) {
        self.row = row;
        self.show(|_| ()).await;
    }

    /// Changes what is shown, and keeps it.
    pub async fn show(&mut self, edit: impl FnOnce(&mut RowStatus)) {
        let before = self.status.state;
        edit(&mut self.status);
        self.publish();
        if before != self.status.state {
            tracing::info!(
                server.id = %self.row.id,
                server.model_name = %self.row.spec.model_name,
                server.state = self.status.state.as_str(),
                server.reason = self.status.state_reason.as_deref().unwrap_or_default(),
                engine.pid = self.status.pid,
                "server is {}",
                self.status.state.as_str()
            );
        }
        self.record().await;
    }

    /// As [`Publisher::show`], with the rows that should sleep so that this one can start. To be taken back as soon as it has
    /// looked again.
    pub async fn show_room(&mut self, room: Option<Vec<RowId>>, edit: impl FnOnce(&mut RowStatus)) {
        self.room = room;
        self.show(edit).await;
    }

    /// The rows asked for room are not asked any more, from the next time on that anything is shown.
    pub fn take_back_room(&mut self) {
        self.room = None;
    }

    /// As [`Publisher::show`], with the way to the engine, or without one.
    pub async fn show_endpoint(&mut self, endpoint: Option<Arc<Endpoint>>, edit: impl FnOnce(&mut RowStatus)) {
        self.endpoint = endpoint;
        self.show(edit).await;
    }

    /// Shows progress, which is not kept.
    pub fn show_progress(&mut self, edit: impl FnOnce(&mut RowStatus), progress: Option<Progress>) {
        edit(&mut self.status);
        self.status.progress = progress;
        self.publish();
    }

    /// Shows nothing any more.
    pub fn remove(&self) {
        self.deps.registry.remove(self.row.id);
        self.deps.activator.wake();
    }

    fn publish(&self) {
        self.deps.registry.publish(RowView {
            id: self.row.id,
            generation: self.row.generation,
            model_name: self.row.spec.model_name.clone(),
            aliases: self.row.spec.aliases.clone(),
            engine: self.row.spec.engine,
            desired_state: self.row.spec.desired_state,
            status: self.status.clone(),
            endpoint: self.endpoint.clone(),
            demand: Arc::clone(&self.demand),
            room: self.room.clone(),
        });
        self.deps.activator.wake();
    }

    async fn record(&mut self) {
        let lasting = (self.row.generation, RowStatus { progress: None, ..self.status.clone() });
        if self.recorded.as_ref() == Some(&lasting) {
            return;
        }
        let recording = self.deps.store.record_status(self.row.id, lasting.0, &lasting.1);
        match tokio::time::timeout(RECORDING, recording).await {
            Ok(Ok(())) => self.recorded = Some(lasting),
            Ok(Err(error)) => tracing::warn!(server.id = %self.row.id, error = %chain(&error), "could not record where a server stands"),
            Err(_) => tracing::warn!(server.id = %self.row.id, "could not record where a server stands: the database does not answer"),
        }
    }
}
