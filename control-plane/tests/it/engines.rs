//! The engine store: sources, verification, proof, switching, and what a kill leaves.

mod bench;

use std::fs;
use std::time::Duration;

use lifeboat::engine_process::child::{ChildSpec, EngineChild};
use lifeboat::engines::{EnginesError, InstallRequest, Proof};
use lifeboat::host::instance::control_file;
use lifeboat::host::process::Identity;
use lifeboat::progress::ProgressSender;
use lifeboat_engines::spec::{EngineKind, LaunchPlan};

use crate::support::{alive, eventually};
use bench::{Bench, SERVES, archive, cuda_host, release_archive};

const KIND: EngineKind = EngineKind::LlamaCpp;
const SOON: Duration = Duration::from_secs(30);

fn quiet() -> ProgressSender {
    ProgressSender::ignored()
}

fn cpu_asset(tag: &str) -> String {
    format!("llama-{tag}-bin-ubuntu-x64.tar.gz")
}

fn publish_working(bench: &Bench, tag: &str) {
    bench.site.publish(tag, &[(&cpu_asset(tag), release_archive(tag, SERVES, "  (none)\\n"))]);
}

#[tokio::test]
async fn the_promoted_release_is_fetched_proved_and_then_needs_no_network() {
    let bench = Bench::new().await;
    bench.site.promote("b200");
    publish_working(&bench, "b200");
    let build = bench.store().ensure(KIND, None, &quiet()).await.unwrap();
    assert_eq!((build.id.as_str(), build.version.as_str()), ("llama_cpp-release-b200-ubuntu-x64", "b200"));
    assert!(build.program.is_file() && build.flags.contains(&"--model".to_owned()));
    let installed = bench.store().list().await.unwrap();
    assert!(matches!(&installed[0].proof, Proof::Passed { model, .. } if model.ends_with("small.gguf")), "{:?}", installed[0].proof);
    assert!(installed[0].active && installed[0].size_bytes > 0 && installed[0].sha256.is_some());
    assert_eq!(bench.leftovers(), Vec::<String>::new());

    let asked = bench.site.asked("");
    bench.site.vanish();
    let again = bench.store().ensure(KIND, None, &quiet()).await.unwrap();
    assert_eq!((&again, bench.site.asked("")), (&build, asked), "a cached start asks nobody");
}

#[tokio::test]
async fn without_the_file_that_names_a_tag_the_newest_release_with_binaries_is_found() {
    let bench = Bench::new().await;
    publish_working(&bench, "b201");
    let build = bench.store().ensure(KIND, None, &quiet()).await.unwrap();
    assert_eq!(build.version, "b201");
    assert_eq!(bench.site.asked("per_page=100"), 1);
}

/// What `ensure` says where nothing works, one line for each candidate tried.
async fn tried(bench: &Bench) -> Vec<String> {
    match bench.store().ensure(KIND, None, &quiet()).await {
        Err(EnginesError::NoneUsable { tried, .. }) => tried,
        other => panic!("{other:?}"),
    }
}

fn of<'a>(tried: &'a [String], candidate: &str) -> &'a str {
    tried.iter().find_map(|line| line.strip_prefix(&format!("{candidate}: "))).unwrap()
}

#[tokio::test]
async fn a_file_that_is_not_what_the_release_says_is_never_unpacked() {
    let bench = Bench::new().await;
    let good = release_archive("b1", SERVES, "");
    bench.site.publish_as("b1", &[(&cpu_asset("b1"), good.clone(), Some("0".repeat(64)))]);
    let lines = tried(&bench).await;
    assert!(of(&lines, "release-cpu").contains("sha256"), "{lines:?}");
    assert!(of(&lines, "pip-xllamacpp").contains("needs Python"), "{lines:?}");

    bench.site.publish_as("b1", &[(&cpu_asset("b1"), good, None)]);
    assert!(of(&tried(&bench).await, "release-cpu").contains("no digest"));
    assert_eq!(bench.store().list().await.unwrap().len(), 1, "only the simulated engine is there");
}

