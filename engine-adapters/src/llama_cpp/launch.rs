//! The argument list and the environment of one llama.cpp engine.
//!
//! Flags a launch may hold (the pip package's launcher maps exactly these, beside a row's extra arguments):
//!
//! | flag | value | when |
//! |---|---|---|
//! | `--host` `--port` | 127.0.0.1, N | always |
//! | `--model` `--alias` | path, the row's `model_name` | always |
//! | `--mmproj` | path | a projector lies beside the model |
//! | `--ctx-size` | context of a slot (rounded up to 256) x slots | always |
//! | `--parallel` | slots | always |
//! | `--no-kv-unified` | | always; each slot owns its context, none can starve another |
//! | `--threads` | N | always |
//! | `--batch-size` `--ubatch-size` | N | embedding and rerank rows: an input must fit one batch |
//! | `--slot-prompt-similarity` | 0.8 | chat; keeps sessions that share a system prompt on slots of their own |
//! | `--no-cache-idle-slots` | | chat; an idle slot keeps its conversation |
//! | `--cache-ram` | MiB | always; 0 = off |
//! | `--ctx-checkpoints` | N | sliding-window and recurrent models |
//! | `--cache-type-k` `--cache-type-v` | type | where not f16 |
//! | `--n-gpu-layers` | N | the build has devices and the number of layers is decided here |
//! | `--device` | names, comma separated | the build has devices and the row names some |
//! | `--fit` | `off`, or `on` where the engine splits a model between devices and host | always |
//! | `--embeddings` | | embedding rows |
//! | `--pooling` | mean | embedding rows whose model does not say |
//! | `--rerank` | | rerank rows |
//! | `--jinja` | | chat |
//! | `--metrics` `--slots` | | always |
//! | `--no-ui` | | always |
//! | `--offline` | | always |
//! | `--sse-ping-interval` | 2 | always; how soon a stopped engine lets go of open streams |
//! | `--cors-origins` `--no-cors-credentials` | an origin that cannot exist | always; browsers are kept out |
//!
//! `--load-mode` and the older `--mmap` family are left to the engine's default (mapped files), which every
//! version has under one name or the other. A flag that the build's `--help` does not list is left out, except
//! those without which the engine would do something else than the row says.
//!
//! `--fit off`: the numbers are decided by [`crate::sizing`], which knows the control group; the engine's own
//! fitting would load the model twice and compare with all memory of the machine.
//!
//! The key goes into the environment (`LLAMA_API_KEY`): argument lists can be read by every user.

use crate::sizing::need::{MAX_VECTOR_BATCH, UBATCH, cells};
use crate::spec::{Build, CacheType, LaunchInput, LaunchPlan, Task};

/// An origin no browser can have (RFC 2606 keeps `.invalid` free).
const NO_ORIGIN: &str = "https://closed.invalid";
/// Seconds between the comment lines of a stream.
const SSE_PING_SECONDS: &str = "2";
/// Share of a prompt that must match for a slot to be chosen by its content (ROUTING 1.8).
const SLOT_SIMILARITY: &str = "0.8";
/// Search path of the engine: it starts no programs of its own, but its loader may.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An argument list that knows which flags the build has.
struct Arguments<'a> {
    build: &'a Build,
    list: Vec<String>,
}

impl Arguments<'_> {
    /// A build that was not probed is assumed to have the current set.
    fn knows(&self, flag: &str) -> bool {
        self.build.flags.is_empty() || self.build.flags.iter().any(|known| known.trim_start_matches('-') == flag.trim_start_matches('-'))
    }

    fn always(&mut self, flag: &str, value: impl Into<String>) {
        self.list.extend([flag.to_owned(), value.into()]);
    }

    fn if_known(&mut self, flag: &str, value: Option<&str>) {
        if self.knows(flag) {
            self.list.push(flag.to_owned());
            self.list.extend(value.map(str::to_owned));
        }
    }

    /// The first of several names of one flag that the build knows.
    fn first_known(&mut self, flags: &[&str]) {
        if let Some(flag) = flags.iter().find(|flag| self.knows(flag)) {
            self.list.push((*flag).to_owned());
        }
    }
}

