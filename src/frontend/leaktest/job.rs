//! One browser's run, as a process of its own: its host, the capture, the browser.

use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::capture::Capture;
use super::progress::Progress;
use super::subject::{self, Defences};
use super::verdict::Evidence;
use super::{NoResult, aim, control, host};
use crate::frontend::progress::interrupted;
use crate::run::launch::Program;

/// When the planted packet is sent: the browser runs by then, and for longer.
const PLANTED_AFTER: Duration = Duration::from_secs(2);

/// Which browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    Cell,
    KernelAlone,
    Control,
}

impl Role {
    pub(super) const ALL: [Role; 3] = [Role::Cell, Role::KernelAlone, Role::Control];

    pub(super) fn title(self) -> &'static str {
        match self {
            Role::Cell => "1/3 cell",
            Role::KernelAlone => "2/3 kernel alone",
            Role::Control => "3/3 control",
        }
    }
}

/// What the process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) role: Role,
    pub(super) chromium: Option<PathBuf>,
    pub(super) chromium_sandbox_off: bool,
    pub(super) watch: Duration,
    /// All its files are here; whoever started it removes them.
    pub(super) directory: PathBuf,
    /// Sends a packet from the host meanwhile: the test's own test.
    pub(super) plant: bool,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) evidence: Evidence,
    pub(super) notes: Vec<String>,
}

/// What the re-executed process does, before any runtime or thread exists. The answer goes to
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

/// The whole run, in order.
fn on_own_host(job: &Job) -> Result<Run, NoResult> {
    let progress = Progress::new(job.role.title());
    // 1. Never outlive the caller.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(NoResult::failed)?;
    // 2. Namespaces, while there is one thread.
    host::enter().map_err(|error| NoResult::no_host(&error, error.hint()))?;
    let mut notes: Vec<String> = host::replace_resolver(&job.directory).into_iter().collect();
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
        // 4. The browser.
        progress.say("starting Chromium");
        let program = Program::find(job.chromium.as_deref(), &job.directory)?;
        let browser = async {
            tokio::select! {
                evidence = browse(job, &program, &mut notes, &progress) => evidence,
                // Dropping the browser ends it, and everything below it.
                signal = interrupted() => Err(NoResult::failed(format!("ended by {signal}"))),
                ended = caller_left() => Err(NoResult::failed(match ended {
                    Ok(()) => "ended by the caller".to_owned(),
                    Err(error) => format!("no way to hear of the caller's end: {error}"),
                })),
            }
        };
        let (evidence, ()) = tokio::try_join!(browser, plant(job.plant))?;
        // 5. Every packet since the capture was empty.
        let packets = capture.take().await.map_err(NoResult::failed)?;
        progress.say(&format!("done, {} packets on its host", packets.len()));
        let evidence = Evidence {
            packets,
            ..evidence
        };
        Ok(Run { evidence, notes })
    })
}

async fn browse(
    job: &Job,
    program: &Program,
    notes: &mut Vec<String>,
    progress: &Progress,
) -> Result<Evidence, NoResult> {
    let defences = match job.role {
        Role::Cell => Defences::All,
        Role::KernelAlone => Defences::KernelAlone,
        Role::Control => {
            let profile = job.directory.join("control");
            std::fs::create_dir(&profile).map_err(NoResult::failed)?;
            let run = control::run(&program.path, &profile, aim::DOMAIN, job.watch, progress);
            return run.await.map_err(NoResult::failed);
        }
    };
    let sandbox_off = job.chromium_sandbox_off;
    let run = subject::run(
        program,
        defences,
        sandbox_off,
        aim::DOMAIN,
        job.watch,
        progress,
    );
    let (evidence, gaps) = run.await?;
    notes.extend(gaps.into_iter().map(str::to_owned));
    Ok(evidence)
}

/// Completes when whoever started this process closes its standard input.
async fn caller_left() -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let mut input = Receiver::from_owned_fd(input)?;
    while input.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

/// A packet that does what no vector may: it leaves the host while the browser runs.
async fn plant(wanted: bool) -> Result<(), NoResult> {
    if wanted {
        tokio::time::sleep(PLANTED_AFTER).await;
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(NoResult::failed)?;
        let sent = socket.send_to(b"planted", (aim::RESOLVER, aim::PLANTED_PORT));
        sent.map_err(NoResult::failed)?;
    }
    Ok(())
}
