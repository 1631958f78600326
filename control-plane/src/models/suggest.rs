//! The model for somebody who names none.

use std::sync::Arc;

use lifeboat_engines::spec::Task;
use tokio::time::timeout;

use super::source::HubSource;
use super::{Inner, LocalModel, Source, blocking, catalog, fit, hub};
use crate::causes::chain;

/// A model to begin with, and why this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    /// Source text for a row.
    pub source: String,
    /// One sentence for people.
    pub why: String,
}

/// The best model for this host that can be had: one that is here, one of the catalog, or what pip ships.
pub(super) async fn run(inner: &Arc<Inner>, local: Vec<Arc<LocalModel>>) -> Suggestion {
    let host = blocking(inner.host).await;
    let entry = host.as_ref().ok().and_then(catalog::best_for);
    let here = |source: &str| local.iter().any(|model| model.source.eq_ignore_ascii_case(source));
    let mut unreachable = String::new();
    if let Some(entry) = entry {
        let source = entry.source.clone();
        let found = Source::parse(&source, inner.remote.hub(), None);
        if here(&source) {
            return Suggestion { source, why: format!("{} is here and is the best of the catalog for this host", entry.name) };
        }
        if let Ok(Source::Hub(repository)) = found {
            match reach(inner, &repository).await {
                Ok(()) => {
                    let why = format!("{} ({:.1} GB) is the best of the catalog for this host", entry.name, entry.size_gb);
                    return Suggestion { source, why };
                }
                Err(reason) => unreachable = format!("the hub {} cannot be reached ({reason})", inner.remote.hub()),
            }
        }
    } else {
        "no entry of the catalog fits this host's memory".clone_into(&mut unreachable);
    }
    let fits = |model: &&Arc<LocalModel>| host.as_ref().is_ok_and(|host| fit::now(&model.facts, host).is_ok());
    let best = local.iter().filter(|model| model.facts.task == Task::Chat).filter(fits).max_by_key(|model| model.facts.parameters);
    match best {
        Some(model) => {
            Suggestion { source: model.source.clone(), why: format!("{unreachable}; of the models here this is the largest that fits") }
        }
        None => Suggestion {
            source: catalog::fallback().into(),
            why: format!("{unreachable}; taking the small model that a pip package ships"),
        },
    }
}

/// Whether the hub answers for this repository, within the connect limit: it stands in the way of a first start.
async fn reach(inner: &Inner, repository: &HubSource) -> Result<(), String> {
    match timeout(inner.sources.connect, hub::plan(&inner.remote, repository)).await {
        Ok(Ok(_)) => Ok(()),
        // The error itself says "cannot look up …"; the causes say why.
        Ok(Err(error)) => Err(std::error::Error::source(&error).map_or_else(|| error.to_string(), chain)),
        Err(_) => Err(format!("no answer within {} s", inner.sources.connect.as_secs())),
    }
}
