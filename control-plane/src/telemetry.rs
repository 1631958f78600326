//! Logs and metrics.
//!
//! Logs go to standard error through `tracing`, so that the output of a command stays clean; no prompt, key or body is
//! ever logged. Metrics live in [`metrics`], traces for a collector in
//! [`otlp`].

pub mod metrics;
pub mod otlp;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// What is logged where nothing is asked for.
pub const DEFAULT_FILTER: &str = "info";

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One line for people, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("the log filter {filter:?} is not valid (example: info,lifeboat::gateway=debug)")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
    /// Somebody else installed a subscriber before.
    #[error("logging is set up already")]
    Installed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Installs the log writer of this process. `filter` is `LIFEBOAT_LOG` (directives of `tracing`), else [`DEFAULT_FILTER`].
pub fn init(filter: Option<&str>, format: LogFormat) -> Result<(), TelemetryError> {
    let filter = filter.filter(|text| !text.trim().is_empty()).unwrap_or(DEFAULT_FILTER);
    let parsed = EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    // A line that cannot be written (a full disk, a terminal that is gone) is lost. Told of on standard error, as is the
    // default, it would end the task that logged it.
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named_with_an_example() {
        let error = init(Some("lifeboat=loudly"), LogFormat::Text).unwrap_err();
        assert!(error.to_string().contains("lifeboat=loudly") && error.to_string().contains("example"), "{error}");
    }
}