#[tokio::test]
async fn an_archive_that_leaves_its_folder_or_holds_no_server_is_refused() {
    let bench = Bench::new().await;
    for (files, word) in [
        (archive(&[("../../evil", b"x", 0o644)]), "refused"),
        (archive(&[("llama-b1/readme", b"x", 0o644)]), "no llama-server"),
        (b"not an archive".to_vec(), "cannot be read"),
    ] {
        bench.site.publish("b1", &[(&cpu_asset("b1"), files)]);
        // Each is another file under one name: what an earlier try fetched is not taken for it.
        let lines = tried(&bench).await;
        assert!(of(&lines, "release-cpu").contains(word), "{lines:?}");
    }
    assert!(!bench.path().join("evil").exists() && !bench.builds().join("evil").exists());
}

#[tokio::test]
async fn an_operators_program_goes_first_and_a_death_in_its_proof_leads_to_the_next_source() {
    let mut bench = Bench::new().await;
    let program = bench.program("kill -ILL $$");
    bench.config().sources.llama_server = Some(program);
    publish_working(&bench, "b7");
    let store = bench.store();
    let build = store.ensure(KIND, None, &quiet()).await.unwrap();
    assert_eq!(build.version, "b7");
    let installed = store.list().await.unwrap();
    let failed = installed.iter().find(|installed| installed.build.id.contains("-path-")).unwrap();
    assert!(matches!(&failed.proof, Proof::Failed { cause, .. } if cause.contains("instruction")), "{:?}", failed.proof);
    assert!(!failed.active && failed.size_bytes == 0);
    let refused = store.activate(&failed.build.id).await.unwrap_err();
    assert!(matches!(refused, EnginesError::NotUsable { .. }), "{refused:?}");

    // As long as it is the same file it is not tried again; a repaired one is, and comes first.
    assert_eq!(bench.store().ensure(KIND, None, &quiet()).await.unwrap().version, "b7");
    bench.program(SERVES);
    let build = bench.store().ensure(KIND, None, &quiet()).await.unwrap();
    assert!(build.id.starts_with("llama_cpp-path-"), "{}", build.id);
    assert_eq!(build.version, "b6500", "it told its own");
}

#[tokio::test]
async fn a_failed_build_is_not_fetched_again_at_once_unless_asked_for() {
    let bench = Bench::new().await;
    bench.site.publish(
        "b1",
        &[(&cpu_asset("b1"), release_archive("b1", "echo 'x: cannot open shared object file: libfoo.so.1' >&2; exit 127", ""))],
    );
    let first = tried(&bench).await;
    assert!(of(&first, "release-cpu").contains("libfoo.so.1"), "{first:?}");
    assert!(of(&tried(&bench).await, "release-cpu").contains("tries again"));
    assert_eq!(bench.site.asked("/download/b1/llama"), 1);
    let named = InstallRequest { candidate: Some("release-cpu".into()), ..InstallRequest::default() };
    let error = bench.store().install(named, &quiet()).await.unwrap_err();
    assert!(matches!(error, EnginesError::CandidateFailed { ref reason, .. } if reason.contains("libfoo.so.1")), "{error:?}");
    assert_eq!(bench.site.asked("/download/b1/llama"), 2);
}

#[tokio::test]
async fn a_build_that_answers_without_a_token_is_not_proved() {
    let bench = Bench::new().await;
    // An engine that is ready and refuses every request: the key it was given is not the one it asks for.
    let serve = "LIFEBOAT_SIM_API_KEY=other exec \"$LIFEBOAT\" sim-engine --port \"$port\"";
    bench.site.publish("b1", &[(&cpu_asset("b1"), release_archive("b1", serve, ""))]);
    let lines = tried(&bench).await;
    assert!(of(&lines, "release-cpu").contains("401"), "{lines:?}");
}

