//! A merge patch on a row's specification: a member replaces, `null` gives a field back to "auto". `generation` is not a field of the row but the generation the caller has seen.

use lifeboat_engines::spec::EngineSpec;
use serde_json::{Map, Value};

use crate::api::error::ApiError;
use crate::api::extract::read;
use crate::api::merge::merge;
use crate::ids::Generation;

/// Takes `generation` out of a patch.
pub fn take_generation(patch: &mut Map<String, Value>) -> Result<Option<Generation>, ApiError> {
    let Some(value) = patch.remove("generation") else { return Ok(None) };
    let number = value.as_i64().ok_or_else(|| ApiError::invalid("`generation` must be a whole number").field("generation"))?;
    Ok(Some(Generation(number)))
}

/// The specification with the patch applied. A field that is no part of a specification is refused by name.
pub fn apply(spec: &EngineSpec, patch: Map<String, Value>) -> Result<EngineSpec, ApiError> {
    let mut merged = serde_json::to_value(spec).map_err(|error| ApiError::internal(&error))?;
    merge(&mut merged, Value::Object(patch));
    read(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> EngineSpec {
        serde_json::from_value(value).unwrap()
    }

    fn patched(patch: &Value) -> Result<EngineSpec, ApiError> {
        let before =
            spec(json!({"model_name": "chat", "engine": "external", "url": "http://h", "api_key": "k", "slots": 4, "aliases": ["a"]}));
        apply(&before, patch.as_object().unwrap().clone())
    }

    #[test]
    fn a_member_replaces_null_means_auto_and_the_rest_stays_with_its_secret() {
        let after = patched(&json!({"slots": null, "context": 4096, "aliases": ["b", "c"]})).unwrap();
        let wanted = json!({"model_name": "chat", "engine": "external", "url": "http://h", "api_key": "k",
                            "context": 4096, "aliases": ["b", "c"]});
        assert_eq!(after, spec(wanted));
    }

    #[test]
    fn what_is_no_field_or_no_value_of_it_is_refused() {
        for (patch, text) in [
            (json!({"state": "ready"}), "unknown field `state`"),
            (json!({"slots": "many"}), "invalid type"),
            (json!({"model_name": null}), "missing field `model_name`"),
            (json!({"desired_state": "asleep"}), "asleep"),
        ] {
            let error = format!("{:?}", patched(&patch).unwrap_err());
            assert!(error.contains(text), "{patch}: {error}");
        }
    }

    #[test]
    fn the_generation_is_taken_out() {
        let mut patch = json!({"generation": 3, "slots": 1}).as_object().unwrap().clone();
        assert_eq!(take_generation(&mut patch), Ok(Some(Generation(3))));
        assert_eq!(take_generation(&mut patch), Ok(None));
        assert!(take_generation(json!({"generation": "x"}).as_object_mut().unwrap()).is_err());
    }
}
