//! Hostile request bodies: what is read agrees with a full parser, and a splice changes nothing but the model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lifeboat_engines::dialect::{peek, splice_model};
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = peek(bytes) else { return };
    // The reader skips deeper nesting than the full parser accepts.
    let Ok(mut whole) = serde_json::from_slice::<Value>(bytes) else { return };
    assert_eq!(found.model.as_ref().map(|(name, _)| name.as_str()), whole["model"].as_str());
    assert_eq!(found.stream, whole["stream"] == true);
    if let Some((_, span)) = &found.model {
        let spliced: Value = serde_json::from_slice(&splice_model(bytes, span, "other \"name\"")).expect("still JSON");
        whole["model"] = "other \"name\"".into();
        assert_eq!(spliced, whole);
    }
});
