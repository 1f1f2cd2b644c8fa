//! Chromium in its cell, up to an empty page. Without a gateway behind the listener it reaches nothing.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::browser::cdp::Connection;
use crate::browser::managed::{self, Certificate};
use crate::browser::profile::Profile;
use crate::browser::switches::{self, Setup, Switches};
use crate::browser::{Session, version};
use crate::cell::{self, Capabilities, Cell, CellError, Display, Isolation, Plan, Supervisor};
use crate::protocol::error::{Code, Failure};

/// The gateway's port inside the cell; the managed policies name it too.
const GATEWAY_PORT: u16 = 1080;
/// How long Chromium may take from its start to an empty page.
const STARTUP: Duration = Duration::from_secs(30);

/// How long a Chromium that failed to start may take to end by itself.
const LAST_BREATH_MS: u16 = 1000;

/// What a launch depends on.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) can: &'a Capabilities,
    pub(crate) isolation: Isolation,
    pub(crate) chromium_sandbox: bool,
    pub(crate) program: &'a Program,
    pub(crate) profile: &'a Profile,
    pub(crate) display: Option<Display>,
    pub(crate) trusted: &'a [Certificate],
    /// Always ours, but for the leak test.
    pub(crate) switches: Switches<'a>,
}

/// A browser with an empty page, and the listener that is its only way out.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) listener: TcpListener,
    pub(crate) connection: Connection,
    pub(crate) session: Session,
    pub(crate) supervisor: Supervisor,
    /// What this cell does not close that a better equipped system would.
    pub(crate) gaps: Vec<&'static str>,
}

impl Launch<'_> {
    pub(crate) async fn run(self) -> Result<Launched, Failure> {
        let policies = match self.switches {
            Switches::Ours => Some(write_policies(self.profile, self.trusted)?),
            Switches::Bare { .. } => None,
        };
        let (user_data, temp) = (self.profile.user_data(), self.profile.temp());
        if self.can.launcher_is_root {
            give(&user_data)?;
            give(&temp)?;
        }
        self.display.as_ref().map_or(Ok(()), answers)?;
        let arguments = match self.switches {
            Switches::Ours => switches::arguments(Setup {
                gateway_port: GATEWAY_PORT,
                major_version: self.program.major(),
                headed: self.display.is_some(),
            }),
            Switches::Bare { trusted_key } => switches::bare(GATEWAY_PORT, trusted_key),
        };
        let chromium = cell::Chromium {
            program: &self.program.path,
            switches: &arguments,
            profile: &user_data,
            temp: &temp,
            port: GATEWAY_PORT,
            policies: policies.as_deref(),
            display: self.display,
            chromium_sandbox: self.chromium_sandbox,
        };
        let plan = Plan::for_chromium(&chromium, self.isolation, self.can);
        if self.can.launcher_is_root && !plan.own_files() {
            let_through(&user_data)?;
        }
        if !self.trusted.is_empty() && !plan.own_files() {
            return Err(Failure::new(
                Code::Usage,
                "--trust-ca needs a cell with a file system of its own, and mounts are refused here",
            )
            .hint("put the certificate into CACertificates of /etc/chromium/policies/managed"));
        }
        let Cell {
            listener,
            cdp_read,
            cdp_write,
            stderr,
            supervisor,
        } = cell::spawn(&plan).map_err(isolation)?;
        match open_page(cdp_read, cdp_write).await {
            Ok((connection, session)) => {
                drain(stderr);
                Ok(Launched {
                    listener,
                    connection,
                    session,
                    supervisor,
                    gaps: plan.not_covered(self.can),
                })
            }
            Err(failure) => Err(last_words(failure, &supervisor, stderr)),
        }
    }
}

/// A Chromium on this system.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

impl Program {
    /// The one the operator named, or the distribution's; `cache` keeps its version.
    pub(crate) fn find(named: Option<&Path>, cache: &Path) -> Result<Self, Failure> {
        let missing = |error: version::ChromiumError| {
            Failure::new(Code::OpFailed, error.to_string())
                .hint("install it (apt-get install chromium), or name it with --chromium PATH")
        };
        let path = version::find(named).map_err(missing)?;
        let path = path
            .canonicalize()
            .map_err(|source| missing(version::ChromiumError::Run { path, source }))?;
        if let Err(error) = fs::create_dir_all(cache) {
            tracing::debug!(%error, "no cache directory");
        }
        let version = version::of(&path, &cache.join("chromium-version")).map_err(missing)?;
        Ok(Self { path, version })
    }

