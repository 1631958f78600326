//! Extra engine arguments an operator may write: an allow-list, with the field to use instead where there is one.
//!
//! Nothing here opens a file, a port, a network connection or a tool. The list is by llama-server b11434; a
//! name a build does not know is found by the engine itself, and [`crate::diagnose`] says so.

use crate::spec::SpecError;
use crate::validate::refuse;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Nothing.
    Nothing,
    /// A number, or numbers with commas.
    Number,
    /// One word from a fixed set.
    Word,
    /// Text that the engine reads as it is.
    Text,
}

use Takes::{Nothing, Number, Text, Word};

/// Flags that pass, all names of each.
const ALLOWED: &[(&[&str], Takes)] = &[
    // computing
    (&["-tb", "--threads-batch"], Number),
    (&["-C", "--cpu-mask"], Word),
    (&["-Cr", "--cpu-range"], Word),
    (&["--cpu-strict"], Number),
    (&["--prio"], Number),
    (&["--prio-batch"], Number),
    (&["--poll"], Number),
    (&["--poll-batch"], Number),
    (&["--numa"], Word),
    (&["-b", "--batch-size"], Number),
    (&["-ub", "--ubatch-size"], Number),
    (&["-fa", "--flash-attn"], Word),
    (&["--perf"], Nothing),
    (&["--no-perf"], Nothing),
    (&["--repack"], Nothing),
    (&["-nr", "--no-repack"], Nothing),
    (&["--op-offload"], Nothing),
    (&["--no-op-offload"], Nothing),
    (&["--no-host"], Nothing),
    (&["--check-tensors"], Nothing),
    (&["--warmup"], Nothing),
    (&["--no-warmup"], Nothing),
    (&["-cb", "--cont-batching"], Nothing),
    (&["-nocb", "--no-cont-batching"], Nothing),
    (&["-bs", "--backend-sampling"], Nothing),
    // placing
    (&["-sm", "--split-mode"], Word),
    (&["-ts", "--tensor-split"], Number),
    (&["-mg", "--main-gpu"], Number),
    (&["-ot", "--override-tensor"], Text),
    (&["-cmoe", "--cpu-moe"], Nothing),
    (&["-ncmoe", "--n-cpu-moe"], Number),
    (&["-ncffn", "--n-cpu-ffn"], Number),
    (&["-kvo", "--kv-offload"], Nothing),
    (&["-nkvo", "--no-kv-offload"], Nothing),
    (&["-lm", "--load-mode"], Word),
    (&["-lzm", "--lazy-mode"], Word),
    (&["--mmap"], Nothing),
    (&["--no-mmap"], Nothing),
    (&["--mlock"], Nothing),
    (&["-fitt", "--fit-target"], Number),
    (&["--mmproj-offload"], Nothing),
    (&["--no-mmproj-offload"], Nothing),
    (&["-mmdev", "--mmproj-device"], Word),
    // cache
    (&["--swa-full"], Nothing),
    (&["-cms", "--checkpoint-min-step"], Number),
    (&["--context-shift"], Nothing),
    (&["--no-context-shift"], Nothing),
    (&["--cache-prompt"], Nothing),
    (&["--no-cache-prompt"], Nothing),
    (&["--cache-reuse"], Number),
    (&["--cache-idle-slots"], Nothing),
    (&["-sps", "--slot-prompt-similarity"], Number),
    (&["--keep"], Number),
    // model
    (&["--override-kv"], Text),
    (&["--rope-scaling"], Word),
    (&["--rope-scale"], Number),
    (&["--rope-freq-base"], Number),
    (&["--rope-freq-scale"], Number),
    (&["--yarn-orig-ctx"], Number),
    (&["--yarn-ext-factor"], Number),
    (&["--yarn-attn-factor"], Number),
    (&["--yarn-beta-slow"], Number),
    (&["--yarn-beta-fast"], Number),
    (&["--pooling"], Word),
    (&["--attention"], Word),
    (&["--embd-normalize"], Number),
    (&["--image-min-tokens"], Number),
    (&["--image-max-tokens"], Number),
    (&["--mtmd-batch-max-tokens"], Number),
    // talking
    (&["--jinja"], Nothing),
    (&["--no-jinja"], Nothing),
    (&["--chat-template"], Text),
    (&["--chat-template-kwargs"], Text),
    (&["--skip-chat-parsing"], Nothing),
    (&["--prefill-assistant"], Nothing),
    (&["--no-prefill-assistant"], Nothing),
    (&["--reasoning-format"], Word),
    (&["-rea", "--reasoning"], Word),
    (&["--reasoning-effort"], Word),
    (&["--reasoning-budget"], Number),
    (&["--reasoning-budget-message"], Text),
    (&["--reasoning-preserve"], Nothing),
    (&["--no-reasoning-preserve"], Nothing),
    (&["-sp", "--special"], Nothing),
    (&["--spm-infill"], Nothing),
    // sampling defaults
    (&["-n", "--predict", "--n-predict"], Number),
    (&["-s", "--seed"], Number),
    (&["--samplers"], Text),
    (&["--sampler-seq", "--sampling-seq"], Word),
    (&["--ignore-eos"], Nothing),
    (&["--temp", "--temperature"], Number),
    (&["--top-k"], Number),
    (&["--top-p"], Number),
    (&["--min-p"], Number),
    (&["--top-nsigma", "--top-n-sigma"], Number),
    (&["--xtc-probability"], Number),
    (&["--xtc-threshold"], Number),
    (&["--typical", "--typical-p"], Number),
    (&["--repeat-last-n"], Number),
    (&["--repeat-penalty"], Number),
    (&["--presence-penalty"], Number),
    (&["--frequency-penalty"], Number),
    (&["--dry-multiplier"], Number),
    (&["--dry-base"], Number),
    (&["--dry-allowed-length"], Number),
    (&["--dry-penalty-last-n"], Number),
    (&["--dry-sequence-breaker"], Text),
    (&["--adaptive-target"], Number),
    (&["--adaptive-decay"], Number),
    (&["--dynatemp-range"], Number),
    (&["--dynatemp-exp"], Number),
    (&["--mirostat"], Number),
    (&["--mirostat-lr"], Number),
    (&["--mirostat-ent"], Number),
    (&["-l", "--logit-bias"], Text),
    (&["--grammar"], Text),
    (&["-j", "--json-schema"], Text),
    // speculation without a second model file
    (&["--spec-type"], Word),
    (&["--spec-default"], Nothing),
    (&["--spec-draft-n-max"], Number),
    (&["--spec-draft-n-min"], Number),
    (&["--spec-draft-p-min", "--draft-p-min"], Number),
    (&["--spec-draft-p-split", "--draft-p-split"], Number),
    (&["--spec-ngram-mod-n-min"], Number),
    (&["--spec-ngram-mod-n-max"], Number),
    (&["--spec-ngram-mod-n-match"], Number),
    (&["--spec-ngram-simple-size-n"], Number),
    (&["--spec-ngram-simple-size-m"], Number),
    (&["--spec-ngram-simple-min-hits"], Number),
    (&["--spec-ngram-map-k-size-n"], Number),
    (&["--spec-ngram-map-k-size-m"], Number),
    (&["--spec-ngram-map-k-min-hits"], Number),
    (&["--spec-ngram-map-k4v-size-n"], Number),
    (&["--spec-ngram-map-k4v-size-m"], Number),
    (&["--spec-ngram-map-k4v-min-hits"], Number),
    // serving
    (&["-to", "--timeout"], Number),
    (&["--threads-http"], Number),
    (&["--tags"], Text),
    (&["-v", "--verbose", "--log-verbose"], Nothing),
    (&["-lv", "--verbosity", "--log-verbosity"], Number),
    (&["--log-prefix"], Nothing),
    (&["--no-log-prefix"], Nothing),
    (&["--log-timestamps"], Nothing),
    (&["--no-log-timestamps"], Nothing),
];

