//! What every command takes, and where the running server of a data directory is found.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::api_client::ApiClient;
use super::failure::{Failure, Kind};

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct GlobalArgs {
    /// Folder with the database, engines, models and logs [default: the platform's data folder]
    #[arg(long, global = true, value_name = "FOLDER", env = "LIFEBOAT_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,
    /// Address of the API [default: 127.0.0.1:4180]
    #[arg(long, global = true, value_name = "ADDRESS", env = "LIFEBOAT_LISTEN", hide_env_values = true)]
    pub listen: Option<SocketAddr>,
    /// Key for the API [default: the one that the local server left in its data folder]
    #[arg(long, global = true, value_name = "KEY", env = "LIFEBOAT_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// What to log, for example `info` or `lifeboat=debug`
    #[arg(long, global = true, value_name = "FILTER", env = "LIFEBOAT_LOG", hide_env_values = true)]
    pub log: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// The default address.
const DEFAULT_LISTEN: &str = "127.0.0.1:4180";
/// Written by the living server: who it is and where it listens.
const CONTROL_FILE: &str = "control-plane.json";
/// Written by the living server for programs of the same user: a key that ends with it.
const ADMIN_TOKEN_FILE: &str = "admin.token";

impl GlobalArgs {
    /// The data directory.
    pub fn data_dir(&self) -> anyhow::Result<PathBuf> {
        use etcetera::BaseStrategy;
        match &self.data_dir {
            Some(folder) => Ok(std::path::absolute(folder)?),
            None => {
                let platform = etcetera::choose_base_strategy().map_err(|error| {
                    Failure::new(Kind::Failed, "the home folder is not known")
                        .hint("name a data folder with --data-dir or LIFEBOAT_DATA_DIR")
                        .caused_by(error)
                })?;
                Ok(platform.data_dir().join("lifeboat"))
            }
        }
    }

    /// A client of the server that runs; a failure where none answers.
    pub async fn running_api(&self) -> anyhow::Result<ApiClient> {
        let folder = self.data_dir()?;
        let address =
            self.listen.map(|address| address.to_string()).or_else(|| listening(&folder)).unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let api = ApiClient::new(format!("http://{address}"), self.key(&folder))?;
        api.get("/health").await?;
        Ok(api)
    }

    fn key(&self, folder: &Path) -> Option<String> {
        self.api_key.clone().or_else(|| fs::read_to_string(folder.join(ADMIN_TOKEN_FILE)).ok().map(|key| key.trim().to_owned()))
    }
}

/// Where the server of this folder listens, if one has written it down.
fn listening(folder: &Path) -> Option<String> {
    let control: Value = serde_json::from_slice(&fs::read(folder.join(CONTROL_FILE)).ok()?).ok()?;
    control["listen"].as_str().map(str::to_owned)
}
