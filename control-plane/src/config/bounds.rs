//! The bound of every number a setting may hold. One line a setting, so that the table reads as the
//! documentation of it.

use std::time::Duration;

use super::Config;

/// A setting outside of its bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {found}, it must be between {least} and {most}")]
pub struct OutOfBounds {
    /// `section.key`.
    pub setting: &'static str,
    /// As set.
    pub found: String,
    /// Smallest value.
    pub least: String,
    /// Largest value.
    pub most: String,
}

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

pub(super) fn check(config: &Config) -> Result<(), OutOfBounds> {
    let Config { http, gateway, supervisor, sources, .. } = config;
    for (setting, value, least, most) in [
        ("http.head_timeout", http.head_timeout, MILLISECOND, HOUR),
        ("http.first_head_timeout", http.first_head_timeout, MILLISECOND, HOUR),
        ("http.body_timeout", http.body_timeout, MILLISECOND, DAY),
        ("http.write_stall", http.write_stall, MILLISECOND, HOUR),
        ("http.stop_grace", http.stop_grace, Duration::ZERO, HOUR),
        ("gateway.queue_wait", gateway.queue_wait, MILLISECOND, DAY),
        ("gateway.cold_start_wait", gateway.cold_start_wait, MILLISECOND, DAY),
        ("gateway.connect", gateway.connect, MILLISECOND, HOUR),
        ("gateway.first_byte", gateway.first_byte, MILLISECOND, DAY),
        ("gateway.first_byte_per_mib", gateway.first_byte_per_mib, Duration::ZERO, DAY),
        ("gateway.between_chunks", gateway.between_chunks, MILLISECOND, DAY),
        ("gateway.total", gateway.total, MILLISECOND, 7 * DAY),
        ("gateway.heartbeat", gateway.heartbeat, MILLISECOND, HOUR),
        ("gateway.home_wait", gateway.home_wait, Duration::ZERO, HOUR),
        ("gateway.retry_notice", gateway.retry_notice, Duration::ZERO, HOUR),
        ("supervisor.lease", supervisor.lease, Duration::ZERO, 365 * DAY),
        ("supervisor.load_stall", supervisor.load_stall, MILLISECOND, DAY),
        ("supervisor.restart_backoff", supervisor.restart_backoff, MILLISECOND, HOUR),
        ("supervisor.restart_backoff_max", supervisor.restart_backoff_max, supervisor.restart_backoff, DAY),
        ("supervisor.cool_down", supervisor.cool_down, MILLISECOND, DAY),
        ("supervisor.stable_after", supervisor.stable_after, MILLISECOND, DAY),
        ("supervisor.drain", supervisor.drain, Duration::ZERO, DAY),
        ("supervisor.kill_after", supervisor.kill_after, MILLISECOND, HOUR),
        ("supervisor.probe_every", supervisor.probe_every, MILLISECOND, HOUR),
        ("supervisor.hang_after", supervisor.hang_after, supervisor.probe_every, DAY),
        ("supervisor.decode_stall", supervisor.decode_stall, MILLISECOND, DAY),
        ("supervisor.decode_silence", supervisor.decode_silence, supervisor.decode_stall, 7 * DAY),
        ("sources.connect", sources.connect, MILLISECOND, HOUR),
        ("sources.tool_stall", sources.tool_stall, MILLISECOND, DAY),
        ("sources.retry_failed_build", sources.retry_failed_build, Duration::ZERO, 365 * DAY),
        ("sources.stall", sources.stall, MILLISECOND, HOUR),
        ("sources.retry_backoff", sources.retry_backoff, MILLISECOND, HOUR),
    ] {
        within(setting, [value, least, most], |value| format!("{value:?}"))?;
    }
    within("gateway.retry_share", [gateway.retry_share, 0.0, 16.0], ToString::to_string)?;
    for (setting, value, least, most) in [
        ("http.max_connections", http.max_connections as u64, 8, 65_536),
        ("http.max_connections_per_peer", http.max_connections_per_peer as u64, 1, 65_536),
        ("http.max_headers", http.max_headers as u64, 16, 1024),
        ("http.max_head_bytes", http.max_head_bytes as u64, 8 << 10, MIB),
        ("http.max_api_body_bytes", http.max_api_body_bytes as u64, 4 << 10, 64 * MIB),
        ("http.event_ring", http.event_ring as u64, 16, 65_536),
        ("http.ended_jobs", http.ended_jobs as u64, 1, 4096),
        ("http.running_jobs", http.running_jobs as u64, 1, 256),
        ("gateway.max_body_bytes", gateway.max_body_bytes as u64, 1 << 10, TIB),
        ("gateway.max_held_bytes", gateway.max_held_bytes as u64, gateway.max_body_bytes as u64, TIB),
        ("gateway.queue_per_slot", gateway.queue_per_slot as u64, 1, 65_536),
        ("gateway.light_per_row", gateway.light_per_row.into(), 1, 65_536),
        ("gateway.retries", gateway.retries.into(), 0, 16),
        ("gateway.retry_floor", gateway.retry_floor.into(), 0, 65_536),
        ("gateway.reply_buffer_bytes", gateway.reply_buffer_bytes as u64, 0, TIB),
        ("gateway.whole_reply_bytes", gateway.whole_reply_bytes as u64, 64 << 10, TIB),
        ("gateway.request_log_max_rows", gateway.request_log_max_rows, 0, 100_000_000),
        ("gateway.request_log_max_days", gateway.request_log_max_days.into(), 1, 3650),
        ("gateway.usage_max_days", gateway.usage_max_days.into(), 1, 3650),
        ("gateway.resumes", gateway.resumes.into(), 0, 16),
        ("gateway.resume_bytes", gateway.resume_bytes as u64, 0, TIB),
        ("gateway.prefix_index_bytes", gateway.prefix_index_bytes as u64, 64 << 10, 4096 * MIB),
        ("gateway.conversations", gateway.conversations as u64, 64, 16_777_216),
        ("telemetry.otlp_queue", config.telemetry.otlp_queue as u64, 1, 1_048_576),
        ("sources.attempts", sources.attempts as u64, 1, 1000),
        ("sources.disk_margin_bytes", sources.disk_margin_bytes, 0, TIB),
        ("supervisor.restart_limit", supervisor.restart_limit.into(), 1, 1000),
        ("supervisor.log_rotate_bytes", supervisor.log_rotate_bytes, 64 << 10, TIB),
        ("supervisor.memory_limit_bytes", supervisor.memory_limit_bytes, 0, 1024 * TIB),
        ("supervisor.log_keep", supervisor.log_keep.into(), 0, 100),
    ] {
        within(setting, [value, least, most], ToString::to_string)?;
    }
    Ok(())
}

fn within<T: PartialOrd>(setting: &'static str, [value, least, most]: [T; 3], show: impl Fn(&T) -> String) -> Result<(), OutOfBounds> {
    if least <= value && value <= most {
        return Ok(());
    }
    Err(OutOfBounds { setting, found: show(&value), least: show(&least), most: show(&most) })
}
