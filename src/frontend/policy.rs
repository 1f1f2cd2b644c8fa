//! `onioncell policy`: addresses against the rules, and the files that other programs need.

use std::fmt::Write as _;
use std::io::BufRead as _;

use clap::Subcommand;

use crate::browser::managed;
use crate::config::Flags;
use crate::protocol::boundary::escape_line;
use crate::protocol::error::{Code, Failure};

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// A line for each address: ALLOW url, or DENY url: reason
    Check {
        /// Addresses, or - to read them from standard input, one a line
        #[arg(required = true)]
        urls: Vec<String>,
    },
    /// Print Chromium's managed policies
    Chromium,
}

pub(super) fn run(flags: &Flags, command: PolicyCommand) -> Result<(String, u8), Failure> {
    match command {
        PolicyCommand::Chromium => Ok((managed::file(&[]), 0)),
        PolicyCommand::Check { urls } => check(flags, urls),
    }
}

fn check(flags: &Flags, urls: Vec<String>) -> Result<(String, u8), Failure> {
    let policy = flags.load_policy()?;
    let mut report = String::new();
    let mut all_allowed = true;
    for url in read(urls)? {
        // Writing to a String cannot fail.
        let _ = match policy.check_url(&url) {
            Ok(_) => writeln!(report, "ALLOW {}", escape_line(&url)),
            Err(denied) => {
                all_allowed = false;
                writeln!(report, "DENY {}: {}", escape_line(&url), denied.denial)
            }
        };
    }
    let status = if all_allowed {
        0
    } else {
        Code::PolicyDenied.exit_status()
    };
    Ok((report, status))
}

fn read(urls: Vec<String>) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for url in urls {
        if url != "-" {
            all.push(url);
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| {
                Failure::new(
                    Code::Usage,
                    format!("cannot read addresses from standard input: {error}"),
                )
            })?;
            if !line.trim().is_empty() {
                all.push(line.trim().to_owned());
            }
        }
    }
    Ok(all)
}
