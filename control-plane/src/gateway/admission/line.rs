//! The lines of waiting requests: one per model name and class, oldest first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Permit, Refusal};
use crate::gateway::router::Class;
use crate::ids::RowId;
use crate::registry::{DemandGuard, Endpoint};

/// One waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Where its permit, or the bad news, goes.
    pub grant: oneshot::Sender<Result<Permit, Refusal>>,
    /// Engines that failed it already.
    pub avoid: Vec<Arc<Endpoint>>,
    /// The row it asks to be brought up.
    pub demand: Option<(RowId, DemandGuard)>,
}

/// Waiters of one name by ticket; tickets rise with time, over all lines.
pub(super) type Line = BTreeMap<u64, Waiter>;

/// All lines. A line exists only while somebody stands in it.
#[derive(Debug, Default)]
pub(super) struct Lines {
    generation: HashMap<String, Line>,
    light: HashMap<String, Line>,
    tickets: u64,
}

impl Lines {
    /// The lines of one class.
    pub(super) const fn of(&mut self, class: Class) -> &mut HashMap<String, Line> {
        match class {
            Class::Generation => &mut self.generation,
            Class::Light => &mut self.light,
        }
    }

    /// How many wait.
    pub(super) fn len(&self, class: Class, name: &str) -> usize {
        let lines = match class {
            Class::Generation => &self.generation,
            Class::Light => &self.light,
        };
        lines.get(name).map_or(0, Line::len)
    }

    /// Puts a waiter at the end.
    pub(super) fn push(&mut self, class: Class, name: &str, waiter: Waiter) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.of(class).entry(name.to_owned()).or_default().insert(ticket, waiter);
        ticket
    }

    /// Takes a waiter out, wherever it stands; `None` = it was not there any more.
    pub(super) fn remove(&mut self, class: Class, name: &str, ticket: u64) -> Option<Waiter> {
        let line = self.of(class).get_mut(name)?;
        let waiter = line.remove(&ticket);
        if line.is_empty() {
            self.of(class).remove(name);
        }
        waiter
    }

    /// The longest waiting request of these names that may use this engine.
    pub(super) fn oldest<'a>(
        &mut self,
        class: Class,
        names: impl Iterator<Item = &'a String>,
        endpoint: &Arc<Endpoint>,
    ) -> Option<(&'a String, u64)> {
        let lines = &*self.of(class);
        let heads = names.filter_map(|name| {
            let mut line = lines.get(name)?.iter();
            line.find(|(_, waiter)| !waiter.avoid.iter().any(|failed| Arc::ptr_eq(failed, endpoint))).map(|(ticket, _)| (name, *ticket))
        });
        heads.min_by_key(|(_, ticket)| *ticket)
    }
}
