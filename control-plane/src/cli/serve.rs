//! `lifeboat serve`: serves what is configured, until a signal.

use clap::Args;
use serde_json::json;

use super::failure::{Failure, Kind};
use super::output;
use super::settings::GlobalArgs;
use crate::app::{Mode, RunningApp, StartError};
use crate::config::ConfigArgs;
use crate::telemetry::{self, LogFormat};

/// Arguments of `serve`, which `up` takes too.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Write the log as JSON, one object a line
    #[arg(long, env = "LIFEBOAT_LOG_JSON", hide_env_values = true)]
    pub log_json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: ConfigArgs,
}

/// Serves until a signal.
pub async fn run(global: &GlobalArgs, args: ServeArgs) -> anyhow::Result<()> {
    let app = start(global, &args, None).await?;
    let shown = if global.json {
        json!({"url": app.base_url(), "console": format!("{}/", app.base_url())}).to_string()
    } else {
        format!("lifeboat {} serves at {}", env!("CARGO_PKG_VERSION"), app.base_url())
    };
    // Whoever started us may not listen to what we print; that is no reason to stop.
    let _ = output::line(shown);
    until_stopped(app).await;
    Ok(())
}

/// Starts the control plane. Its log follows the settings, `quiet` where they say nothing.
pub async fn start(global: &GlobalArgs, args: &ServeArgs, quiet: Option<&str>) -> anyhow::Result<RunningApp> {
    let config = global.config(&args.settings)?;
    let filter = match quiet {
        Some(quiet) if config.log == telemetry::DEFAULT_FILTER => quiet,
        _ => &config.log,
    };
    let format = if args.log_json { LogFormat::Json } else { LogFormat::Text };
    telemetry::init(Some(filter), format).map_err(|error| Failure::new(Kind::Usage, "the log cannot be set up").caused_by(error))?;
    let app = RunningApp::start(config, Mode::Serve).await.map_err(start_failure)?;
    app.lifecycle.obey_signals()?;
    Ok(app)
}

/// Runs until a signal has stopped everything.
pub async fn until_stopped(app: RunningApp) {
    app.lifecycle.soft.cancelled().await;
    output::remark("Stopping: running requests finish first, a second Ctrl-C stops at once.");
    app.run().await;
}

/// Why there is no control plane, with exit code and cure.
pub fn start_failure(error: StartError) -> Failure {
    let kind = match &error {
        StartError::OpenToOthers(_) => Kind::Refused,
        error if error.is_conflict() => Kind::Conflict,
        _ => Kind::Failed,
    };
    let hint = error.hint();
    let failure = Failure::new(kind, "Lifeboat could not start").caused_by(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
