//! One function a cause; the first that recognises a death tells it.

use super::{Death, Diagnosis};
use crate::catalog::rules::vector_level;
use crate::host::CpuFacts;

/// Longest line of an engine's that is shown, characters.
const MAX_SHOWN: usize = 300;

/// All causes, the most telling first.
pub(super) const ALL: [fn(&Death<'_>) -> Option<Diagnosis>; 12] = [
    missing_library,
    old_c_library,
    python_import,
    unknown_argument,
    port_taken,
    driver_or_device,
    illegal_instruction,
    out_of_memory,
    model_not_loaded,
    killed,
    heap_damage,
    stopped,
];

#[expect(clippy::unnecessary_wraps, reason = "it ends functions that answer with an option")]
fn found(cause: impl Into<String>, hint: impl Into<String>, wrong_build: bool) -> Option<Diagnosis> {
    Some(Diagnosis { cause: cause.into(), hint: hint.into(), wrong_build })
}

impl Death<'_> {
    /// The last line that holds one of the words (letters as written).
    fn line(&self, words: &[&str]) -> Option<&str> {
        self.log.iter().rev().map(|line| line.trim()).find(|line| words.iter().any(|word| line.contains(word)))
    }

    /// The last line that says anything.
    fn last_line(&self) -> Option<&str> {
        self.log.iter().rev().map(|line| line.trim()).find(|line| line.chars().any(char::is_alphanumeric))
    }
}

fn shown(line: &str) -> String {
    line.chars().take(MAX_SHOWN).collect()
}

/// The text between two marks.
fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = line.split_once(before)?.1;
    Some(rest.split_once(after).map_or(rest, |(inner, _)| inner).trim())
}

/// `error while loading shared libraries: libcudart.so.12: cannot open shared object file`
fn missing_library(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&["error while loading shared libraries", "cannot open shared object file"])?;
    let name = line.split([' ', ':', '\'', '"']).find(|word| word.contains(".so"))?;
    let name = name.rsplit('/').next().unwrap_or(name);
    let hint = match name {
        _ if name.starts_with("libcudart") || name.starts_with("libcublas") => {
            "install the CUDA runtime archive of the same release beside it"
        }
        _ if name.starts_with("libcuda.") || name.starts_with("libnvidia") => "install the NVIDIA driver, or use a build for the CPU",
        _ if name.starts_with("libvulkan") => "install libvulkan1 and a Vulkan driver, or use a build for the CPU",
        _ if name.starts_with("libamdhip") || name.starts_with("libhipblas") || name.starts_with("librocblas") => {
            "install the ROCm runtime, or use a build for Vulkan"
        }
        _ if name.starts_with("libgomp") => "install libgomp1",
        _ if name.starts_with("libssl") || name.starts_with("libcrypto") => "install OpenSSL 3",
        _ => "install the package that holds it, or use another build",
    };
    found(format!("the library {name} is missing on this host"), hint, true)
}

/// ``/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by ./llama-server)``
fn old_c_library(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&["' not found (required by"]).or_else(|| death.line(&["version `GLIBC"]))?;
    let version = between(line, "version `", "'")?;
    let what = if version.starts_with("GLIBCXX") || version.starts_with("CXXABI") { "C++ library" } else { "C library" };
    found(
        format!("the build needs {version}, which this host's {what} does not have"),
        "use a build for an older system: the pip package, or one built here from source",
        true,
    )
}

/// `ImportError: …`, `ModuleNotFoundError: No module named 'xllamacpp'`
fn python_import(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&["ImportError:", "ModuleNotFoundError:"])?;
    let what = line.split_once("Error:").map_or(line, |(_, what)| what.trim());
    found(
        format!("Python could not load the engine: {}", shown(what)),
        "install the build again, or use one for this Python and system",
        true,
    )
}

/// `error: invalid argument: --mmap`
fn unknown_argument(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&[
        "error: invalid argument:",
        "error: unknown argument:",
        "the argument has been removed",
        "argument has been removed",
    ])?;
    let flag = between(line, "argument:", "\n").filter(|flag| flag.starts_with('-')).unwrap_or(line);
    let flag = shown(flag);
    found(
        format!("this build ({}) does not know the argument {flag}", death.build.version),
        "remove it from the row's extra_args, or use another build",
        false,
    )
}

fn port_taken(death: &Death<'_>) -> Option<Diagnosis> {
    death.line(&[
        "couldn't bind HTTP server socket",
        "couldn't bind to server socket",
        "Address already in use",
        "address already in use",
    ])?;
    found("the port it was given is taken by another process", "it is started again on another port", false)
}

fn driver_or_device(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&[
        "CUDA driver version is insufficient",
        "no kernel image is available",
        "unsupported toolchain",
        "forward compatibility was attempted",
        "CUDA error:",
        "ROCm error:",
        "HIP error:",
        "ErrorDeviceLost",
        "ErrorInitializationFailed",
    ])?;
    if line.contains("out of memory") {
        return None;
    }
    found(
        format!("the graphics driver and this build do not get along: {}", shown(line)),
        "update the driver, or use a build for Vulkan or the CPU",
        true,
    )
}

