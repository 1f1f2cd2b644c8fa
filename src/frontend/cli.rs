//! The command line.

use clap::{Parser, Subcommand};

use super::doctor::DoctorOptions;
use super::gateway::GatewayOptions;
use super::leaktest::LeaktestOptions;
use super::policy::PolicyCommand;
use super::progress;
use crate::config::Flags;
use crate::protocol::error::{Code, Failure};
use crate::protocol::op::Op;
use crate::protocol::reply::Outcome;
use crate::run::{self, Instance};
use crate::workspace::Workspace;

/// A browser in a cell whose only way out is Tor
#[derive(Debug, Parser)]
#[command(name = "onioncell", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) flags: Flags,
    #[command(subcommand)]
    pub(super) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  onioncell --allow example.com navigate https://example.com/
  onioncell --allow-public-web extract_text --url https://example.com/
  onioncell --allow example.com screenshot --url https://example.com/ --path page.png
  onioncell doctor";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(flatten)]
    Op(Op),
    /// What this system gives, what is missing, and how to get it
    Doctor(DoctorOptions),
    /// Try to get out of the cell in every known way, and report each
    Leaktest(LeaktestOptions),
    /// Serve browsers that have no network of their own
    Gateway(GatewayOptions),
    /// Check addresses against the policy; print the profiles
    #[command(subcommand)]
    Policy(PolicyCommand),
}

/// One op in a browser of its own, ended by SIGINT and SIGTERM as by itself.
pub(super) async fn run_op(flags: Flags, op: &Op) -> Outcome {
    let config = flags.validate()?;
    let workspace = Workspace::open(&config.workspace)
        .map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    run::precheck(&config.policy, &workspace, op)?;
    let tor = progress::TorProgress::new();
    let work = async {
        let mut instance = Instance::start(config, tor.reporter()).await?;
        let outcome = instance.execute(op).await;
        instance.stop().await;
        outcome
    };
    tokio::select! {
        outcome = work => outcome,
        // Dropping the work ends the browser and everything below it.
        signal = progress::interrupted() => {
            Err(Failure::new(Code::OpFailed, format!("{} ended by {signal}", op.name())))
        }
    }
}
