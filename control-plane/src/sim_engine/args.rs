//! The flags of `lifeboat sim-engine`. They are the operator's `extra_args` of a `sim` row.

use clap::{Parser, ValueEnum};

use super::model::{CacheSetup, EngineSetup, SlotRules, Speed};
use super::text::BYTES_PER_TOKEN;

/// How the engine keeps what it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheKind {
    /// A sequence in each slot and some in host memory, as llama-server.
    Slots,
    /// One pool of blocks for all requests, as `vLLM`; its metrics have that engine's names.
    SharedPool,
}

/// Tokens of a block of a shared pool.
const BLOCK_TOKENS: usize = 16;

/// A simulated engine with llama-server's HTTP interface.
///
/// The API key is read from `LIFEBOAT_SIM_API_KEY`; without it, none is asked for.
#[derive(Debug, Clone, Parser)]
#[command(name = "lifeboat sim-engine", version)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Settings {
    /// Loopback port; 0 = any free one, which the log tells.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Requests served at once; more wait in order.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub slots: u32,
    /// Tokens of context of one slot. A token is four bytes of text.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..))]
    pub context: u32,
    /// Model name to show.
    #[arg(long, default_value = "sim", allow_hyphen_values = true)]
    pub model: String,
    /// Microseconds to read one byte of prompt that the slot does not hold already.
    #[arg(long, default_value_t = 5.0)]
    pub prefill_us_per_char: f64,
    /// Microseconds of one decode step, which gives one token to every busy slot.
    #[arg(long, default_value_t = 5_000)]
    pub decode_us_per_token: u64,
    /// What each further busy slot adds to a decode step, as a part of it.
    #[arg(long, default_value_t = 0.02)]
    pub batch_slowdown: f64,
    /// Milliseconds from start to ready.
    #[arg(long, default_value_t = 0)]
    pub load_ms: u64,
    /// Tokens of an answer, unless the request asks for fewer.
    #[arg(long, default_value_t = 32)]
    pub tokens: u32,
    /// A prompt goes to the idle slot that holds more than this part of it; else to the one idle longest.
    #[arg(long, default_value_t = 0.8)]
    pub slot_prompt_similarity: f64,
    /// What it remembers, and whose rules and metrics it has.
    #[arg(long, value_enum, default_value_t = CacheKind::Slots)]
    pub cache: CacheKind,
    /// MiB of prompts kept in host memory, as counted by --kv-bytes-per-token; 0 = off. Nothing is really allocated for it
    /// but the text.
    #[arg(long, default_value_t = 8192)]
    pub cache_ram: u64,
    /// Bytes that the state of one token is pretended to take (an 8B model in f16: 131072).
    #[arg(long, default_value_t = 131_072, value_parser = clap::value_parser!(u64).range(1..))]
    pub kv_bytes_per_token: u64,
    /// Save all idle slots to host memory at every launch (llama-server's default, off here).
    #[arg(long)]
    pub cache_idle_slots: bool,
    /// All slots share one context of slots x context tokens.
    #[arg(long)]
    pub kv_unified: bool,
    /// Microseconds to copy the state of one token to or from host memory; the engine does nothing else meanwhile.
    #[arg(long, default_value_t = 0.0)]
    pub copy_us_per_token: f64,
    /// Tokens of the pool of `--cache shared-pool`; --slots is then the most requests at once.
    #[arg(long, default_value_t = 400_000)]
    pub pool_tokens: usize,
    /// Engines in this process, on ports that follow each other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub instances: u16,
    /// Send the head of a stream when its prompt gets a slot, as llama-server does, and not when the prompt is read.
    #[arg(long)]
    pub early_head: bool,
    /// Have no endpoints for Anthropic's Messages and OpenAI's Responses, as engines that only know chat completions.
    #[arg(long)]
    pub chat_only: bool,
    /// MiB of memory to take while loading.
    #[arg(long, default_value_t = 0)]
    pub memory_mib: usize,

    /// Fault: end with exit code 1 before listening.
    #[arg(long)]
    pub crash_at_start: bool,
    /// Fault: stop loading half way, for ever.
    #[arg(long)]
    pub stall_load: bool,
    /// Fault: die by SIGABRT in the middle of the first request after this many.
    #[arg(long, value_name = "REQUESTS")]
    pub crash_after: Option<u64>,
    /// Fault: end with exit code 0 in the middle of the first request after this many.
    #[arg(long, value_name = "REQUESTS")]
    pub exit_zero_after: Option<u64>,
    /// Fault: stop decoding for good in the first request after this many; /health goes on answering 200.
    #[arg(long, value_name = "REQUESTS")]
    pub hang_after: Option<u64>,
    /// Fault: cut the connection in the middle of every request after this many.
    #[arg(long, value_name = "REQUESTS")]
    pub abort_stream_after: Option<u64>,
    /// Fault: answer with bytes that are neither JSON nor UTF-8 after this many requests.
    #[arg(long, value_name = "REQUESTS")]
    pub wrong_bytes_after: Option<u64>,
    /// Fault: `id_slot` has no effect.
    #[arg(long)]
    pub ignore_id_slot: bool,
    /// Fault: every reply says that nothing of the prompt was cached.
    #[arg(long)]
    pub hide_cached_tokens: bool,
    /// Fault: while others are served, a client that does not stream is served on after it has gone, as llama-server does.
    #[arg(long)]
    pub deaf_to_unstreamed: bool,
    /// Fault: neither SIGTERM nor SIGINT has an effect.
    #[arg(long)]
    pub ignore_sigterm: bool,
    /// Fault: start a process in a session of its own that outlives this one for an hour.
    #[arg(long)]
    pub spawn_grandchild: bool,
    /// Be that process.
    #[arg(long, hide = true)]
    pub grandchild: bool,
}

impl Settings {
    /// The engine they describe.
    pub fn engine(&self) -> EngineSetup {
        let slots = self.slots as usize;
        let host = self.cache_ram.saturating_mul(1 << 20) / self.kv_bytes_per_token.max(1);
        let whole = slots.saturating_mul(self.context as usize);
        #[expect(clippy::cast_possible_truncation, reason = "a similarity from 0 to 1, compared in the precision llama-server has")]
        let similarity = self.slot_prompt_similarity as f32;
        EngineSetup {
            slots,
            cache: match self.cache {
                CacheKind::Slots => CacheSetup::Slots(SlotRules {
                    similarity,
                    host_tokens: usize::try_from(host).unwrap_or(usize::MAX),
                    cache_idle_slots: self.cache_idle_slots,
                    unified_tokens: self.kv_unified.then_some(whole),
                }),
                CacheKind::SharedPool => CacheSetup::Pool { tokens: self.pool_tokens, block: BLOCK_TOKENS },
            },
            speed: Speed {
                prefill_micros: self.prefill_us_per_char * BYTES_PER_TOKEN as f64,
                decode_micros: self.decode_us_per_token as f64,
                batch_slowdown: self.batch_slowdown,
                copy_micros: self.copy_us_per_token,
            },
        }
    }
}