    fn major(&self) -> u32 {
        version::major(&self.version)
    }
}

/// The managed policies as a directory that the cell shows to Chromium, read-only.
fn write_policies(profile: &Profile, trusted: &[Certificate]) -> Result<PathBuf, Failure> {
    let directory = profile.policies();
    let managed = directory.join("managed");
    let file = managed.join(managed::FILE);
    // World-readable, because Chromium is another user when the launcher is root.
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    fs::create_dir_all(&managed)
        .and_then(|()| fs::write(&file, managed::file(trusted)))
        .and_then(|()| mode(&directory, 0o755))
        .and_then(|()| mode(&managed, 0o755))
        .and_then(|()| mode(&file, 0o644))
        .map_err(|error| {
            let message = format!("cannot write {}: {error}", file.display());
            Failure::new(Code::OpFailed, message)
        })?;
    Ok(directory)
}

fn give(directory: &Path) -> Result<(), Failure> {
    cell::give(directory, cell::CELL_IDS).map_err(|error| {
        let message = format!("cannot give {} to the cell: {error}", directory.display());
        Failure::new(Code::OpFailed, message)
    })
}

/// Asked here, where a display that is gone has its name.
fn answers(display: &Display) -> Result<(), Failure> {
    let Display { name, socket, .. } = display;
    UnixStream::connect(socket).map(drop).map_err(|error| {
        let message = format!(
            "--headed needs a display, and {name} does not answer at {}: {error}",
            socket.display()
        );
        Failure::new(Code::Usage, message)
            .hint("run it in a desktop session, or leave --headed out")
    })
}

/// Without a file system of its own the cell reaches its part of the profile through ours: it may
/// pass, and read nothing on the way.
fn let_through(user_data: &Path) -> Result<(), Failure> {
    let profile = user_data.parent().unwrap_or(user_data);
    chown(profile, None, Some(cell::CELL_IDS.gid))
        .and_then(|()| fs::set_permissions(profile, fs::Permissions::from_mode(0o710)))
        .map_err(|error| {
            let message = format!("cannot open {} to the cell: {error}", profile.display());
            Failure::new(Code::OpFailed, message)
        })
}

async fn open_page(read: OwnedFd, write: OwnedFd) -> Result<(Connection, Session), Failure> {
    let opening = async {
        let connection = Connection::open(read, write)
            .map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;
        let session = Session::open(&connection).await.map_err(|error| {
            Failure::new(Code::Crashed, format!("Chromium did not start: {error}"))
        })?;
        Ok((connection, session))
    };
    match tokio::time::timeout(STARTUP, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(Failure::new(
            Code::Timeout,
            format!(
                "Chromium did not open a page within {} s",
                STARTUP.as_secs()
            ),
        )),
    }
}

/// Adds what Chromium wrote before it ended to the failure.
fn last_words(failure: Failure, supervisor: &Supervisor, stderr: OwnedFd) -> Failure {
    // One that has closed its pipe is about to end by itself, with a status that says why.
    let mut ended = [PollFd::new(supervisor.ended(), PollFlags::POLLIN)];
    let _ = poll(&mut ended, PollTimeout::from(LAST_BREATH_MS));
    let exit = supervisor.kill();
    let mut bytes = Vec::new();
    // Every process of the cell is gone, so that the pipe ends.
    let _ = fs::File::from(stderr)
        .take(64 * 1024)
        .read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.reverse();
    let ended = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "no status".to_owned(),
    };
    let message = format!("{} ({ended}): {}", failure.message, lines.join(" | "));
    Failure { message, ..failure }.hint("`onioncell doctor` shows what this system lacks")
}

/// Chromium's own messages go to our log; a pipe that nobody reads would stop it.
fn drain(stderr: OwnedFd) {
    std::thread::spawn(move || {
        let lines = std::io::BufReader::new(fs::File::from(stderr));
        for line in std::io::BufRead::lines(lines).map_while(Result::ok) {
            tracing::debug!(target: "onioncell::chromium", "{line}");
        }
    });
}

pub(crate) fn isolation(error: CellError) -> Failure {
    let code = match error {
        CellError::Program(_) => Code::OpFailed,
        _ => Code::IsolationUnavailable,
    };
    let failure = Failure::new(code, error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