#[tokio::test]
async fn the_runtime_archive_lies_beside_the_programs_and_a_build_that_sees_no_device_is_skipped() {
    let bench = Bench::new().await;
    let cuda = |version: &str| format!("llama-b5-bin-ubuntu-cuda-{version}-x64.tar.gz");
    let runtime = |version: &str| format!("cudart-llama-b5-bin-ubuntu-cuda-{version}-x64.tar.gz");
    let libraries = archive(&[("cudart-llama-b5-bin-ubuntu-cuda/libcudart.so.13", b"lib", 0o755)]);
    bench.site.publish(
        "b5",
        &[
            (&cuda("13.4"), release_archive("b5", SERVES, "  (none)\\n")),
            (&runtime("13.4"), libraries.clone()),
            (&cuda("12.8"), release_archive("b5", SERVES, "  CUDA0: RTX (24000 MiB, 23000 MiB free)\\n")),
            (&runtime("12.8"), libraries),
        ],
    );
    let store = bench.store_on(cuda_host);
    let build = store.ensure(KIND, None, &quiet()).await.unwrap();
    assert_eq!(build.id, "llama_cpp-release-b5-ubuntu-cuda-12.8-x64");
    assert_eq!(build.devices, ["CUDA0"]);
    assert!(build.program.with_file_name("libcudart.so.13").is_file());
    let installed = store.list().await.unwrap();
    let blind = installed.iter().find(|installed| installed.build.id.contains("13.4")).unwrap();
    assert!(matches!(&blind.proof, Proof::Failed { cause, .. } if cause.contains("no accelerator")), "{:?}", blind.proof);
}

#[tokio::test]
async fn versions_live_side_by_side_and_a_rollback_goes_to_the_one_before() {
    let bench = Bench::new().await;
    publish_working(&bench, "b1");
    let store = bench.store();
    let old = store.ensure(KIND, None, &quiet()).await.unwrap();
    assert!(matches!(store.rollback(KIND).await, Err(EnginesError::NoPrevious { .. })));
    publish_working(&bench, "b2");
    let new = store.install(InstallRequest::default(), &quiet()).await.unwrap();
    assert!(new.active && new.build.version == "b2");
    assert_eq!(store.ensure(KIND, None, &quiet()).await.unwrap().version, "b2");
    assert_eq!(store.ensure(KIND, Some(&old.id), &quiet()).await.unwrap(), old, "a pinned build is launched all the same");

    let back = store.rollback(KIND).await.unwrap();
    assert_eq!((back.build.version.as_str(), back.active), ("b1", true));
    assert_eq!(bench.store().ensure(KIND, None, &quiet()).await.unwrap().version, "b1", "it is written down");
    assert_eq!(store.rollback(KIND).await.unwrap().build.version, "b2");

    assert!(matches!(store.remove(&new.build.id, &[]).await, Err(EnginesError::InUse { .. })), "the active one");
    assert!(matches!(store.remove(&old.id, &["chat".into()]).await, Err(EnginesError::InUse { .. })), "a pinned one");
    store.remove(&old.id, &[]).await.unwrap();
    assert!(!bench.builds().join(&old.id).exists());
    assert!(matches!(store.rollback(KIND).await, Err(EnginesError::NoPrevious { .. })));
    let gone = store.ensure(KIND, Some(&old.id), &quiet()).await;
    assert!(matches!(gone, Err(EnginesError::NotInstalled { .. })), "{gone:?}");
    assert!(matches!(store.ensure(KIND, Some("../x"), &quiet()).await, Err(EnginesError::NotInstalled { .. })));
}

#[tokio::test]
async fn a_lookup_or_a_proof_that_fails_leaves_the_installed_build_alone() {
    let bench = Bench::new().await;
    publish_working(&bench, "b1");
    let store = bench.store();
    store.ensure(KIND, None, &quiet()).await.unwrap();
    bench.site.publish("b2", &[(&cpu_asset("b2"), release_archive("b2", "exit 1", ""))]);
    store.install(InstallRequest::default(), &quiet()).await.unwrap_err();
    bench.site.vanish();
    let error = store.install(InstallRequest { version: Some("b3".into()), ..InstallRequest::default() }, &quiet()).await.unwrap_err();
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    assert_eq!(store.ensure(KIND, None, &quiet()).await.unwrap().version, "b1");
    assert!(store.list().await.unwrap().iter().any(|installed| installed.active && installed.build.version == "b1"));
}