/// What a line or the kind of build says about the instructions it needs.
fn needed_features(death: &Death<'_>) -> Vec<&'static str> {
    let mut needed = Vec::new();
    if death.line(&["AMX is not ready", "amx_tile", "AMX"]).is_some() {
        needed.extend(["avx512f", "amx_tile"]);
    }
    for (word, feature) in [
        ("AVX512", "avx512f"),
        ("avx512", "avx512f"),
        ("AVX2", "avx2"),
        ("FMA", "fma"),
        ("SVE", "sve"),
        ("dotprod", "asimddp"),
        ("i8mm", "i8mm"),
    ] {
        let mentions = |line: &&String| line.contains(word) && (line.contains("require") || line.contains("not support"));
        if death.log.iter().rev().take(20).any(|line| mentions(&line)) {
            needed.push(feature);
        }
    }
    needed.retain(|feature| !death.host.cpu.features.contains(*feature));
    needed.dedup();
    needed
}

fn has(cpu: &CpuFacts) -> String {
    format!("this CPU has {}", vector_level(cpu))
}

/// Signal 4: an instruction this CPU does not have.
fn illegal_instruction(death: &Death<'_>) -> Option<Diagnosis> {
    let told = death.line(&["Illegal instruction", "illegal instruction"]).is_some();
    let amx = death.line(&["AMX is not ready"]).is_some() && death.code != Some(0);
    if death.signal != Some(4) && !told && !amx {
        return None;
    }
    let needed = needed_features(death);
    let needs =
        if needed.is_empty() { "it uses instructions this one lacks".to_owned() } else { format!("needs {}", needed.join(" and ")) };
    found(
        format!("the build was made for a newer CPU: {needs}, {}", has(&death.host.cpu)),
        "use a build that chooses its code at run time (an official release, the pip package xllamacpp), or build it here from source",
        true,
    )
}

fn out_of_memory(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&[
        "out of memory",
        "failed to allocate",
        "unable to allocate",
        "std::bad_alloc",
        "ErrorOutOfDeviceMemory",
        "Cannot allocate memory",
        "MemoryError",
    ])?;
    found(format!("there was not enough memory: {}", shown(line)), "lower the row's context or slots, or use a smaller quantisation", false)
}

fn model_not_loaded(death: &Death<'_>) -> Option<Diagnosis> {
    let line = death.line(&[
        "unknown model architecture",
        "error loading model",
        "failed to load model",
        "exiting due to model loading error",
        "invalid magic characters",
        "tensor data is not within the file bounds",
    ])?;
    // The line before the engine's summary usually has the reason.
    let reason = death.line(&[
        "unknown model architecture",
        "error loading model",
        "invalid magic",
        "not within the file bounds",
        "missing tensor",
        "wrong shape",
    ]);
    let reason = shown(reason.unwrap_or(line));
    if let Some(name) = between(&reason, "unknown model architecture: '", "'") {
        return found(
            format!("this build ({}) is too old for the model's architecture `{name}`", death.build.version),
            "install a newer build, or use another model",
            false,
        );
    }
    found(format!("the model could not be loaded: {reason}"), "check the file (`lifeboat model inspect`), or pull it again", false)
}

/// Signal 9 that nobody here sent: most often the kernel, when the control group's memory is used up.
fn killed(death: &Death<'_>) -> Option<Diagnosis> {
    if death.signal != Some(9) {
        return None;
    }
    let limit = death.host.memory.limit_bytes.map_or_else(
        || "this host's memory".to_owned(),
        |limit| format!("the control group's limit of {}", crate::sizing::show::size(limit)),
    );
    found(
        format!("it was killed (signal 9), most often because {limit} was used up"),
        "lower the row's context or slots, use a smaller quantisation, or raise the limit",
        false,
    )
}

/// Signal 6 or 11 and messages of the allocator: the build itself is at fault.
fn heap_damage(death: &Death<'_>) -> Option<Diagnosis> {
    let told =
        death.line(&["free(): invalid", "double free", "corrupted size vs. prev_size", "malloc(): ", "munmap_chunk(): ", "stack smashing"]);
    let check = death.line(&["GGML_ASSERT", "ggml_abort", "terminate called", "what():"]);
    let name = match death.signal {
        Some(6) => "abort (signal 6)",
        Some(11) => "segmentation fault (signal 11)",
        Some(7) => "bus error (signal 7)",
        Some(8) => "arithmetic fault (signal 8)",
        None if told.is_some() => "damaged memory",
        _ => return None,
    };
    let (detail, wrong_build) = match (told, check) {
        // Memory damaged by the program's own code points at a build for another machine; a failed check does not.
        (Some(line), _) => (format!(": {}", shown(line)), true),
        (None, Some(line)) => (format!(": {}", shown(line)), false),
        (None, None) => (death.last_line().map(|line| format!("; its last line: {}", shown(line))).unwrap_or_default(), true),
    };
    found(
        format!("the engine crashed, {name}{detail}"),
        if wrong_build {
            "this build may not suit this host; another one is worth trying"
        } else {
            "the lines before it in the log say what it was doing"
        },
        wrong_build,
    )
}

/// Somebody asked it to end.
fn stopped(death: &Death<'_>) -> Option<Diagnosis> {
    let name = match death.signal? {
        1 => "SIGHUP",
        2 => "SIGINT",
        15 => "SIGTERM",
        _ => return None,
    };
    found(format!("somebody outside of Lifeboat ended it ({name})"), "it is started again", false)
}

/// What nobody recognised.
pub(super) fn plain(death: &Death<'_>) -> Diagnosis {
    let how = match (death.signal, death.code) {
        (Some(signal), _) => format!("it was ended by signal {signal}"),
        (None, Some(0)) => "it ended by itself (exit code 0)".to_owned(),
        (None, Some(code)) => format!("it ended with exit code {code}"),
        (None, None) => "it ended, and how is not known".to_owned(),
    };
    let last = death.last_line().map(|line| format!("; its last line: {}", shown(line))).unwrap_or_default();
    Diagnosis { cause: format!("{how}{last}"), hint: String::new(), wrong_build: false }
}
