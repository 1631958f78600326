//! Engines behind their guard: real processes, small shell scripts as engines.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lifeboat::engine_process::child::{ChildSpec, EngineChild, Exit};
use lifeboat::host::process::Identity;
use lifeboat_engines::spec::LaunchPlan;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Served, TestApp, alive, command, eventually, processes_naming, send_signal};

const SOON: Duration = Duration::from_secs(20);

/// A folder for one engine. Its drop asserts that no process with a trace of it is left.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        bench.name_control_plane(std::process::id());
        bench
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn run_dir(&self) -> PathBuf {
        self.path().join("run")
    }

    fn name_control_plane(&self, pid: u32) {
        fs::write(self.path().join("control-plane.json"), serde_json::to_vec(&Identity::of(pid).unwrap()).unwrap()).unwrap();
    }

    fn spec(&self, script: &str) -> ChildSpec {
        ChildSpec {
            plan: LaunchPlan {
                program: "/bin/sh".into(),
                args: vec!["-c".into(), script.into()],
                env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("BENCH".into(), self.path().to_str().unwrap().into())],
            },
            run_dir: self.run_dir(),
            log_dir: self.path().join("logs"),
            control_file: self.path().join("control-plane.json"),
            lease: Duration::from_secs(600),
            kill_after: Duration::from_millis(300),
            log_rotate_bytes: 1 << 20,
            log_keep: 2,
            guard_program: Some(env!("CARGO_BIN_EXE_lifeboat").into()),
            note: serde_json::json!({ "generation": 3 }),
        }
    }

    async fn start(&self, script: &str) -> EngineChild {
        EngineChild::spawn(self.spec(script)).await.unwrap()
    }

    /// Waits until the script has written this file.
    async fn file(&self, name: &str) -> String {
        let path = self.path().join(name);
        eventually(name, SOON, async || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))).await.trim().to_owned()
    }

    async fn gone(&self) {
        eventually("all processes of the engine are gone", SOON, async || processes_naming(self.path()).is_empty().then_some(())).await;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let left = processes_naming(self.path());
        for (pid, _) in &left {
            send_signal(*pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

const fn code(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

const fn killed(signal: i32) -> Exit {
    Exit { code: None, signal: Some(signal) }
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_leaves_neither_guard_nor_engine() {
    let bench = Bench::new();
    let guard = bench.path().join("silent-guard");
    // Starts something as a guard does, and never says so.
    fs::write(&guard, format!("#!/bin/sh\n/bin/sh -c 'sleep 600; : {0}' &\necho $! > {0}/started\nwait\n", bench.path().display()))
        .unwrap();
    fs::set_permissions(&guard, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut start = tokio::task::JoinSet::new();
    start.spawn(EngineChild::spawn(ChildSpec { guard_program: Some(guard), ..bench.spec("sleep 600") }));
    let engine: u32 = bench.file("started").await.parse().unwrap();
    assert!(alive(engine));
    start.abort_all();
    eventually("the engine is gone", SOON, async || (!alive(engine)).then_some(())).await;
    bench.gone().await;
}

#[tokio::test]
async fn the_way_an_engine_ended_is_known_to_everybody_who_waits() {
    for (script, expected) in [("exit 0", code(0)), ("exit 7", code(7)), ("kill -ILL $$", killed(4)), ("kill -KILL $$", killed(9))] {
        let bench = Bench::new();
        let child = bench.start(script).await;
        assert_eq!(child.wait().await, expected, "{script}");
        assert_eq!(child.wait().await, expected, "{script}, asked again");
        bench.gone().await;
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told_by_name_and_cause() {
    let bench = Bench::new();
    let mut spec = bench.spec("");
    spec.plan.program = "/nowhere/llama-server".into();
    let error = EngineChild::spawn(spec).await.unwrap_err();
    assert_eq!(error.to_string(), "could not start /nowhere/llama-server");
    assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
    bench.gone().await;
}

#[tokio::test]
async fn the_environment_is_the_plans_and_nothing_else() {
    let bench = Bench::new();
    let child = bench.start("/usr/bin/env > $BENCH/env; echo done > $BENCH/done; exec sleep 600").await;
    bench.file("done").await;
    let environment = fs::read_to_string(bench.path().join("env")).unwrap();
    let mut names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.retain(|name| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_"));
    names.sort_unstable();
    assert_eq!(names, ["BENCH", "PATH"]);
    child.kill().await;
    bench.gone().await;
}

#[tokio::test]
async fn an_engine_hears_signals_that_its_guard_ignores() {
    let bench = Bench::new();
    let child = bench.start("trap 'exit 3' TERM; echo up > $BENCH/up; while :; do sleep 0.05; done").await;
    bench.file("up").await;
    assert_eq!(child.stop(SOON).await, code(3));
    bench.gone().await;
}

#[tokio::test]
async fn an_engine_that_ignores_the_stop_signal_is_killed_with_its_children() {
    let bench = Bench::new();
    let child = bench.start("trap '' TERM; sleep 600 & sleep 601 & echo up > $BENCH/up; while :; do wait; sleep 0.05; done").await;
    bench.file("up").await;
    assert_eq!(child.stop(Duration::from_millis(200)).await, killed(9));
    bench.gone().await;
}

#[tokio::test]
async fn a_stopped_engine_can_be_stopped() {
    let bench = Bench::new();
    let child = bench.start("trap 'exit 3' TERM; echo up > $BENCH/up; while :; do sleep 0.05; done").await;
    bench.file("up").await;
    assert!(send_signal(child.pid(), Signal::STOP));
    eventually("the engine is stopped", SOON, async || child.usage().await.stopped.then_some(())).await;
    assert_eq!(child.stop(SOON).await, code(3));
    bench.gone().await;
}

#[tokio::test]
async fn grandchildren_that_left_the_session_do_not_outlive_the_engine() {
    let bench = Bench::new();
    let child = bench.start("(setsid sh -c 'setsid sleep 600 & echo $! > $BENCH/pid; wait') & sleep 0.05; while ! [ -s $BENCH/pid ]; do sleep 0.02; done; exit 5").await;
    let grandchild: u32 = bench.file("pid").await.parse().unwrap();
    assert_eq!(child.wait().await, code(5));
    assert!(!alive(grandchild), "the guard ends only after them");
    bench.gone().await;
}

#[tokio::test]
async fn the_last_lines_are_the_engines_own_and_the_logs_rotate() {
    let bench = Bench::new();
    let mut spec = bench.spec("i=0; while [ $i -lt 400 ]; do echo \"out $i\"; echo \"err $i\" >&2; i=$((i+1)); done; exit 1");
    spec.log_rotate_bytes = 2000;
    let child = EngineChild::spawn(spec).await.unwrap();
    assert_eq!(child.wait().await, code(1));
    assert_eq!(child.last_log_lines(3), ["err 398", "out 399", "err 399"]);
    let mut names: Vec<String> =
        fs::read_dir(bench.path().join("logs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["engine.log", "engine.log.1", "engine.log.2"]);
    assert!(names.iter().all(|name| fs::metadata(bench.path().join("logs").join(name)).unwrap().len() <= 2000));
    bench.gone().await;
}

#[tokio::test]
async fn an_engine_whose_control_plane_does_not_return_ends_itself() {
    let bench = Bench::new();
    let mut control_plane = Served::start(command("/bin/sleep").arg("600")).unwrap();
    bench.name_control_plane(control_plane.pid());
    let mut spec = bench.spec("sleep 600 & echo up > $BENCH/up; wait");
    spec.lease = Duration::from_secs(1);
    let child = EngineChild::spawn(spec).await.unwrap();
    bench.file("up").await;
    control_plane.kill();
    assert_eq!(child.wait().await, killed(15));
    bench.gone().await;
}

#[tokio::test]
async fn an_engine_is_adopted_as_the_same_process_and_found_dead_or_foreign_ones_are_not() {
    let bench = Bench::new();
    let child = bench.start("trap 'exit 3' TERM; echo up > $BENCH/up; while :; do sleep 0.05; done").await;
    bench.file("up").await;
    let pid = child.pid();
    drop(child);

    let adopted = EngineChild::adopt(&bench.run_dir()).await.unwrap();
    assert_eq!(adopted.pid(), pid);
    assert_eq!(adopted.note(), &serde_json::json!({ "generation": 3 }));
    assert_eq!(adopted.stop(SOON).await, code(3));
    assert!(EngineChild::adopt(&bench.run_dir()).await.is_none(), "nothing is left to adopt");
    bench.gone().await;
}

#[tokio::test]
async fn an_engine_without_its_guard_dies_and_is_not_adopted() {
    let bench = Bench::new();
    let child = bench.start("sleep 600 & echo up > $BENCH/up; wait").await;
    bench.file("up").await;
    let guard = crate::support::parent_of(child.pid()).unwrap();
    assert!(send_signal(guard, Signal::KILL));
    assert_eq!(child.wait().await, Exit::default(), "nobody saw its end");
    assert!(EngineChild::adopt(&bench.run_dir()).await.is_none());
    // The engine's own child is of its group, which goes with it.
    bench.gone().await;
}

#[tokio::test]
async fn a_row_whose_guard_is_killed_gets_another_engine() {
    let app = TestApp::start_with("[supervisor]\nrestart_backoff = 0.1\n").await;
    let id = app.ready_sim_row("chat", &[]).await;
    let engine = app.row(&id).await["pid"].as_u64().unwrap();
    let guard = crate::support::parent_of(u32::try_from(engine).unwrap()).unwrap();
    assert!(send_signal(guard, Signal::KILL));
    let row = app.wait_row(&id, "another engine is ready", SOON, |row| row["state"] == "ready" && row["pid"] != engine).await;
    assert_eq!(row["restarts"], 1);
    assert!(!alive(u32::try_from(engine).unwrap()));
}

#[tokio::test]
async fn an_engine_stopped_by_a_signal_while_it_loads_is_replaced() {
    let app = TestApp::start_with("[supervisor]\nrestart_backoff = 0.1\nhang_after = 2\n").await;
    let id = app.create_sim_row("chat", &["--load-ms", "4000"]).await;
    let loading = |row: &Value| row["state"] == "starting" && row["pid"].is_number();
    let engine = app.wait_row(&id, "the engine loads", SOON, loading).await["pid"].as_u64().unwrap();
    assert!(send_signal(u32::try_from(engine).unwrap(), Signal::STOP));
    app.wait_row(&id, "another engine is ready", SOON * 2, |row| row["state"] == "ready" && row["pid"] != engine).await;
    assert!(!alive(u32::try_from(engine).unwrap()));
}
