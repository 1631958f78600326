//! Bytes as people read them. Decimal units, because disks, downloads and memory bars use them.

use crate::spec::MemoryNeed;

/// `8.1 GB`, `97 MB`, `12 kB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        1_000_000.. => format!("{:.0} MB", bytes as f64 / 1e6),
        1_000.. => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{bytes} B"),
    }
}

/// `weights 8.1 GB + KV 1.2 GB + compute 300 MB + host cache 1.0 GB = 10.6 GB`, without parts that are 0.
pub fn sum(need: &MemoryNeed) -> String {
    let parts = parts(need);
    if parts.contains('+') { format!("{parts} = {}", size(need.total_bytes())) } else { parts }
}

/// The parts alone.
pub fn parts(need: &MemoryNeed) -> String {
    [("weights", need.weights_bytes), ("KV", need.kv_bytes), ("compute", need.compute_bytes), ("host cache", need.host_cache_bytes)]
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{name} {}", size(*bytes)))
        .collect::<Vec<_>>()
        .join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well_at_every_scale() {
        for (bytes, text) in [(0, "0 B"), (999, "999 B"), (96_576_768, "97 MB"), (8_100_000_000, "8.1 GB"), (1_500, "2 kB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_sum_leaves_out_what_is_zero() {
        let need = MemoryNeed { weights_bytes: 8_100_000_000, kv_bytes: 1_200_000_000, ..MemoryNeed::default() };
        assert_eq!(sum(&need), "weights 8.1 GB + KV 1.2 GB = 9.3 GB");
    }
}
