//! Merges flag over environment over file over default, once.
//!
//! clap has already put the environment under the flags of [`ConfigArgs`]; the few variables that have no
//! flag are asked for here through a function, so that tests can answer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use serde::Deserialize;

use super::bounds::{self, OutOfBounds};
use super::{BaseArgs, Config, ConfigArgs, GatewayConfig, HttpConfig, SecurityConfig, SourcesConfig, SupervisorConfig, TelemetryConfig};

/// Name of the settings file in the data directory.
pub const FILE_NAME: &str = "lifeboat.toml";

/// Why the settings cannot be used. Every message names the setting and the cure.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no home directory to put a data directory in.
    #[error("this user has no home directory: say where to keep data with --data-dir or LIFEBOAT_DATA_DIR")]
    NoHome,
    /// The settings file cannot be read.
    #[error("could not read the settings file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The settings file is not valid; the cause names line and key.
    #[error("the settings file {path} is not valid")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A value is outside of its documented bound.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// The settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "address")]
    listen: Option<SocketAddr>,
    log: Option<String>,
    http: HttpConfig,
    gateway: GatewayConfig,
    security: SecurityConfig,
    supervisor: SupervisorConfig,
    sources: SourcesConfig,
    telemetry: TelemetryConfig,
}

/// `listen` of the settings file.
fn address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    super::read_address(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// The settings of this run, from the arguments, the process's environment and the settings file.
    pub fn load(base: &BaseArgs, args: &ConfigArgs) -> Result<Self, ConfigError> {
        Self::merge(base, args, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn merge(base: &BaseArgs, args: &ConfigArgs, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let data_dir = match &base.data_dir {
            Some(folder) => std::path::absolute(folder).map_err(|source| ConfigError::Read { path: folder.clone(), source })?,
            None => default_data_dir().ok_or(ConfigError::NoHome)?,
        };
        let file = match &args.config {
            Some(path) => {
                read(path)?.ok_or_else(|| ConfigError::Read { path: path.clone(), source: std::io::ErrorKind::NotFound.into() })?
            }
            None => read(&data_dir.join(FILE_NAME))?.unwrap_or_default(),
        };
        let defaults = Self::new(data_dir);
        let mut config = Self {
            listen: base.listen.or(file.listen).unwrap_or(defaults.listen),
            log: base.log.clone().or(file.log).unwrap_or(defaults.log),
            data_dir: defaults.data_dir,
            http: file.http,
            gateway: file.gateway,
            security: file.security,
            supervisor: file.supervisor,
            sources: file.sources,
            telemetry: file.telemetry,
        };
        config.take_args(args);
        config.take_variables(variable);
        bounds::check(&config)?;
        Ok(config)
    }

    fn take_args(&mut self, args: &ConfigArgs) {
        replace_if_given(&mut self.security.allowed_hosts, &args.allowed_hosts);
        replace_if_given(&mut self.security.allowed_origins, &args.allowed_origins);
        replace_if_given(&mut self.sources.model_dirs, &args.model_dirs);
        self.security.open_engine_arguments |= args.open_engine_arguments;
        self.supervisor.lease = args.lease.unwrap_or(self.supervisor.lease);
        self.supervisor.drain = args.drain.unwrap_or(self.supervisor.drain);
    }

    fn take_variables(&mut self, variable: &dyn Fn(&str) -> Option<String>) {
        if let Some(url) = variable("LIFEBOAT_OTLP_ENDPOINT") {
            self.telemetry.otlp_endpoint = Some(url);
        }
        let sources = &mut self.sources;
        if let Some(token) = variable("HF_TOKEN") {
            sources.hf_token = Some(token);
        }
        if let Some(program) = variable("LIFEBOAT_LLAMA_SERVER") {
            sources.llama_server = Some(program.into());
        }
        for (name, target) in [
            ("HF_ENDPOINT", &mut sources.hf_endpoint),
            ("LIFEBOAT_GITHUB_API", &mut sources.github_api),
            ("LIFEBOAT_GITHUB_MIRROR", &mut sources.github_mirror),
        ] {
            if let Some(url) = variable(name) {
                *target = url;
            }
            target.truncate(target.trim_end_matches('/').len());
        }
    }
}

/// `~/.local/share/lifeboat` on Linux, its like elsewhere.
pub fn default_data_dir() -> Option<PathBuf> {
    etcetera::choose_base_strategy().ok().map(|folders| folders.data_dir().join("lifeboat"))
}

fn replace_if_given<T: Clone>(target: &mut Vec<T>, given: &[T]) {
    if !given.is_empty() {
        *target = given.to_vec();
    }
}

fn read(path: &Path) -> Result<Option<File>, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ConfigError::Read { path: path.into(), source }),
    };
    toml::from_str(&text).map(Some).map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nothing(_name: &str) -> Option<String> {
        None
    }

    fn merged(file: &str, args: &ConfigArgs, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_NAME), file).unwrap();
        Config::merge(&BaseArgs { data_dir: Some(dir.path().into()), ..Default::default() }, args, variable)
    }

    fn chain(error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }

    #[test]
    fn without_anything_the_documented_defaults_hold() {
        let config = merged("", &ConfigArgs::default(), &nothing).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:4180");
        assert_eq!(config.supervisor.lease, Duration::from_secs(120));
        assert_eq!(config.log, "info");
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = "listen = \"127.0.0.1:9\"\n[supervisor]\nlease = \"5m\"\ndrain = 1.5\n[security]\nallowed_hosts = [\"a\"]";
        let args = ConfigArgs { lease: Some(Duration::from_secs(7)), allowed_hosts: vec!["b".into()], ..Default::default() };
        let config = merged(file, &args, &nothing).unwrap();
        assert_eq!(config.listen.port(), 9);
        assert_eq!(config.supervisor.lease, Duration::from_secs(7));
        assert_eq!(config.supervisor.drain, Duration::from_millis(1500));
        assert_eq!(config.supervisor.kill_after, Duration::from_secs(5));
        assert_eq!(config.security.allowed_hosts, ["b"]);
    }

    #[test]
    fn localhost_may_be_listened_on_by_its_name() {
        for (text, address) in [("localhost:4195", "127.0.0.1:4195"), ("[::1]:80", "[::1]:80"), ("0.0.0.0:1", "0.0.0.0:1")] {
            assert_eq!(super::super::read_address(text).unwrap().to_string(), address);
            assert_eq!(merged(&format!("listen = \"{text}\""), &ConfigArgs::default(), &nothing).unwrap().listen.to_string(), address);
        }
        for text in ["localhost", "example.com:80", "localhost:x", ""] {
            assert!(super::super::read_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_environment_variable_wins_over_the_file_and_a_trailing_slash_is_dropped() {
        let set = |name: &str| (name == "HF_ENDPOINT").then(|| "http://mirror/".to_owned());
        let config =
            merged("[sources]\nhf_endpoint = \"http://file\"\ngithub_api = \"http://api/\"", &ConfigArgs::default(), &set).unwrap();
        assert_eq!((config.sources.hf_endpoint.as_str(), config.sources.github_api.as_str()), ("http://mirror", "http://api"));
    }

    #[test]
    fn an_unknown_key_and_a_wrong_value_are_refused_by_name() {
        for (file, named) in [
            ("lissten = 1", "lissten"),
            ("[gateway]\nqueue = 1", "queue"),
            ("[supervisor]\nlease = \"soon\"", "soon"),
            ("[http]\nmax_connections = 0", "http.max_connections"),
            ("[gateway]\nconnect = 0", "gateway.connect"),
            ("listen = \"somewhere:80\"", "write an IP address or localhost"),
        ] {
            let error = merged(file, &ConfigArgs::default(), &nothing).unwrap_err();
            assert!(chain(&error).contains(named), "{file}: {}", chain(&error));
        }
    }

    #[test]
    fn a_settings_file_asked_for_must_be_there() {
        let args = ConfigArgs { config: Some("/nowhere/lifeboat.toml".into()), ..Default::default() };
        assert!(matches!(merged("", &args, &nothing), Err(ConfigError::Read { .. })));
    }
}
