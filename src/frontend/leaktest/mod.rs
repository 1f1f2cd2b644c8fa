//! `onioncell leaktest`: tries to get past the cell in every known way, and shows what happened.
//!
//! Three browsers try every vector ([`vectors`], [`drive`]) with the same pages ([`site`]): one in a
//! cell, one in a cell without any other defence ([`subject`]), and a plain one as a control
//! ([`control`]). Each has a process ([`job`]) and a host of its own ([`host`]), where nothing can
//! leave the machine and every packet is seen ([`capture`]); so they run side by side and no packet
//! is another's. [`verdict`] turns what was seen into findings, [`report`] writes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

pub mod aim;
mod capture;
mod certificate;
mod control;
mod drive;
mod host;
mod job;
pub mod packet;
mod progress;
pub mod report;
pub mod site;
mod subject;
pub mod vectors;
pub mod verdict;
pub mod web;

pub use job::host_main;
pub use report::Report;

use super::progress::interrupted;
use crate::config::Flags;
use crate::protocol::error::{Code, Failure};
use crate::protocol::render::Format;
use job::{Job, Role, Run};

/// The hidden subcommand that this program re-executes itself as.
pub const HOST_COMMAND: &str = "leaktest-host";

/// What the runs take besides the time they are watched; far more than they need.
const LIMIT: Duration = Duration::from_secs(150);
/// How long a run that is told to end may take to end its browser.
const FAREWELL: Duration = Duration::from_secs(5);
const REMOVE_AGAIN: Duration = Duration::from_millis(100);

/// What a leak test can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct LeaktestOptions {
    /// How many seconds each browser is watched at least
    #[arg(long, default_value_t = 5, value_name = "SECONDS", env = "ONIONCELL_WATCH",
          value_parser = clap::value_parser!(u64).range(..=3600))]
    watch: u64,
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
    let experiment = Experiment {
        program: "/proc/self/exe".into(),
        chromium: flags.chromium.clone(),
        chromium_sandbox_off: flags.dangerously_no_chromium_sandbox,
        watch: Duration::from_secs(options.watch),
        plant: false,
    };
    let report = experiment.run().await?;
    let text = match format {
        Format::Human => report.to_text(),
        Format::Json | Format::Sentinel => format!("{}\n", report.to_json()),
    };
    Ok((text, report.exit_status()))
}

/// A leak test to be run.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Experiment {
    /// This program, which each run re-executes.
    pub program: PathBuf,
    pub chromium: Option<PathBuf>,
    pub chromium_sandbox_off: bool,
    pub watch: Duration,
    /// Makes the cell's host send a packet during its run, which has to be found.
    pub plant: bool,
}

impl Experiment {
    /// Runs the three browsers side by side, and judges what was seen.
    pub async fn run(&self) -> Result<Report, Failure> {
        let directory = tempfile::Builder::new()
            .prefix("onioncell-leaktest-")
            .tempdir()
            .map_err(NoResult::failed)?;
        let report = self.run_in(directory.path()).await;
        remove(directory).await;
        report
    }

    async fn run_in(&self, directory: &Path) -> Result<Report, Failure> {
        let mut children = Vec::new();
        for role in Role::ALL {
            children.push(self.start(role, directory)?);
        }
        let (mut answers, mut lifelines) = (Vec::new(), Vec::new());
        for mut child in children {
            lifelines.extend(child.stdin.take());
            answers.push(self.answer(child));
        }
        let mut all = std::pin::pin!(futures::future::join_all(answers));
        let answers = tokio::select! {
            answers = &mut all => answers,
            signal = interrupted() => {
                // Each run ends its browser when its standard input does.
                drop(lifelines);
                let _ = timeout(FAREWELL, all).await;
                return Err(NoResult::failed(format!("leaktest ended by {signal}")).into());
            }
        };
        let runs = answers.into_iter().collect::<Result<Vec<Run>, _>>()?;
        let Ok([cell, kernel_alone, control]) = <[Run; 3]>::try_from(runs) else {
            return Err(NoResult::failed("a run is missing").into());
        };
        Ok(conclude(cell, kernel_alone, control))
    }

    fn start(&self, role: Role, directory: &Path) -> Result<Child, NoResult> {
        let directory = directory.join(format!("{role:?}"));
        std::fs::create_dir(&directory).map_err(NoResult::failed)?;
        let job = Job {
            role,
            chromium: self.chromium.clone(),
            chromium_sandbox_off: self.chromium_sandbox_off,
            watch: self.watch,
            plant: self.plant && role == Role::Cell,
            directory: directory.clone(),
        };
        Command::new(&self.program)
            .arg(HOST_COMMAND)
            .arg(serde_json::to_string(&job).map_err(NoResult::failed)?)
            .env("TMPDIR", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(NoResult::failed)
    }

    async fn answer(&self, child: Child) -> Result<Run, NoResult> {
        let limit = LIMIT + self.watch;
        let output = timeout(limit, child.wait_with_output())
            .await
            .map_err(|_| {
                NoResult::failed(format!("leak test not done after {} s", limit.as_secs()))
            })?
            .map_err(NoResult::failed)?;
        if output.stdout.is_empty() {
            let ended = format!("the leak test ended without a report ({})", output.status);
            return Err(NoResult::failed(ended));
        }
        serde_json::from_slice::<Result<Run, NoResult>>(&output.stdout).map_err(NoResult::failed)?
    }
}

/// Removes the directory. A browser whose run was killed may still be ending, and writing.
async fn remove(directory: tempfile::TempDir) {
    let path = directory.keep();
    let gone = async {
        while std::fs::remove_dir_all(&path).is_err() && path.exists() {
            sleep(REMOVE_AGAIN).await;
        }
    };
    if timeout(FAREWELL, gone).await.is_err() {
        eprintln!("leaktest: {} could not be removed", path.display());
    }
}

fn conclude(cell: Run, kernel_alone: Run, control: Run) -> Report {
    let judge = |run: &Run| verdict::judge(&run.evidence, aim::DOMAIN);
    let mut notes = Vec::new();
    for note in [&cell, &kernel_alone, &control]
        .into_iter()
        .flat_map(|run| &run.notes)
    {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let control = judge(&control);
    let [cell, kernel_alone] = [&cell, &kernel_alone].map(|run| {
        let mut findings = judge(run);
        verdict::tell_inert(&mut findings, &control);
        findings
    });
    Report {
        cell,
        kernel_alone,
        control,
        notes,
    }
}
