//! What a simulated engine keeps and how long it takes, without a clock, a socket or a task.
//!
//! The same code serves over HTTP ([`super::slots`]) and drives the discrete-event simulation of `benchmark/`, so both
//! mean the same by a hit and a second. Sequences are generic: bytes here, runs of pretended tokens there.
//!
//! - `sequence` what a prompt must be able to do; `text` prompts as bytes; `runs` prompts as runs of pretended tokens
//! - `slot_cache` and `host_cache` llama-server's rules (checked against b11434 and b11549, docs/BENCHMARKS.md)
//! - `block_pool` one pool of blocks that all requests share, as in `vLLM`
//! - `engine` requests in their slots, those that wait, steps and their time
//!
//! It must never depend on the HTTP side.

mod block_pool;
mod engine;
mod host_cache;
mod runs;
mod sequence;
mod slot_cache;
mod text;

pub use block_pool::BlockPool;
pub use engine::{Cost, Engine, EngineSetup, Happening, Request, Speed, Step};
pub use host_cache::HostCache;
pub use runs::Runs;
pub use sequence::Sequence;
pub use slot_cache::{Placed, SlotCache, SlotRules};
pub use text::Text;

/// How an engine keeps what it has read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSetup {
    /// A whole sequence in each slot and some in host memory (llama-server).
    Slots(SlotRules),
    /// A pool of blocks shared by all requests (`vLLM`, `SGLang`).
    Pool {
        /// Tokens it holds.
        tokens: usize,
        /// Tokens of one block.
        block: usize,
    },
}
