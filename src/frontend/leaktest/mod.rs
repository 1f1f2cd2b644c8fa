//! `onioncell leaktest`: tries to get past the cell in every known way, and shows what happened.
//!
//! The test runs on a host of its own ([`host`]), where nothing can leave the machine and every
//! packet is seen ([`capture`]). There a browser in a cell tries every vector ([`vectors`],
//! [`drive`]), and so does a plain one as a control ([`control`]), both with the same pages
//! ([`site`]). [`verdict`] turns what was seen into findings, [`report`] writes them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

pub mod aim;
mod capture;
mod certificate;
mod control;
mod drive;
mod host;
pub mod packet;
pub mod report;
pub mod site;
mod subject;
pub mod vectors;
pub mod verdict;
pub mod web;

pub use report::Report;

use crate::config::Flags;
use crate::protocol::error::{Code, Failure};
use crate::protocol::render::Format;
use crate::run::launch::Program;
use capture::Capture;

/// The hidden subcommand that this program re-executes itself as.
pub const HOST_COMMAND: &str = "leaktest-host";

/// What both runs take besides the time they are watched; far more than they need.
const LIMIT: Duration = Duration::from_secs(150);

/// What a leak test can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct LeaktestOptions {
    /// How many seconds each browser is watched at least
    #[arg(long, default_value_t = 5, value_name = "SECONDS", env = "ONIONCELL_WATCH",
          value_parser = clap::value_parser!(u64).range(..=3600))]
    watch: u64,
}

/// The same for the process that does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    chromium: Option<PathBuf>,
    chromium_sandbox_off: bool,
    watch: Duration,
}

/// Why there is no result.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct NoResult {
    isolation: bool,
    message: String,
    hint: Option<String>,
}

impl NoResult {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self {
            isolation: false,
            message: error.to_string(),
            hint: None,
        }
    }

    fn no_host(error: impl std::fmt::Display, hint: &str) -> Self {
        Self {
            isolation: true,
            message: format!("a host for the leak test cannot be had: {error}"),
            hint: Some(hint.to_owned()),
        }
    }
}

impl From<Failure> for NoResult {
    fn from(failure: Failure) -> Self {
        Self {
            isolation: failure.code == Code::IsolationUnavailable,
            message: failure.message,
            hint: failure.hint,
        }
    }
}

impl From<NoResult> for Failure {
    fn from(no_result: NoResult) -> Self {
        let code = if no_result.isolation {
            Code::IsolationUnavailable
        } else {
            Code::OpFailed
        };
        Failure {
            code,
            message: no_result.message,
            hint: no_result.hint,
        }
    }
}

/// `onioncell leaktest`: its text and its exit status, 0 only if all was contained and the control
/// was seen leaking.
pub(super) async fn run(
    flags: &Flags,
    format: Format,
    options: LeaktestOptions,
) -> Result<(String, u8), Failure> {
    let job = Job {
        chromium: flags.chromium.clone(),
        chromium_sandbox_off: flags.dangerously_no_chromium_sandbox,
        watch: Duration::from_secs(options.watch),
    };
    let report = delegate(&job).await?;
    let text = match format {
        Format::Human => report.to_text(),
        Format::Json | Format::Sentinel => format!("{}\n", report.to_json()),
    };
    Ok((text, report.exit_status()))
}

/// Runs the test in a process of its own, and waits for its report.
async fn delegate(job: &Job) -> Result<Report, NoResult> {
    let argument = serde_json::to_string(job).map_err(NoResult::failed)?;
    let child = Command::new("/proc/self/exe")
        .arg(HOST_COMMAND)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NoResult::failed)?;
    let limit = LIMIT + 2 * job.watch;
    let output = tokio::time::timeout(limit, child.wait_with_output())
        .await
        .map_err(|_| NoResult::failed(format!("leak test not done after {} s", limit.as_secs())))?
        .map_err(NoResult::failed)?;
    if output.stdout.is_empty() {
        let ended = format!("the leak test ended without a report ({})", output.status);
        return Err(NoResult::failed(ended));
    }
    serde_json::from_slice::<Result<Report, NoResult>>(&output.stdout).map_err(NoResult::failed)?
}

/// What the re-executed process does, before any runtime or thread exists. The report goes to
/// standard output, for the process that started it.
pub fn host_main() -> ExitCode {
    let answer = parse().and_then(|job| on_own_host(&job));
    let written = serde_json::to_vec(&answer)
        .map_err(std::io::Error::from)
        .and_then(|bytes| std::io::stdout().write_all(&bytes));
    match (answer, written) {
        (Ok(_), Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn parse() -> Result<Job, NoResult> {
    let argument = std::env::args().nth(2).unwrap_or_default();
    serde_json::from_str(&argument).map_err(NoResult::failed)
}

/// The whole test, in order.
fn on_own_host(job: &Job) -> Result<Report, NoResult> {
    // 1. Never outlive the caller.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(NoResult::failed)?;
    // 2. Namespaces, while there is one thread.
    let directory = tempfile::Builder::new()
        .prefix("onioncell-leaktest-")
        .tempdir()
        .map_err(NoResult::failed)?;
    host::enter().map_err(|error| NoResult::no_host(&error, error.hint()))?;
    let mut notes: Vec<String> = host::replace_resolver(directory.path())
        .into_iter()
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(NoResult::failed)?;
    runtime.block_on(async {
        // 3. The link, and the capture before anything runs.
        let made = host::make_link().await;
        notes.extend(made.map_err(|error| NoResult::no_host(&error, error.hint()))?);
        let mut capture = Capture::start().map_err(|error| {
            NoResult::no_host(error, "packet sockets must be allowed in a user namespace")
        })?;
        // What the kernel said while the link came up is nobody's leak.
        capture.take().await.map_err(NoResult::failed)?;
        // 4. The cell, then the control, each judged by its own packets.
        let program = Program::find(job.chromium.as_deref(), directory.path())?;
        let cell = cell(job, &program, &mut capture, &mut notes).await?;
        let control = control(job, &program, directory.path(), &mut capture).await?;
        Ok(Report {
            cell,
            control,
            notes,
        })
    })
}

async fn cell(
    job: &Job,
    program: &Program,
    capture: &mut Capture,
    notes: &mut Vec<String>,
) -> Result<Vec<verdict::Finding>, NoResult> {
    let (mut evidence, gaps) =
        subject::run(program, job.chromium_sandbox_off, aim::DOMAIN, job.watch).await?;
    notes.extend(gaps.into_iter().map(str::to_owned));
    evidence.packets = capture.take().await.map_err(NoResult::failed)?;
    Ok(verdict::judge(&evidence, aim::DOMAIN))
}

async fn control(
    job: &Job,
    program: &Program,
    directory: &Path,
    capture: &mut Capture,
) -> Result<Vec<verdict::Finding>, NoResult> {
    let profile = directory.join("control");
    std::fs::create_dir(&profile).map_err(NoResult::failed)?;
    let mut evidence = control::run(&program.path, &profile, aim::DOMAIN, job.watch)
        .await
        .map_err(NoResult::failed)?;
    evidence.packets = capture.take().await.map_err(NoResult::failed)?;
    Ok(verdict::judge(&evidence, aim::DOMAIN))
}