/// Flags Lifeboat sets itself: refused even from an operator who opened the list, since the supervisor, the
/// gateway and the accounting rely on them. Each with what to use instead.
const OWNED: &[(&[&str], &str)] = &[
    (&["--host", "--port", "--reuse-port", "--api-prefix"], "engines listen where the supervisor says"),
    (&["--api-key", "--api-key-file"], "engines get a random key; callers use Lifeboat's keys"),
    (&["--ssl-key-file", "--ssl-cert-file"], "engines speak plain HTTP on loopback"),
    (
        &["-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token"],
        "use the field `model`",
    ),
    (&["-a", "--alias"], "use the fields `model_name` and `aliases`"),
    (&["-c", "--ctx-size"], "use the field `context`"),
    (&["-np", "--parallel"], "use the field `slots`"),
    (&["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified", "--kv-unified-per-slot"], "each slot owns its context"),
    (&["-t", "--threads"], "use the field `threads`"),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], "use the field `gpu_layers`"),
    (&["-dev", "--device"], "use the field `devices`"),
    (&["-ctk", "--cache-type-k"], "use the field `cache_type_k`"),
    (&["-ctv", "--cache-type-v"], "use the field `cache_type_v`"),
    (&["--embedding", "--embeddings", "--rerank", "--reranking"], "use the field `task`"),
    (&["-cram", "--cache-ram", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-fit", "--fit"], "Lifeboat sizes memory"),
    (&["--sleep-idle-seconds"], "use `desired_state` on_demand and `idle_seconds`"),
    (&["--models-dir", "--models-preset", "--models-max"], "one row serves one model"),
];

/// Checks the extra arguments of a row.
pub fn check(arguments: &[String], open: bool) -> Result<(), SpecError> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let name = argument.split('=').next().unwrap_or(argument);
        if let Some((_, instead)) = OWNED.iter().find(|(names, _)| names.contains(&name)) {
            return Err(refuse("extra_args", format!("`{name}` is set by Lifeboat"), *instead));
        }
        if open {
            continue;
        }
        let Some((_, takes)) = ALLOWED.iter().find(|(names, _)| names.contains(&argument.as_str())) else {
            return Err(not_allowed(argument));
        };
        if *takes != Nothing {
            check_value(argument, *takes, rest.next())?;
        }
    }
    Ok(())
}

