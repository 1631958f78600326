//! Settings as command line options and environment variables. Options that every command takes are
//! [`BaseArgs`]; what only a server needs is [`ConfigArgs`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;

/// What every command knows, where it was given.
#[derive(Debug, Clone, Default)]
pub struct BaseArgs {
    /// `--data-dir`, `LIFEBOAT_DATA_DIR`.
    pub data_dir: Option<PathBuf>,
    /// `--listen`, `LIFEBOAT_LISTEN`.
    pub listen: Option<SocketAddr>,
    /// `--log`, `LIFEBOAT_LOG`.
    pub log: Option<String>,
}

/// What `serve` and `up` take beside that.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Settings (each is also a key of lifeboat.toml)")]
pub struct ConfigArgs {
    /// Settings file [default: lifeboat.toml in the data folder, if it is there]
    #[arg(long, value_name = "FILE", env = "LIFEBOAT_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Host name under which this server may be called, beside loopback names and the listen address; give it again for more
    #[arg(long = "allowed-host", value_name = "HOST", env = "LIFEBOAT_ALLOWED_HOSTS", hide_env_values = true, value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,
    /// Browser origin that may call, beside our own pages; give it again for more
    #[arg(long = "allowed-origin", value_name = "ORIGIN", env = "LIFEBOAT_ALLOWED_ORIGINS", hide_env_values = true, value_delimiter = ',')]
    pub allowed_origins: Vec<String>,
    /// Accept any extra engine argument, not only those on the allow-list
    #[arg(long, env = "LIFEBOAT_OPEN_ENGINE_ARGUMENTS", hide_env_values = true)]
    pub open_engine_arguments: bool,
    /// How long engines live on when the control plane is gone, `0` = for ever [default: 2m]
    #[arg(long, value_name = "DURATION", env = "LIFEBOAT_LEASE", hide_env_values = true, value_parser = duration::parse)]
    pub lease: Option<Duration>,
    /// How long running requests may finish at a stop [default: 30s]
    #[arg(long, value_name = "DURATION", env = "LIFEBOAT_DRAIN", hide_env_values = true, value_parser = duration::parse)]
    pub drain: Option<Duration>,
    /// Folder with models to scan beside our own; give it again for more
    #[arg(long = "model-dir", value_name = "FOLDER", env = "LIFEBOAT_MODEL_DIRS", hide_env_values = true, value_delimiter = ',')]
    pub model_dirs: Vec<PathBuf>,
}
