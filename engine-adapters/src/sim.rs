//! Adapter of the engine kind `sim`: the simulated engine, for timing, faults and scale without a model.
//!
//! It is this same binary started as `lifeboat sim-engine`; the engine store hands it in as a build. Its
//! timing and faults are asked for by extra arguments, all of them in [`FLAGS`]; nothing else is let through.

use std::collections::BTreeSet;

use crate::EngineAdapter;
use crate::host::HostFacts;
use crate::model::ModelFacts;
use crate::sizing::show::{self, size};
use crate::sizing::{Pool, Shortage, SizingError};
use crate::spec::{
    CacheType, Capabilities, EngineKind, EngineSpec, Health, LaunchInput, LaunchPlan, MemoryNeed, Resolved, SpecError, Task,
};
use crate::validate::{check_common, refuse};

/// Requests at once where the row does not say.
const DEFAULT_SLOTS: u32 = 4;
/// Context of a slot where the row does not say.
const DEFAULT_CONTEXT: u32 = 4096;
/// What the process takes: a few megabytes, rounded up.
const MEMORY_BYTES: u64 = 16 << 20;
/// What a remembered token really takes: four bytes of text, and what text costs around it, rounded up.
const BYTES_PER_TOKEN: u64 = 64;
/// `--cache-ram` where the row does not say, MiB.
const DEFAULT_CACHE_RAM: u64 = 8192;
/// `--kv-bytes-per-token` where the row does not say.
const DEFAULT_KV_BYTES: u64 = 131_072;

/// What follows a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    None,
    /// A plain non-negative number.
    Number,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// The flags of the simulated engine a row may use, and what follows each.
pub const FLAGS: [(&str, Value); 28] = [
    ("--prefill-us-per-char", Value::Number),
    ("--decode-us-per-token", Value::Number),
    ("--batch-slowdown", Value::Number),
    ("--load-ms", Value::Number),
    ("--tokens", Value::Number),
    ("--cache", Value::Word(&["slots", "shared-pool"])),
    ("--cache-ram", Value::Number),
    ("--kv-bytes-per-token", Value::Number),
    ("--cache-idle-slots", Value::None),
    ("--kv-unified", Value::None),
    ("--copy-us-per-token", Value::Number),
    ("--pool-tokens", Value::Number),
    ("--early-head", Value::None),
    ("--chat-only", Value::None),
    ("--crash-after", Value::Number),
    ("--crash-at-start", Value::None),
    ("--exit-zero-after", Value::Number),
    ("--hang-after", Value::Number),
    ("--wrong-bytes-after", Value::Number),
    ("--abort-stream-after", Value::Number),
    ("--ignore-sigterm", Value::None),
    ("--ignore-id-slot", Value::None),
    ("--hide-cached-tokens", Value::None),
    ("--deaf-to-unstreamed", Value::None),
    ("--memory-mib", Value::Number),
    ("--slot-prompt-similarity", Value::Number),
    ("--stall-load", Value::None),
    ("--spawn-grandchild", Value::None),
];

/// The adapter.
#[derive(Debug, Clone, Copy)]
pub struct Sim;

impl EngineAdapter for Sim {
    fn kind(&self) -> EngineKind {
        EngineKind::Sim
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { needs_build: true, needs_model: false, health_path: "/health", props_path: None }
    }

    fn validate(&self, spec: &EngineSpec, _open_arguments: bool) -> Result<(), SpecError> {
        check_common(spec)?;
        check_flags(&spec.extra_args)
    }