#[tokio::test]
async fn many_rows_that_wait_for_a_build_share_one_installation() {
    let bench = Bench::new().await;
    publish_working(&bench, "b1");
    let store = bench.store();
    let progress = quiet();
    let all = futures_util::future::join_all((0..8).map(|_| store.ensure(KIND, None, &progress))).await;
    assert!(all.iter().all(|build| build.as_ref().unwrap() == all[0].as_ref().unwrap()));
    assert_eq!(bench.site.asked("/download/b1/llama"), 1);
}

#[tokio::test]
async fn an_installation_that_nobody_waits_for_any_more_leaves_no_engine() {
    let bench = Bench::new().await;
    let marker = bench.path().join("serving");
    let serve = format!("touch {}; exec sleep 600", marker.display());
    bench.site.publish("b1", &[(&cpu_asset("b1"), release_archive("b1", &serve, ""))]);
    let store = bench.store();
    let progress = quiet();
    let mut install = Box::pin(store.ensure(KIND, None, &progress));
    tokio::select! {
        ended = &mut install => panic!("{ended:?}"),
        () = eventually("the engine of the proof runs", SOON, async || marker.exists().then_some(())) => {}
    }
    drop(install);
    let left = async || crate::support::processes_naming(bench.path()).is_empty().then_some(());
    eventually("the engine is gone", SOON, left).await;
}

#[tokio::test]
async fn what_a_killed_installation_left_is_cleaned_up_at_the_next_start() {
    let bench = Bench::new().await;
    let identity = Identity::of(std::process::id()).unwrap();
    fs::write(control_file(&bench.path().join("data")), serde_json::to_vec(&identity).unwrap()).unwrap();
    let traces = bench.builds().join(".proof-killed");
    fs::create_dir_all(bench.builds().join(".staging-killed/files")).unwrap();
    fs::create_dir_all(bench.builds().join(".trash-killed")).unwrap();
    let engine = EngineChild::spawn(ChildSpec {
        plan: LaunchPlan { program: "/bin/sh".into(), args: vec!["-c".into(), "sleep 600; true".into()], env: vec![] },
        run_dir: traces.join("run"),
        log_dir: traces.join("logs"),
        control_file: control_file(&bench.path().join("data")),
        lease: Duration::from_secs(600),
        kill_after: Duration::from_secs(1),
        log_rotate_bytes: 1 << 20,
        log_keep: 0,
        guard_program: Some(env!("CARGO_BIN_EXE_lifeboat").into()),
        note: serde_json::Value::Null,
    })
    .await
    .unwrap();
    let pid = engine.pid();
    drop(engine);
    assert!(alive(pid));
    bench.store().clean().await;
    assert!(!alive(pid));
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn candidates_are_shown_with_their_reasons_and_wrong_names_are_told() {
    let mut bench = Bench::new().await;
    let shown = bench.store().candidates(KIND).await.unwrap();
    let one = |id: &str| shown.iter().find(|candidate| candidate.id == id).unwrap();
    assert!(one("release-cpu").usable && one("release-cpu").reason.is_none());
    assert!(one("release-cuda-13").reason.as_ref().unwrap().contains("no NVIDIA GPU"));
    assert!(!one("path").usable && !one("source").usable);
    let program = bench.program(SERVES);
    bench.config().sources.llama_server = Some(program);
    assert!(bench.store().candidates(KIND).await.unwrap().iter().any(|candidate| candidate.id == "path" && candidate.usable));
    let wrong = InstallRequest { candidate: Some("nonsense".into()), ..InstallRequest::default() };
    assert!(matches!(bench.store().install(wrong, &quiet()).await, Err(EnginesError::NoSuchCandidate { .. })));
    let kind = bench.store().ensure(EngineKind::External, None, &quiet()).await;
    assert!(matches!(kind, Err(EnginesError::NotManaged { .. })), "{kind:?}");
    assert_eq!(bench.store().ensure(EngineKind::Sim, None, &quiet()).await.unwrap().id, lifeboat::engines::SIM_BUILD);
}
