//! Tables for the llama.cpp adapter.

use std::path::Path;

use super::*;
use crate::sizing::tests::{host, smollm2};
use crate::spec::{Build, CacheType};
use crate::validate::tests::row;

fn build() -> Build {
    Build {
        id: "llama_cpp-path".into(),
        engine: EngineKind::LlamaCpp,
        version: "b11434".into(),
        program: "/opt/llama-server".into(),
        prefix_args: vec![],
        env: vec![("LD_LIBRARY_PATH".into(), "/opt".into())],
        flags: vec![],
        devices: vec![],
        takes_slot: true,
    }
}

fn launch(spec: &EngineSpec, build: &Build) -> LaunchPlan {
    let resolved = LlamaCpp.resolve(spec, Some(&smollm2()), &host(16, 4)).unwrap();
    LlamaCpp.launch(&LaunchInput {
        spec,
        resolved: &resolved,
        build,
        model_path: Some(Path::new("/m/a b.gguf")),
        mmproj_path: None,
        port: 4321,
        api_key: "engine-secret",
        home: Path::new("/home/engine"),
    })
}

fn with_args(arguments: &[&str]) -> EngineSpec {
    let mut spec = row("llama_cpp");
    spec.extra_args = arguments.iter().map(ToString::to_string).collect();
    spec
}

#[test]
fn a_launch_holds_every_flag_that_prefix_reuse_and_safety_need() {
    let mut spec = row("llama_cpp");
    spec.slots = Some(2);
    spec.context = Some(4000);
    let plan = launch(&spec, &build());
    let line = plan.args.join(" ");
    for part in [
        "--host 127.0.0.1 --port 4321 --model /m/a b.gguf --alias chat",
        "--ctx-size 8192 --parallel 2 --no-kv-unified --threads 4",
        "--slot-prompt-similarity 0.8 --no-cache-idle-slots",
        "--metrics --slots --no-ui --offline --sse-ping-interval 2",
        "--fit off",
    ] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    assert!(!line.contains("--n-gpu-layers") && !line.contains("--cache-type"), "{line}");
}

#[test]
fn the_key_is_in_the_environment_and_never_in_the_arguments() {
    let plan = launch(&row("llama_cpp"), &build());
    assert!(plan.env.contains(&("LLAMA_API_KEY".into(), "engine-secret".into())));
    assert!(plan.args.iter().all(|argument| !argument.contains("secret")));
    let names: Vec<_> = plan.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["HOME", "PATH", "LANG", "LLAMA_API_KEY", "LD_LIBRARY_PATH"]);
}

#[test]
fn flags_an_older_build_does_not_list_are_left_out() {
    let mut old = build();
    old.flags = ["--host", "--port", "--model", "--no-webui", "--metrics"].map(String::from).to_vec();
    let plan = launch(&row("llama_cpp"), &old);
    assert!(plan.args.contains(&"--no-webui".into()) && !plan.args.contains(&"--no-ui".into()));
    for gone in ["--fit", "--cors-origins", "--no-cache-idle-slots", "--offline"] {
        assert!(!plan.args.contains(&gone.to_owned()), "{gone}");
    }
    assert!(plan.args.contains(&"--ctx-size".into()), "what the row says is always passed on");
}

#[test]
fn cache_formats_and_extra_arguments_are_passed_on() {
    let mut spec = with_args(&["-fa", "on"]);
    spec.cache_type_k = Some(CacheType::Q8_0);
    let args = launch(&spec, &build()).args;
    assert!(args.windows(2).any(|pair| pair == ["--cache-type-k", "q8_0"]));
    assert_eq!(args[args.len() - 2..], ["-fa", "on"]);
}

#[test]
fn device_flags_go_to_builds_that_have_devices_only() {
    let mut spec = row("llama_cpp");
    spec.devices = Some(vec!["none".into()]);
    let line = |build: &Build| launch(&spec, build).args.join(" ");
    assert!(!line(&build()).contains("--device") && !line(&build()).contains("--n-gpu-layers"));
    let cuda = Build { devices: vec!["CUDA0".into()], ..build() };
    assert!(line(&cuda).contains("--device none") && line(&cuda).contains("--n-gpu-layers 0"));
}

