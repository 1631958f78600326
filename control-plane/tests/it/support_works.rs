//! The test support, tested: a helper that lies makes every other test worthless.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Served, TestApp, alive, send_signal};

#[test]
fn a_process_that_names_the_data_directory_is_found_and_a_dead_one_is_not() {
    let app = TestApp::prepare("");
    let mut command = crate::support::command("sleep");
    command.arg("600").env("MARK", app.data_dir());
    let mut served = Served::start(&mut command).unwrap();
    assert_eq!(app.processes().into_iter().map(|(pid, _)| pid).collect::<Vec<_>>(), [served.pid()]);
    assert!(alive(served.pid()));
    assert!(send_signal(served.pid(), Signal::KILL));
    assert!(served.wait_at_most(Duration::from_secs(10)).is_some());
    assert!(!alive(served.pid()));
    assert!(app.processes().is_empty());
}