/// The process to start.
pub fn plan(input: &LaunchInput<'_>) -> LaunchPlan {
    let mut arguments = Arguments { build: input.build, list: input.build.prefix_args.clone() };
    serving(&mut arguments, input);
    memory(&mut arguments, input);
    task(&mut arguments, input);
    // The row's own arguments come last: where the engine takes a flag twice, the last one counts.
    arguments.list.extend(input.spec.extra_args.iter().cloned());
    LaunchPlan { program: input.build.program.clone(), args: arguments.list, env: environment(input) }
}

fn serving(arguments: &mut Arguments<'_>, input: &LaunchInput<'_>) {
    arguments.always("--host", "127.0.0.1");
    arguments.always("--port", input.port.to_string());
    if let Some(path) = input.model_path {
        arguments.always("--model", path.display().to_string());
    }
    if let Some(path) = input.mmproj_path {
        arguments.always("--mmproj", path.display().to_string());
    }
    arguments.always("--alias", &input.spec.model_name);
    for flag in ["--metrics", "--slots"] {
        arguments.if_known(flag, None);
    }
    arguments.first_known(&["--no-ui", "--no-webui"]);
    arguments.if_known("--offline", None);
    arguments.if_known("--sse-ping-interval", Some(SSE_PING_SECONDS));
    arguments.if_known("--cors-origins", Some(NO_ORIGIN));
    arguments.if_known("--no-cors-credentials", None);
}

fn memory(arguments: &mut Arguments<'_>, input: &LaunchInput<'_>) {
    let resolved = input.resolved;
    arguments.always("--ctx-size", cells(resolved.context).saturating_mul(resolved.slots).to_string());
    arguments.always("--parallel", resolved.slots.to_string());
    arguments.if_known("--no-kv-unified", None);
    arguments.always("--threads", resolved.threads.to_string());
    arguments.if_known("--cache-ram", Some(&resolved.host_cache_mib.to_string()));
    if resolved.context_checkpoints > 0 {
        arguments.if_known("--ctx-checkpoints", Some(&resolved.context_checkpoints.to_string()));
    }
    for (flag, format) in [("--cache-type-k", resolved.cache_type_k), ("--cache-type-v", resolved.cache_type_v)] {
        if format != CacheType::F16 {
            arguments.always(flag, format.as_str());
        }
    }
    // A build for the CPU alone has nothing to choose from, and would warn about layers.
    let has_devices = !input.build.devices.is_empty();
    if let Some(devices) = input.spec.devices.as_ref().filter(|_| has_devices) {
        arguments.always("--device", devices.join(","));
    }
    arguments.if_known("--fit", Some(if resolved.gpu_layers.is_none() { "on" } else { "off" }));
    if let Some(layers) = resolved.gpu_layers.filter(|_| has_devices) {
        arguments.always("--n-gpu-layers", layers.to_string());
    }
}

fn task(arguments: &mut Arguments<'_>, input: &LaunchInput<'_>) {
    match input.resolved.task {
        Task::Chat => {
            arguments.if_known("--jinja", None);
            arguments.if_known("--slot-prompt-similarity", Some(SLOT_SIMILARITY));
            arguments.if_known("--no-cache-idle-slots", None);
        }
        Task::Embedding => {
            arguments.always_alone("--embeddings");
            if let Some(pooling) = &input.resolved.pooling {
                arguments.always("--pooling", pooling);
            }
        }
        Task::Rerank => arguments.always_alone("--rerank"),
    }
    if input.resolved.task != Task::Chat {
        let batch = cells(input.resolved.context).clamp(UBATCH, MAX_VECTOR_BATCH).to_string();
        arguments.always("--batch-size", batch.clone());
        arguments.always("--ubatch-size", batch);
    }
}

impl Arguments<'_> {
    fn always_alone(&mut self, flag: &str) {
        self.list.push(flag.to_owned());
    }
}

/// The whole environment. A build's own entries win; without HOME the engine may crash while it reads its
/// arguments (ENGINES trap 10).
fn environment(input: &LaunchInput<'_>) -> Vec<(String, String)> {
    let home = input.home.display().to_string();
    let mut env = vec![
        ("HOME".to_owned(), home),
        ("PATH".to_owned(), PATH.to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("LLAMA_API_KEY".to_owned(), input.api_key.to_owned()),
    ];
    env.retain(|(name, _)| !input.build.env.iter().any(|(other, _)| other == name));
    env.extend(input.build.env.iter().cloned());
    env
}