#[test]
fn embedding_rows_get_a_batch_that_holds_a_whole_input() {
    let mut spec = row("llama_cpp");
    spec.task = Some(Task::Embedding);
    spec.context = Some(2000);
    let line = launch(&spec, &build()).args.join(" ");
    assert!(line.contains("--embeddings --pooling mean --batch-size 2048 --ubatch-size 2048"), "{line}");
    assert!(!line.contains("--jinja"), "{line}");
}

#[test]
fn arguments_that_open_files_ports_or_tools_are_refused() {
    let bad = [
        "--host",
        "--port",
        "--api-key",
        "--api-key-file",
        "-m",
        "--model",
        "--tools",
        "-ag",
        "--agent",
        "--mcp-servers-config",
        "--mcp-servers-json",
        "--ui",
        "--ui-config-file",
        "--webui",
        "--slot-save-path",
        "--media-path",
        "--rpc",
        "--log-file",
        "-hf",
        "--hf-repo",
        "--lora",
        "--control-vector",
        "--chat-template-file",
        "--grammar-file",
        "--mmproj",
        "-md",
        "--path",
        "--props",
        "--log-prompts-dir",
        "--cors-origins",
        "--json-schema-file",
        "-jf",
        "-lcd",
        "--models-dir",
        "--tools-runtime",
        "--video-ffmpeg-dir",
        "x",
        "",
        "--temp=1",
    ];
    for argument in bad {
        let error = LlamaCpp.validate(&with_args(&[argument, "1"]), false).unwrap_err();
        assert_eq!(error.field, "extra_args", "{argument}");
    }
}

#[test]
fn an_open_list_still_keeps_what_the_supervisor_relies_on() {
    assert_eq!(LlamaCpp.validate(&with_args(&["--lora", "/x"]), true), Ok(()));
    for owned in ["--port", "--api-key", "--api-key=x", "-m", "-c", "-np"] {
        assert!(LlamaCpp.validate(&with_args(&[owned, "1"]), true).is_err(), "{owned}");
    }
}

#[test]
fn allowed_arguments_want_a_value_of_their_kind() {
    for good in
        [&["-fa", "on"][..], &["--temp", "-0.5"], &["-ts", "3,1"], &["--swa-full"], &["--chat-template", "chatml"], &["-ot", "exps=CPU"]]
    {
        assert_eq!(LlamaCpp.validate(&with_args(good), false), Ok(()), "{good:?}");
    }
    for bad in [&["--temp"][..], &["--temp", "warm"], &["-fa", "--port"], &["--top-k", ""], &["--swa-full", "1"]] {
        assert!(LlamaCpp.validate(&with_args(bad), false).is_err(), "{bad:?}");
    }
}

#[test]
fn a_row_without_model_is_refused() {
    let mut spec = row("llama_cpp");
    spec.model = None;
    assert_eq!(LlamaCpp.validate(&spec, false).unwrap_err().field, "model");
}

#[test]
fn models_no_server_can_serve_are_refused_with_the_reason() {
    let mut model = smollm2();
    model.architecture = "llada".into();
    let error = LlamaCpp.resolve(&row("llama_cpp"), Some(&model), &host(16, 4)).unwrap_err();
    assert!(error.to_string().contains("diffusion"), "{error}");
    let mut vectors = smollm2();
    vectors.task = Task::Embedding;
    let mut spec = row("llama_cpp");
    spec.task = Some(Task::Chat);
    assert!(LlamaCpp.resolve(&spec, Some(&vectors), &host(16, 4)).is_err());
}

#[test]
fn health_tells_loading_from_ready_and_broken() {
    assert_eq!(LlamaCpp.read_health(200, b"{\"status\":\"ok\"}"), Health::Ready);
    assert_eq!(LlamaCpp.read_health(503, b"{\"error\":{}}"), Health::Loading);
    for status in [401, 404, 500, 502] {
        assert_eq!(LlamaCpp.read_health(status, b""), Health::Broken);
    }
}

#[test]
fn load_progress_is_read_from_dots_and_markers() {
    let table = [
        ("0.00.203.793 I srv    load_model: loading model '/m/x.gguf'", Some(0.02)),
        ("load_tensors: loading model tensors, this can take a while...", Some(0.1)),
        (&".".repeat(50), Some(0.5)),
        ("srv  llama_server: model loaded", Some(1.0)),
        ("something else", None),
        ("..", None),
        ("", None),
    ];
    for (line, expected) in table {
        assert_eq!(LlamaCpp.read_load_progress(line), expected, "{line}");
    }
}
