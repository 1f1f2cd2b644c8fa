//! Who calls: parses the command line, runs one command, prints its result or its error once.

mod cli;
mod doctor;
mod gateway;
pub mod leaktest;
mod policy;
mod progress;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cell;
use crate::protocol::error::{Code, Failure};
use crate::protocol::render;
use cli::{Cli, Command};

/// The whole program.
pub fn main() -> ExitCode {
    // Roles that this program takes on when it re-executes itself; they must have one thread.
    match std::env::args_os().nth(1) {
        Some(role) if role == cell::INIT_COMMAND => cell::init(),
        Some(role) if role == leaktest::HOST_COMMAND => return leaktest::host_main(),
        _ => {}
    }
    let cli = Cli::parse();
    progress::log_to_stderr(cli.flags.verbose);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime {
        // The main thread runs the command: what it spawns dies with it (PR_SET_PDEATHSIG).
        Ok(runtime) => runtime.block_on(command(cli)),
        Err(error) => {
            let failure = Failure::new(Code::OpFailed, format!("cannot start threads: {error}"));
            print(&failure_text(&failure));
            ExitCode::from(failure.code.exit_status())
        }
    }
}

async fn command(cli: Cli) -> ExitCode {
    let format = cli.flags.format();
    let done = match cli.command {
        Command::Op(op) => {
            let outcome = cli::run_op(cli.flags, &op).await;
            let status = outcome.as_ref().err().map_or(0, |f| f.code.exit_status());
            return match render::outcome(format, op.name(), &outcome) {
                Ok(text) if print(&text) => ExitCode::from(status),
                _ => ExitCode::FAILURE,
            };
        }
        Command::Doctor(options) => doctor::run(cli.flags, format, options).await,
        Command::Leaktest(options) => leaktest::run(&cli.flags, format, options).await,
        Command::Gateway(options) => gateway::run(cli.flags, options).await,
        Command::Policy(command) => policy::run(&cli.flags, command),
    };
    match done {
        Ok((text, status)) if print(&text) => ExitCode::from(status),
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            let text = match format {
                render::Format::Human => failure_text(&failure),
                _ => render::outcome(format, "start", &Err(failure.clone())).unwrap_or_default(),
            };
            print(&text);
            ExitCode::from(failure.code.exit_status())
        }
    }
}

fn failure_text(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("error: {failure}\n  hint: {hint}\n"),
        None => format!("error: {failure}\n"),
    }
}

/// The one place that writes to stdout. False if nobody reads it any more.
fn print(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .is_ok()
}
