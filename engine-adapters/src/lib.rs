//! What Lifeboat knows about inference engines, as pure functions over plain types.
//!
//! Nothing here opens a file, a socket or a clock: the control plane measures the host, reads the
//! bytes and hands them in; this crate answers with a plan, a number or a reason. That keeps every
//! engine rule testable by a table and usable by any caller.
//!
//! - [`spec`] the row an operator writes, the resolved launch, the plan; [`validate`] the rules all kinds share
//! - [`host`] facts about the machine
//! - [`model`] facts about a model, read from its header by [`gguf`]
//! - [`sizing`] model + host -> threads, slots, context, memory, with the arithmetic shown
//! - [`catalog`] which build of which engine fits this host, each rejection with its reason
//! - [`queue`] what an engine's metrics say of the requests that wait inside it
//! - [`diagnose`] why an engine died, in words
//! - [`dialect`] OpenAI and Anthropic request, chunk and error shapes
//! - [`llama_cpp`], [`sim`], [`external`] one adapter per engine kind

pub mod catalog;
pub mod diagnose;
pub mod dialect;
pub mod external;
pub mod gguf;
pub mod host;
pub mod llama_cpp;
pub mod model;
pub mod queue;
pub mod sim;
pub mod sizing;
pub mod spec;
pub mod validate;

use host::HostFacts;
use model::ModelFacts;
use sizing::SizingError;
use spec::{Capabilities, EngineKind, EngineSpec, Health, LaunchInput, LaunchPlan, Resolved, SpecError};

/// One kind of engine: how to check a row, size it, launch it and read its answers.
pub trait EngineAdapter: Send + Sync {
    /// The kind this adapter stands for.
    fn kind(&self) -> EngineKind;

    /// What this kind of engine can do and needs.
    fn capabilities(&self) -> Capabilities;

    /// Checks a row without touching the machine. `open_arguments` is the operator's setting that
    /// lifts the allow-list of extra engine arguments.
    fn validate(&self, spec: &EngineSpec, open_arguments: bool) -> Result<(), SpecError>;

    /// Turns every "auto" of the row into a number, from the model and the live host. Hand in the host as the
    /// build sees it: [`HostFacts::usable_by`].
    fn resolve(&self, spec: &EngineSpec, model: Option<&ModelFacts>, host: &HostFacts) -> Result<Resolved, SizingError>;

    /// The exact process to start.
    fn launch(&self, input: &LaunchInput<'_>) -> LaunchPlan;

    /// Reads the answer of the engine's health path. `status` is the HTTP status.
    fn read_health(&self, status: u16, body: &[u8]) -> Health;

    /// Whether the model's chat template takes tools, from the answer of the engine's props path; `None` = it does not say. An
    /// engine whose template takes none drops them without a word.
    fn read_takes_tools(&self, _props: &[u8]) -> Option<bool> {
        None
    }

    /// Reads a fraction 0..=1 of the load from one line of the engine's log, where it tells.
    fn read_load_progress(&self, line: &str) -> Option<f32>;
}

/// The adapter of one engine kind.
pub fn adapter(kind: EngineKind) -> &'static dyn EngineAdapter {
    match kind {
        EngineKind::LlamaCpp => &llama_cpp::LlamaCpp,
        EngineKind::Sim => &sim::Sim,
        EngineKind::External => &external::External,
    }
}
