//! The flags of `lifeboat sim-engine`. They are the operator's `extra_args` of a `sim` row.

use clap::Parser;

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
    #[arg(long, default_value_t = 5)]
    pub prefill_us_per_char: u64,
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
