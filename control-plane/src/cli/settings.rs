//! What every command takes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::failure::{Failure, Kind};
use crate::config::{BaseArgs, Config, ConfigArgs, read_address};

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct GlobalArgs {
    /// Folder with the database, engines, models and logs [default: the platform's data folder]
    #[arg(long, global = true, value_name = "FOLDER", env = "LIFEBOAT_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,
    /// Address of the API [default: 127.0.0.1:4180]
    #[arg(long, global = true, value_name = "ADDRESS", env = "LIFEBOAT_LISTEN", hide_env_values = true, value_parser = read_address)]
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

impl GlobalArgs {
    /// The settings of this command.
    pub fn config(&self, args: &ConfigArgs) -> anyhow::Result<Config> {
        let base = BaseArgs { data_dir: self.data_dir.clone(), listen: self.listen, log: self.log.clone() };
        Config::load(&base, args).map_err(|error| Failure::new(Kind::Usage, "the settings cannot be used").caused_by(error).into())
    }
}
