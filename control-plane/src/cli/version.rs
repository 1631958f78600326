//! `lifeboat version`.

use serde_json::json;

use super::output;
use super::settings::GlobalArgs;

/// Prints the version and what it was built for.
pub fn run(global: &GlobalArgs) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    if global.json {
        return output::json(&json!({"version": version, "os": std::env::consts::OS, "arch": std::env::consts::ARCH}));
    }
    output::line(format!("lifeboat {version} ({} {})", std::env::consts::OS, std::env::consts::ARCH))?;
    Ok(())
}
