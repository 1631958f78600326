//! The rows of the registry as the router knows them: kept in step, and entered by their gates.
//!
//! The router decides about numbers; here stands which engine a number means. A row is up for the router while the registry
//! shows it ready, and a restarted engine is another row to it. Nothing here decides anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::interleave;
use super::outlook::Class;
use crate::ids::RowId;
use crate::registry::{Endpoint, PromptCache, RowView, Snapshot};
use crate::routing::{self, Arrival, Ask, Grant, Mode, Placement, Router, RowIndex, RowSetup, Settings};

/// What an engine said of its queue this long ago says nothing of now.
const SILENT: Duration = Duration::from_secs(10);

/// One row that is up.
#[derive(Debug)]
pub(super) struct Member {
    /// As the registry shows it.
    pub view: Arc<RowView>,
    /// Its engine.
    pub endpoint: Arc<Endpoint>,
    /// Its number.
    pub index: RowIndex,
    /// Names its requests come by.
    pub names: Vec<Arc<str>>,
    /// When its engine said what the router knows of its own queue.
    told: Option<Instant>,
}

/// A place on an engine whose gate was passed.
#[derive(Debug)]
pub(super) struct Entered {
    /// The row.
    pub row: Arc<RowView>,
    /// Its engine.
    pub endpoint: Arc<Endpoint>,
    /// Slots taken.
    pub weight: u32,
    /// The router's decision.
    pub placement: Placement,
}

/// All rows of one class of requests.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Decides.
    pub router: Router,
    class: Class,
    light_limit: u32,
    members: HashMap<RowId, Member>,
    ids: HashMap<RowIndex, RowId>,
    seen: Option<Arc<Snapshot>>,
}

impl Fleet {
    pub(super) fn new(class: Class, light_limit: u32, settings: Settings) -> Self {
        Self { router: Router::new(settings), class, light_limit, members: HashMap::new(), ids: HashMap::new(), seen: None }
    }

