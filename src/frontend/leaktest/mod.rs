//! `onioncell leaktest`: tries to get past the cell in every known way, and shows what happened.
//!
//! The test runs on a host of its own ([`host`]), where nothing can leave the machine and every
//! packet is seen ([`capture`]). There a browser in a cell tries every vector ([`vectors`],
//! [`drive`]), and so does a plain one as a control ([`control`]), both with the same pages
//! ([`site`]). [`verdict`] turns what was seen into findings, [`report`] writes them.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

pub mod aim;
pub mod capture;
mod certificate;
pub mod control;
pub mod drive;
pub mod host;
pub mod packet;
pub mod report;
pub mod site;
pub mod vectors;
pub mod verdict;
pub mod web;

pub use report::Report;

/// The hidden subcommand that this program re-executes itself as.
pub const HOST_COMMAND: &str = "leaktest-host";

/// Both runs, each with a start, its vectors and an end; far more than they take.
const LIMIT: Duration = Duration::from_secs(180);

/// What a leak test can be told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    pub chromium: PathBuf,
    /// How long each browser is watched at least: Chromium's own services take their time.
    pub watch: Duration,
}

/// Why there is no result.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum LeaktestError {
    /// The contract's `isolation_unavailable`.
    #[error("a host for the test cannot be had: {reason}; {hint}")]
    HostUnavailable { reason: String, hint: String },
    #[error("leak test: {0}")]
    Failed(String),
}

fn failed(error: impl std::fmt::Display) -> LeaktestError {
    LeaktestError::Failed(error.to_string())
}

/// Runs the leak test in a process of its own, and waits for its report.
pub async fn run(options: &Options) -> Result<Report, LeaktestError> {
    let options = serde_json::to_string(options).map_err(failed)?;
    let child = Command::new("/proc/self/exe")
        .arg(HOST_COMMAND)
        .arg(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .map_err(|_| failed(format!("not done after {} s", LIMIT.as_secs())))?
        .map_err(failed)?;
    if output.stdout.is_empty() {
        return Err(failed(format!(
            "its process ended without a report ({})",
            output.status
        )));
    }
    serde_json::from_slice::<Result<Report, LeaktestError>>(&output.stdout).map_err(failed)?
}

/// What the re-executed process does: `main` calls this before any runtime or thread exists. The
/// report goes to standard output, for [`run`].
pub fn host_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let answer = parse(arguments).and_then(|options| on_own_host(&options));
    let status = if answer.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let written = serde_json::to_vec(&answer)
        .map_err(std::io::Error::from)
        .and_then(|bytes| std::io::stdout().write_all(&bytes));
    if written.is_ok() {
        status
    } else {
        ExitCode::FAILURE
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Options, LeaktestError> {
    let first = arguments.into_iter().next().unwrap_or_default();
    serde_json::from_str(&first.to_string_lossy()).map_err(failed)
}

/// The whole test, in order.
fn on_own_host(options: &Options) -> Result<Report, LeaktestError> {
    let unavailable = |error: &dyn std::fmt::Display, hint: &str| LeaktestError::HostUnavailable {
        reason: error.to_string(),
        hint: hint.to_owned(),
    };
    // 1. Never outlive the caller.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(failed)?;
    // 2. Namespaces, while there is one thread.
    let directory = tempfile::Builder::new()
        .prefix("onioncell-leaktest-")
        .tempdir()
        .map_err(failed)?;
    host::enter().map_err(|error| unavailable(&error, error.hint()))?;
    let mut notes: Vec<String> = host::replace_resolver(directory.path())
        .into_iter()
        .collect();
    // 3. The link, and the capture before anything runs.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let made = host::make_link().await;
        notes.extend(made.map_err(|error| unavailable(&error, error.hint()))?);
        let mut capture = capture::Capture::start().map_err(|error| {
            unavailable(&error, "a user namespace must be allowed packet sockets")
        })?;
        // What the kernel said while the link came up is nobody's leak.
        capture.take().await.map_err(failed)?;
        // 4. The control.
        let control = control(options, directory.path(), &mut capture).await?;
        Ok(Report {
            cell: Vec::new(),
            control,
            notes,
        })
    })
}

async fn control(
    options: &Options,
    directory: &Path,
    capture: &mut capture::Capture,
) -> Result<Vec<verdict::Finding>, LeaktestError> {
    let web = Arc::new(web::Web::new(aim::DOMAIN).map_err(failed)?);
    let profile = directory.join("control");
    std::fs::create_dir(&profile).map_err(failed)?;
    let ran = control::run(
        &options.chromium,
        &profile,
        Arc::clone(&web),
        aim::DOMAIN,
        options.watch,
    )
    .await
    .map_err(failed)?;
    let evidence = verdict::Evidence {
        packets: capture.take().await.map_err(failed)?,
        asked: web.take_asked(),
        outcomes: ran.outcomes,
        proxy_port: Some(ran.proxy_port),
    };
    Ok(verdict::judge(&evidence, aim::DOMAIN))
}
