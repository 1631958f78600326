//! Deaths and what is said about them.

use super::*;
use crate::sizing::tests::host;
use crate::spec::EngineKind;

fn build() -> Build {
    Build {
        id: "x".into(),
        engine: EngineKind::LlamaCpp,
        version: "b11434".into(),
        program: "/x".into(),
        prefix_args: vec![],
        env: vec![],
        flags: vec![],
        devices: vec![],
        takes_slot: true,
    }
}

fn of(code: Option<i32>, signal: Option<i32>, log: &[&str]) -> Diagnosis {
    let lines: Vec<String> = log.iter().map(ToString::to_string).collect();
    diagnose(code, signal, &lines, &build(), &host(8, 2))
}

#[test]
fn an_illegal_instruction_names_what_is_missing_and_what_there_is() {
    let death = of(None, Some(4), &["load_tensors: loading", "AMX is not ready to be used!"]);
    assert_eq!(death.cause, "the build was made for a newer CPU: needs avx512f and amx_tile, this CPU has avx2");
    assert!(death.wrong_build);
    let shell = of(Some(132), None, &[]);
    assert_eq!(shell.cause, "the build was made for a newer CPU: it uses instructions this one lacks, this CPU has avx2");
}

/// Exit code, signal, log, cause, whether the build is at fault.
type Row<'a> = (Option<i32>, Option<i32>, &'a [&'a str], &'a str, bool);

#[test]
fn causes_are_told_by_table() {
    let table: [Row<'_>; 19] = [
        (
            Some(127),
            None,
            &[
                "./llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory",
            ],
            "the library libcudart.so.12 is missing on this host",
            true,
        ),
        (
            Some(1),
            None,
            &["./llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by ./llama-server)"],
            "the build needs GLIBC_2.38, which this host's C library does not have",
            true,
        ),
        (
            Some(1),
            None,
            &["/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x)"],
            "the build needs GLIBCXX_3.4.32, which this host's C++ library does not have",
            true,
        ),
        (
            Some(1),
            None,
            &["ModuleNotFoundError: No module named 'xllamacpp'"],
            "Python could not load the engine: No module named 'xllamacpp'",
            true,
        ),
        (Some(1), None, &["error: invalid argument: --mmap"], "this build (b11434) does not know the argument --mmap", false),
        (
            Some(1),
            None,
            &["srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1"],
            "the port it was given is taken by another process",
            false,
        ),
        (
            Some(1),
            None,
            &[
                "llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'",
                "srv load_model: failed to load model, '/m.gguf'",
                "exiting due to model loading error",
            ],
            "the model could not be loaded: llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'",
            false,
        ),
        (
            Some(1),
            None,
            &["llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'new5'"],
            "this build (b11434) is too old for the model's architecture `new5`",
            false,
        ),
        (
            Some(1),
            None,
            &["ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"],
            "there was not enough memory: ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
            false,
        ),
        (None, Some(9), &[], "it was killed (signal 9), most often because this host's memory was used up", false),
        (Some(137), None, &[], "it was killed (signal 9), most often because this host's memory was used up", false),
        (None, Some(6), &["free(): invalid pointer"], "the engine crashed, abort (signal 6): free(): invalid pointer", true),
        (
            None,
            Some(6),
            &["/src/x.cpp:1: GGML_ASSERT(a) failed"],
            "the engine crashed, abort (signal 6): /src/x.cpp:1: GGML_ASSERT(a) failed",
            false,
        ),
        (None, Some(11), &["loading"], "the engine crashed, segmentation fault (signal 11); its last line: loading", true),
        (
            Some(1),
            None,
            &["CUDA error: the provided PTX was compiled with an unsupported toolchain."],
            "the graphics driver and this build do not get along: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            true,
        ),
        (None, Some(15), &[], "somebody outside of Lifeboat ended it (SIGTERM)", false),
        (Some(0), None, &["bye", "---"], "it ended by itself (exit code 0); its last line: bye", false),
        (Some(3), None, &[], "it ended with exit code 3", false),
        (None, None, &[], "it ended, and how is not known", false),
    ];
    for (code, signal, log, cause, wrong_build) in table {
        let death = of(code, signal, log);
        assert_eq!((death.cause.as_str(), death.wrong_build), (cause, wrong_build), "{code:?} {signal:?} {log:?}");
        assert!(
            !death.hint.is_empty() || death.cause.starts_with("it ended") || death.cause.starts_with("it was ended"),
            "{}",
            death.cause
        );
    }
}

#[test]
fn a_kill_names_the_control_group_limit() {
    let mut machine = host(8, 2);
    machine.memory.limit_bytes = Some(2_000_000_000);
    let death = diagnose(None, Some(9), &[], &build(), &machine);
    assert!(death.cause.contains("the control group's limit of 2.0 GB"), "{}", death.cause);
}

#[test]
fn long_lines_are_cut() {
    let death = of(Some(1), None, &[&"x".repeat(5000)]);
    assert!(death.cause.len() < 400);
}
