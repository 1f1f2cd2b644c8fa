//! The launcher's side: starts `cell-init`, hands it the plan, and holds what keeps the cell alive.

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::pipe2;

use super::error::{CellError, On};
use super::init::INIT_COMMAND;
use super::plan::Plan;
use super::wire::{self, Event, Request};
use super::{fd, supervise};

/// A running cell. The fields can be taken apart; the cell lives as long as its `supervisor`.
#[derive(Debug)]
pub struct Cell {
    /// Bound inside the cell: what the program connects to.
    pub listener: TcpListener,
    /// The program's replies (its descriptor 4).
    pub cdp_read: OwnedFd,
    /// Commands for the program (its descriptor 3).
    pub cdp_write: OwnedFd,
    pub stderr: OwnedFd,
    pub supervisor: Supervisor,
}

/// How the program ended; both `None` if the supervisor was killed before it could say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// Keeps the cell alive. Dropping it, or ending in any other way, ends every process of the cell.
#[derive(Debug)]
pub struct Supervisor {
    control: OwnedFd,
    pidfd: OwnedFd,
    process: Mutex<Child>,
    exit: OnceLock<Exit>,
}

/// Makes this process's memory and descriptors nobody's but root's (PR_SET_DUMPABLE in prctl(2)).
pub fn harden_launcher() -> Result<(), CellError> {
    prctl::set_dumpable(false)
        .on("clear", "PR_SET_DUMPABLE")
        .map_err(CellError::Launch)
}

/// Starts the plan's program in its cell. Blocks until the program has been executed.
pub fn spawn(plan: &Plan) -> Result<Cell, CellError> {
    spawn_with(Path::new("/proc/self/exe"), plan)
}

/// The same, with `cell-init` found in another binary than the running one (tests).
pub fn spawn_with(binary: &Path, plan: &Plan) -> Result<Cell, CellError> {
    harden_launcher()?;
    let pipe = || {
        pipe2(OFlag::O_CLOEXEC)
            .on("create", "pipe")
            .map_err(CellError::Launch)
    };
    let ((theirs_read, cdp_write), (cdp_read, theirs_write)) = (pipe()?, pipe()?);
    let (stderr, their_stderr) = pipe()?;
    let supervisor = Supervisor::start(binary, Stdio::from(their_stderr))?;
    let request = Request::Run(Box::new(plan.clone()));
    supervisor.send(&request, &[theirs_read.as_fd(), theirs_write.as_fd()])?;
    drop((theirs_read, theirs_write));

    let (Event::Listening, fds) = supervisor.next()? else {
        return Err(supervisor.silent(stderr));
    };
    let Ok([listener]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err(supervisor.silent(stderr));
    };
    let (Event::Running, _) = supervisor.next()? else {
        return Err(supervisor.silent(stderr));
    };
    Ok(Cell {
        listener: listener.into(),
        cdp_read,
        cdp_write,
        stderr,
        supervisor,
    })
}

impl Supervisor {
    pub(super) fn start(binary: &Path, stderr: Stdio) -> Result<Self, CellError> {
        let (control, theirs) = wire::pair().map_err(CellError::Launch)?;
        // Descriptors travel over the socket, so that none needs to be inherited: all others close on exec.
        let process = Command::new(binary)
            .arg0(INIT_COMMAND)
            .arg(INIT_COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .on("start", format!("{INIT_COMMAND} ({})", binary.display()))
            .map_err(CellError::Launch)?;
        let pid = libc::pid_t::try_from(process.id()).unwrap_or(libc::pid_t::MAX);
        let pidfd = fd::pidfd(pid).map_err(CellError::Launch)?;
        Ok(Self {
            control,
            pidfd,
            process: Mutex::new(process),
            exit: OnceLock::new(),
        })
    }

    pub(super) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), CellError> {
        wire::send(&self.control, request, fds).map_err(CellError::Launch)
    }

    /// The next event that is not a failure.
    pub(super) fn next(&self) -> Result<(Event, Vec<OwnedFd>), CellError> {
        match wire::receive::<Event>(&self.control).map_err(CellError::Launch)? {
            Some((
                Event::Failed {
                    failure,
                    exec: true,
                },
                _,
            )) => Err(CellError::Program(failure)),
            Some((
                Event::Failed {
                    failure,
                    exec: false,
                },
                _,
            )) => Err(CellError::Step(failure)),
            Some(event) => Ok(event),
            None => Err(CellError::Silent(format!("{:?}", self.reap()))),
        }
    }

    fn silent(&self, stderr: OwnedFd) -> CellError {
        self.kill();
        let mut text = String::new();
        let read = std::fs::File::from(stderr)
            .take(4096)
            .read_to_string(&mut text);
        CellError::Silent(if read.is_ok() { text } else { String::new() })
    }

    /// The supervisor's process id, for the log.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }

    /// Becomes readable when the cell has ended, with every process in it: poll it, or wrap it in an `AsyncFd`.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Blocks until the program has ended, by itself or through [`Supervisor::kill`], and nothing of the cell is left.
    pub fn wait(&self) -> Exit {
        *self.exit.get_or_init(|| {
            let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
            while let Err(nix::errno::Errno::EINTR) = poll(&mut ended, PollTimeout::NONE) {}
            // The supervisor has gone: what it said last is in the socket, or it said nothing.
            let mut exit = Exit {
                code: None,
                signal: None,
            };
            while let Ok(Some((event, _))) = wire::receive::<Event>(&self.control) {
                if let Event::Exited { code, signal } = event {
                    exit = Exit::new(code, signal);
                }
            }
            let _ = self.reap();
            exit
        })
    }

    /// How the program ended, if it has.
    pub fn try_wait(&self) -> Option<Exit> {
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        let ended = matches!(poll(&mut ended, PollTimeout::ZERO), Ok(n) if n > 0);
        ended.then(|| self.wait())
    }

    /// Ends every process of the cell, and returns when they are gone.
    pub fn kill(&self) -> Exit {
        // The supervisor reads this as the launcher's end. Already shut is as good.
        let _ = shutdown(self.control.as_raw_fd(), Shutdown::Write);
        self.wait()
    }

    fn reap(&self) -> std::io::Result<std::process::ExitStatus> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wait()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Exit {
    fn new(code: Option<i32>, signal: Option<i32>) -> Self {
        match code {
            Some(code) if code > supervise::KILLED => Self {
                code: None,
                signal: Some(code - supervise::KILLED),
            },
            _ => Self { code, signal },
        }
    }
}
