//! Processes that end with the lab, whichever way it ends.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

/// Starts processes from one thread that lives as long as the lab: the kernel's parent-death signal, which kills them if
/// the lab's process is killed, goes by the thread and not by the process (PR_SET_PDEATHSIG(2const)).
#[derive(Debug)]
pub struct Keeper {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

type Request = (Command, Sender<std::io::Result<Child>>);

impl Keeper {
    pub fn new() -> Self {
        let (requests, incoming): (_, Receiver<Request>) = channel();
        let thread = std::thread::spawn(move || {
            for (mut command, answer) in incoming {
                // Nobody waits for the answer only if the lab is going down; the process then dies with this thread.
                let _ = answer.send(command.spawn());
            }
        });
        Self {
            requests: Some(requests),
            thread: Some(thread),
        }
    }

    pub fn spawn(&self, mut command: Command) -> Result<Daemon> {
        let parent = Pid::this();
        let die_with_parent = move || {
            // SAFETY: PR_SET_PDEATHSIG takes a signal number.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The parent may have died before the call.
            if getppid() == parent {
                Ok(())
            } else {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        };
        // SAFETY: two system calls between fork and exec, and no memory is touched.
        unsafe { command.pre_exec(die_with_parent) };
        let name = command.get_program().to_string_lossy().into_owned();
        let (answer, reply) = channel();
        let keeper = self.requests.as_ref().context("the keeper has ended")?;
        keeper
            .send((command, answer))
            .map_err(|_| anyhow!("the keeper thread is gone"))?;
        let child = reply
            .recv()?
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Daemon { child })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.requests.take();
        self.thread.take().map(JoinHandle::join);
    }
}

/// A process that is killed and waited for when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn hang_up(&self) -> Result<()> {
        Ok(kill(
            Pid::from_raw(self.child.id().try_into()?),
            Signal::SIGHUP,
        )?)
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