    fn resolve(&self, spec: &EngineSpec, _model: Option<&ModelFacts>, host: &HostFacts) -> Result<Resolved, SizingError> {
        let slots = spec.slots.unwrap_or(DEFAULT_SLOTS);
        let context = spec.context.unwrap_or(DEFAULT_CONTEXT);
        let remembered = u64::from(context) * u64::from(slots) * BYTES_PER_TOKEN;
        let host_tokens = (flag(spec, "--cache-ram").unwrap_or(DEFAULT_CACHE_RAM) << 20)
            / flag(spec, "--kv-bytes-per-token").unwrap_or(DEFAULT_KV_BYTES).max(1);
        let host_cache_mib = (host_tokens * BYTES_PER_TOKEN).div_ceil(1 << 20);
        let memory = MemoryNeed {
            weights_bytes: flag(spec, "--memory-mib").unwrap_or(0) << 20,
            compute_bytes: MEMORY_BYTES,
            kv_bytes: remembered,
            host_cache_bytes: host_cache_mib << 20,
        };
        let (total, free) = (memory.total_bytes(), host.memory.available_bytes);
        if total > free {
            return Err(SizingError::DoesNotFit {
                arithmetic: format!("{} > {} free ({})", show::sum(&memory), size(free), host.memory.source),
                hint: "fits with a smaller --memory-mib, fewer slots or a smaller context".into(),
                short: Shortage { bytes: total - free, of: Pool::Host },
            });
        }
        let said = |given: bool| if given { "as the row says" } else { "the simulated engine's default" };
        Ok(Resolved {
            task: spec.task.unwrap_or(Task::Chat),
            context,
            slots,
            threads: 0,
            gpu_layers: Some(0),
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            host_cache_mib: u32::try_from(host_cache_mib).unwrap_or(u32::MAX),
            context_checkpoints: 0,
            pooling: None,
            memory,
            arithmetic: vec![
                format!("slots {slots}: {}", said(spec.slots.is_some())),
                format!("context {context} per slot: {}", said(spec.context.is_some())),
                format!("memory: 17 MB for the process and {BYTES_PER_TOKEN} bytes for a token of {slots} x {context}, no model is loaded"),
                format!("host cache: {host_tokens} tokens by --cache-ram and --kv-bytes-per-token, really {host_cache_mib} MiB"),
            ],
        })
    }

