//! `lifeboat completions`: a script for the user's shell, written to the output stream.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output};

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to write for
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lifeboat", &mut script);
    output::piece(&String::from_utf8_lossy(&script))?;
    Ok(())
}
