//! What a llama.cpp log line tells about the load. Only hints: readiness is decided by the health path.

/// Lines in the order they appear, each with the part of the load that is over then.
const MARKERS: [(&str, f32); 8] = [
    ("listening on", 1.0),
    ("model loaded", 1.0),
    ("initializing, n_slots", 0.97),
    ("warming up", 0.95),
    ("load_tensors:", 0.1),
    ("loaded meta data", 0.05),
    ("loading model", 0.02),
    ("main: loading", 0.02),
];

/// A fraction 0..=1, where the line tells one. A row of dots is the load itself: 100 dots are the whole of it.
pub fn load_progress(line: &str) -> Option<f32> {
    let text = line.trim();
    if text.len() >= 3 && text.bytes().all(|byte| byte == b'.') {
        return Some(0.1 + 0.8 * (text.len().min(100) as f32 / 100.0));
    }
    MARKERS.iter().find(|(marker, _)| text.contains(marker)).map(|(_, fraction)| *fraction)
}