    fn launch(&self, input: &LaunchInput<'_>) -> LaunchPlan {
        let mut args = input.build.prefix_args.clone();
        for (flag, value) in [
            ("--port", input.port.to_string()),
            ("--slots", input.resolved.slots.to_string()),
            ("--context", input.resolved.context.to_string()),
            ("--model", input.spec.model_name.clone()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        args.extend(input.spec.extra_args.iter().cloned());
        let mut env = vec![
            ("LIFEBOAT_SIM_API_KEY".to_owned(), input.api_key.to_owned()),
            ("HOME".to_owned(), input.home.display().to_string()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ];
        env.extend(input.build.env.iter().cloned());
        LaunchPlan { program: input.build.program.clone(), args, env }
    }

    fn read_health(&self, status: u16, _body: &[u8]) -> Health {
        match status {
            200 => Health::Ready,
            503 => Health::Loading,
            _ => Health::Broken,
        }
    }

    fn read_load_progress(&self, line: &str) -> Option<f32> {
        let (_, rest) = line.split_once("load progress: ")?;
        rest.trim_end().strip_suffix('%')?.parse::<f32>().ok().map(|percent| percent / 100.0)
    }
}

/// The number behind a flag of the row.
fn flag(spec: &EngineSpec, name: &str) -> Option<u64> {
    let at = spec.extra_args.iter().position(|argument| argument == name)?;
    spec.extra_args.get(at + 1)?.parse().ok()
}

/// Each flag known, once, with what is to follow it.
fn check_flags(arguments: &[String]) -> Result<(), SpecError> {
    let known = || FLAGS.map(|(flag, _)| flag).join(", ");
    let mut seen = BTreeSet::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some((flag, value)) = FLAGS.iter().find(|(flag, _)| flag == argument) else {
            return Err(refuse("extra_args", format!("`{argument}` is no flag of the simulated engine"), format!("it knows {}", known())));
        };
        if !seen.insert(flag) {
            return Err(refuse("extra_args", format!("`{flag}` is there twice"), "name each flag once"));
        }
        match value {
            Value::None => {}
            Value::Number => {
                let number = rest.next().and_then(|value| value.parse::<f64>().ok());
                if !number.is_some_and(|number| (0.0..=1e9).contains(&number)) {
                    return Err(refuse("extra_args", format!("`{flag}` wants a number"), "write flag and value as two arguments"));
                }
            }
            Value::Word(words) => {
                if !rest.next().is_some_and(|value| words.contains(&value.as_str())) {
                    return Err(refuse("extra_args", format!("`{flag}` wants a word"), format!("one of {}", words.join(", "))));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::spec::Build;
    use crate::validate::tests::row;

    fn with_args(arguments: &[&str]) -> EngineSpec {
        let mut spec = row("sim");
        spec.extra_args = arguments.iter().map(ToString::to_string).collect();
        spec
    }

    #[test]
    fn fault_flags_pass_and_anything_else_is_refused() {
        for good in [
            &["--load-ms", "500"][..],
            &["--ignore-sigterm", "--tokens", "8"],
            &["--batch-slowdown", "0.25"],
            &["--cache", "shared-pool"],
            &[],
        ] {
            assert_eq!(Sim.validate(&with_args(good), false), Ok(()), "{good:?}");
        }
        for bad in [
            &["--port", "1"][..],
            &["--tokens"],
            &["--tokens", "x"],
            &["--tokens", "-1"],
            &["--cache", "all"],
            &["--cache"],
            &["--stall-load", "--stall-load"],
            &["x"],
        ] {
            assert_eq!(Sim.validate(&with_args(bad), true).unwrap_err().field, "extra_args", "{bad:?}");
        }
    }

    #[test]
    fn the_launch_names_port_slots_context_and_model_and_hides_the_key_in_the_environment() {
        let spec = with_args(&["--load-ms", "5"]);
        let build = Build {
            id: "sim-builtin".into(),
            engine: EngineKind::Sim,
            version: "0.1.0".into(),
            program: "/bin/lifeboat".into(),
            prefix_args: vec!["sim-engine".into()],
            env: vec![],
            flags: vec![],
            devices: vec![],
            takes_slot: true,
        };
        let host = crate::sizing::tests::host(8, 4);
        let resolved = Sim.resolve(&spec, None, &host).unwrap();
        let plan = Sim.launch(&LaunchInput {
            spec: &spec,
            resolved: &resolved,
            build: &build,
            model_path: None,
            mmproj_path: None,
            port: 4000,
            api_key: "secret",
            home: Path::new("/h"),
        });
        let args = plan.args.join(" ");
        assert_eq!(args, "sim-engine --port 4000 --slots 4 --context 4096 --model chat --load-ms 5");
        assert!(plan.env.contains(&("LIFEBOAT_SIM_API_KEY".into(), "secret".into())));
    }

    #[test]
    fn the_host_cache_is_as_many_tokens_as_the_flags_say() {
        let host = crate::sizing::tests::host(8, 4);
        for (arguments, tokens) in [
            (&[][..], 65_536_u64),
            (&["--cache-ram", "2048"], 16_384),
            (&["--cache-ram", "0"], 0),
            (&["--kv-bytes-per-token", "65536"], 131_072),
        ] {
            let resolved = Sim.resolve(&with_args(arguments), None, &host).unwrap();
            let per_token = resolved.memory.kv_bytes / (u64::from(resolved.context) * u64::from(resolved.slots));
            assert_eq!((u64::from(resolved.host_cache_mib) << 20) / per_token, tokens, "{arguments:?}");
        }
    }

    #[test]
    fn the_log_tells_how_far_the_load_is() {
        for (line, expected) in [
            ("0.01.223.424 I load load progress: 85%", Some(0.85)),
            ("0.01.223.424 I load load progress: 100%", Some(1.0)),
            ("0.01.223.424 I srv  llama_server: model loaded", None),
        ] {
            assert_eq!(Sim.read_load_progress(line), expected, "{line}");
        }
    }
}