    /// Takes over what the registry shows.
    pub(super) fn sync(&mut self, snapshot: &Arc<Snapshot>, modes: &HashMap<String, Mode>, now: f64) {
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, snapshot)) {
            return;
        }
        let gone: Vec<RowId> = self
            .members
            .iter()
            .filter(|(id, member)| {
                let shown = snapshot.rows.get(id).and_then(|row| row.endpoint.as_ref());
                !shown.is_some_and(|endpoint| Arc::ptr_eq(endpoint, &member.endpoint))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(member) = self.members.remove(&id) {
                self.ids.remove(&member.index);
                self.router.row_gone(member.index);
            }
        }
        let mut rows: Vec<_> = snapshot.rows.values().collect();
        rows.sort_by_key(|row| row.id);
        for row in rows {
            let ready = row.is_ready();
            match (self.members.get_mut(&row.id), &row.endpoint) {
                (Some(member), _) => {
                    let names = names(row);
                    if member.names != names {
                        self.router.row_named(member.index, &names, now);
                        member.names = names;
                    }
                    member.view = Arc::clone(row);
                    if !ready {
                        self.router.row_closing(member.index);
                    }
                }
                (None, Some(endpoint)) if ready && !endpoint.load.is_closed() => self.add(row, endpoint, now),
                (None, _) => {}
            }
        }
        for (name, mode) in modes {
            self.set_mode(snapshot, name, *mode, now);
        }
        self.router.retain_lines(|name| snapshot.by_name.contains_key(name));
        self.seen = Some(Arc::clone(snapshot));
    }

    fn add(&mut self, row: &Arc<RowView>, endpoint: &Arc<Endpoint>, now: f64) {
        let names = names(row);
        let cache = match (self.class, endpoint.cache) {
            (Class::Light, _) => routing::CacheModel::Pool { tokens: 0 },
            (Class::Generation, PromptCache::Slots { host_tokens }) => routing::CacheModel::Slots { host_tokens },
            (Class::Generation, PromptCache::Pool { tokens }) => routing::CacheModel::Pool { tokens },
        };
        let slots = if self.class == Class::Light { self.light_limit } else { endpoint.slots };
        let setup = RowSetup { slots, context: endpoint.context, cache };
        let Some(index) = self.router.row_up(&names, setup, now) else { return };
        self.ids.insert(index, row.id);
        self.members.insert(row.id, Member { view: Arc::clone(row), endpoint: Arc::clone(endpoint), index, names, told: None });
    }

    /// Tells the router what engines said of their own queues since, and which fell silent.
    pub(super) fn tell_queues(&mut self, now: f64) {
        for member in self.members.values_mut() {
            match (member.endpoint.queue.last(), member.told) {
                (Some((at, _)), Some(_)) if at.elapsed() > SILENT => {
                    member.told = None;
                    self.router.reported(member.index, None, now);
                }
                (Some((at, queue)), told) if at.elapsed() <= SILENT && told != Some(at) => {
                    member.told = Some(at);
                    self.router.reported(member.index, Some(queue), now);
                }
                _ => {}
            }
        }
    }

    /// Sets how a pool chooses, by whichever of its names a request comes.
    pub(super) fn set_mode(&mut self, snapshot: &Snapshot, name: &str, mode: Mode, now: f64) {
        let rows = snapshot.by_name.get(name).into_iter().flatten().filter(|row| row.model_name == name);
        for row in rows {
            for name in names(row) {
                self.router.set_mode(&name, mode, now);
            }
        }
    }

    /// The row of that id, while it is up.
    pub(super) fn member(&self, id: RowId) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Incarnations of these engines, as far as they are up.
    pub(super) fn incarnations(&self, endpoints: &[Arc<Endpoint>]) -> Vec<u64> {
        let of = |endpoint: &Arc<Endpoint>| {
            let member = self.members.values().find(|member| Arc::ptr_eq(&member.endpoint, endpoint))?;
            self.router.incarnation(member.index)
        };
        endpoints.iter().filter_map(of).collect()
    }

    /// A request arrives: on an engine, in the line, or turned away because the line is full.
    pub(super) fn arrive(&mut self, name: &Arc<str>, ask: &Ask, room: usize, now: f64) -> Result<Entered, Arrival> {
        loop {
            match self.router.arrive(name, ask, room, now) {
                Arrival::Placed(placement) => {
                    if let Some(entered) = self.enter(placement, ask.weight, now) {
                        return Ok(entered);
                    }
                }
                other => return Err(other),
            }
        }
    }

    /// Passes the gate of the row a request was placed on. A gate that has just been shut never opens again, so the row is
    /// closed for the router too and the request has to be placed anew.
    pub(super) fn enter(&mut self, placement: Placement, weight: u32, now: f64) -> Option<Entered> {
        let member = self.ids.get(&placement.row).and_then(|id| self.members.get(id))?;
        interleave::point();
        let (weight, entered) = match self.class {
            Class::Generation => {
                let weight = weight.clamp(1, member.endpoint.slots.max(1));
                (weight, member.endpoint.load.try_enter(weight, member.endpoint.slots))
            }
            Class::Light => (1, member.endpoint.load.try_enter_light(self.light_limit)),
        };
        if !entered {
            self.router.row_closing(placement.row);
            self.router.undo(placement.flight, now);
            return None;
        }
        Some(Entered { row: Arc::clone(&member.view), endpoint: Arc::clone(&member.endpoint), weight, placement })
    }

    /// Whoever of a line can be served now.
    pub(super) fn hand_out(&mut self, name: &Arc<str>, now: f64) -> Vec<Grant> {
        self.router.hand_out(name, now)
    }
}

fn names(row: &RowView) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::with_capacity(1 + row.aliases.len());
    for name in std::iter::once(&row.model_name).chain(&row.aliases) {
        if !names.iter().any(|known| **known == **name) {
            names.push(Arc::from(name.as_str()));
        }
    }
    names
}