fn not_allowed(argument: &str) -> SpecError {
    let hint = if argument.contains('=') && argument.starts_with('-') {
        "the engine takes flag and value as two arguments"
    } else {
        "allowed are flags that open no file, port or tool; the setting open_engine_arguments lifts this list"
    };
    let shown: String = argument.chars().take(80).collect();
    refuse("extra_args", format!("`{shown}` is not on the list of allowed engine arguments"), hint)
}

fn check_value(flag: &str, takes: Takes, value: Option<&String>) -> Result<(), SpecError> {
    let Some(value) = value else {
        return Err(refuse("extra_args", format!("`{flag}` wants a value"), "write flag and value as two arguments"));
    };
    let fine = match takes {
        Nothing => true,
        Number => !value.is_empty() && value.split(',').all(|part| part.parse::<f64>().is_ok_and(f64::is_finite)),
        Word => {
            (1..=256).contains(&value.len())
                && value.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_+.,".contains(letter))
                && !value.starts_with('-')
        }
        Text => !value.is_empty(),
    };
    if fine {
        return Ok(());
    }
    let wanted = match takes {
        Number => "a number",
        Word => "a word",
        Nothing | Text => "a text",
    };
    Err(refuse("extra_args", format!("`{flag}` wants {wanted}"), "write flag and value as two arguments"))
}
