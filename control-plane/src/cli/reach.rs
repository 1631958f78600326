//! Finds the control plane a command talks to: the one that runs on this data directory, or, where none runs,
//! one opened in this process for this command alone.
//!
//! The one in this process listens on a loopback port of its own and runs no engine, so a command has one way
//! to work and takes it in both cases.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};
use super::serve::start_failure;
use super::settings::GlobalArgs;
use crate::app::{Mode, RunningApp, StartError, reachable};
use crate::config::{Config, ConfigArgs};
use crate::host::instance::{ClaimError, control_file};
use crate::host::process::Identity;
use crate::keys::read_local_token;
use crate::telemetry::{self, LogFormat};

/// Another command may hold the data directory for a moment: how often and how long it is waited for.
const HELD_PAUSE: Duration = Duration::from_millis(100);
/// See [`HELD_PAUSE`].
const HELD_TRIES: u32 = 50;
/// What a command logs unless told otherwise: its own messages say the rest.
const COMMAND_LOG: &str = "error";

/// A client, and the control plane behind it where that is ours.
#[derive(Debug)]
pub struct Reached {
    /// The client.
    pub api: ApiClient,
    own: Option<RunningApp>,
}

impl Reached {
    /// Whether a server runs, beyond this command.
    pub fn is_running(&self) -> bool {
        self.own.is_none()
    }

    /// Ends what this command opened. A command that is killed instead loses nothing: the next one finds the lock free.
    pub async fn close(self) {
        if let Some(app) = self.own {
            app.stop().await;
        }
    }
}

/// Runs work against whichever control plane there is.
pub async fn with_api(global: &GlobalArgs, work: impl AsyncFnOnce(&ApiClient) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let reached = reach(global).await?;
    let outcome = work(&reached.api).await;
    reached.close().await;
    outcome
}

/// The control plane that runs, else one of our own.
pub async fn reach(global: &GlobalArgs) -> anyhow::Result<Reached> {
    let config = global.config(&ConfigArgs::default())?;
    for left in (0..HELD_TRIES).rev() {
        if let Some(api) = find_running(global, &config).await? {
            return Ok(Reached { api, own: None });
        }
        match open(global, &config).await {
            Ok(reached) => return Ok(reached),
            Err(error) if left > 0 && is_held(&error) => tokio::time::sleep(HELD_PAUSE).await,
            Err(error) => return Err(error),
        }
    }
    Err(Failure::new(Kind::Conflict, format!("{} stays in use", config.data_dir.display())).into())
}

/// The control plane that runs, or a failure.
pub async fn running(global: &GlobalArgs) -> anyhow::Result<ApiClient> {
    let config = global.config(&ConfigArgs::default())?;
    if let Some(api) = find_running(global, &config).await? {
        return Ok(api);
    }
    let place = match global.listen {
        Some(address) => format!("no server answers at {}", url(address)),
        None => format!("no server runs on {}", config.data_dir.display()),
    };
    Err(Failure::new(Kind::NotRunning, place)
        .hint("start one with `lifeboat up` or `lifeboat serve`, or name the one you mean with --listen or --data-dir")
        .into())
}

/// The server at the address that was asked for, else the one that this data directory names.
async fn find_running(global: &GlobalArgs, config: &Config) -> anyhow::Result<Option<ApiClient>> {
    let announced = announced(&config.data_dir);
    // Whoever names an address means the server there: what else runs is no substitute.
    if let Some(address) = global.listen.or(announced) {
        // The data directory's own token is for its own server and for nobody else.
        let is_ours = announced.is_some_and(|announced| announced.port() == address.port()) && reachable(address).ip().is_loopback();
        let token = if is_ours { read_local_token(&config.data_dir).ok().flatten() } else { None };
        let api = ApiClient::new(url(address), global.api_key.clone().or(token))?;
        match api.get("/health").await {
            Ok(_) => return Ok(Some(api)),
            Err(error) if error.kind() == Kind::NotRunning && reachable(address).ip().is_loopback() => {
                if let Some(other) = announced.filter(|other| *other != address) {
                    return Err(Failure::new(Kind::NotRunning, format!("no server answers at {}", url(address)))
                        .hint(format!("the server of {} is at {}; leave --listen out to use it", config.data_dir.display(), url(other)))
                        .into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn url(address: SocketAddr) -> String {
    format!("http://{}", reachable(address))
}

/// Where the living control plane of this folder listens, if there is one.
fn announced(folder: &Path) -> Option<SocketAddr> {
    #[derive(Deserialize)]
    struct ControlFile {
        #[serde(flatten)]
        identity: Identity,
        listen: Option<SocketAddr>,
    }
    let control: ControlFile = serde_json::from_slice(&fs::read(control_file(folder)).ok()?).ok()?;
    control.listen.filter(|_| control.identity.lives())
}

/// A control plane of our own, for this command.
async fn open(global: &GlobalArgs, config: &Config) -> anyhow::Result<Reached> {
    // A second command in one process (tests) keeps the log of the first.
    drop(telemetry::init(Some(global.log.as_deref().unwrap_or(COMMAND_LOG)), LogFormat::Text));
    let mut config = config.clone();
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let app = RunningApp::start(config.clone(), Mode::ApiOnly).await.map_err(start_failure)?;
    let api = ApiClient::new(app.base_url(), read_local_token(&config.data_dir)?)?;
    Ok(Reached { api, own: Some(app) })
}

fn is_held(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(StartError::Claim(ClaimError::Held { .. }))))
}
