//! The supervisor: when the launcher or the program ends, everything in the cell ends.
//!
//! A launcher that is killed cannot clean up, so what it holds speaks for it: its end of the control
//! socket closes, its pidfd becomes readable. (PR_SET_PDEATHSIG would tell of the thread that
//! forked, which in an async runtime ends earlier.) With a PID namespace the kernel ends the rest
//! with its first process; without, the supervisor adopts every orphan (PR_SET_CHILD_SUBREAPER) and
//! kills its children until there are none.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::error::Failure;
use super::init::child;
use super::wire::{self, Event};
use super::{fd, mount};

/// How a first process, which cannot kill itself, says that a signal ended the program (as a shell does).
pub(super) const KILLED: i32 = 128;

/// Ends this process and nothing else: no destructors, no exit handlers.
pub(super) fn leave(status: i32) -> ! {
    // SAFETY: _exit(2) takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Starts `program` in a child; in a PID namespace, below a first process that only waits.
pub(super) fn offspring(
    pid_namespace: bool,
    program: impl FnOnce(Result<(), Failure>),
) -> Result<Pid, Failure> {
    if !pid_namespace {
        return child(|| told(program, Ok(())));
    }
    child(|| {
        if let Err(refused) = mount::proc() {
            return told(program, Err(refused));
        }
        child(|| told(program, Ok(()))).map_or(1, first_process)
    })
}

/// The program comes back only to fail.
fn told(program: impl FnOnce(Result<(), Failure>), ready: Result<(), Failure>) -> i32 {
    program(ready);
    1
}

/// Process 1 of a PID namespace: reaps, and ends as the program ended; the kernel then ends the rest.
fn first_process(program: Pid) -> i32 {
    // Holds nothing of the program's: its pipes must end with it.
    if fd::close_all_but(&[]).is_err() || super::user::drop_capabilities().is_err() {
        return 1;
    }
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return code,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                return KILLED + signal as i32;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return 1,
        }
    }
}

/// Tells the supervisor why the program was not executed.
pub(super) fn say(pipe: &OwnedFd, refused: &(Failure, bool)) {
    let written = serde_json::to_vec(refused).map(|bytes| {
        let file = pipe.try_clone().map(File::from);
        file.and_then(|mut file| file.write_all(&bytes))
    });
    // With the pipe gone the supervisor has gone, and nobody is left to tell.
    drop(written);
}

/// Waits until launcher or program has ended, ends the rest, says how it ended.
///
/// A supervisor that is itself killed (by an operator, or for want of memory: the cell cannot signal
/// it) takes the program along, and with a PID namespace everything. Without one, a process that the
/// program had sent into the background lives on: as confined as before, without a gateway, and no
/// longer to be told from the launcher's other children if it were adopted there.
pub(super) fn watch(
    control: &OwnedFd,
    launcher: &OwnedFd,
    said: OwnedFd,
    program: Pid,
) -> Result<Infallible, (Failure, bool)> {
    let mut reason = Vec::new();
    let heard = File::from(said).read_to_end(&mut reason);
    if heard.is_err() || !reason.is_empty() {
        end_all(program);
        let unclear = |_| {
            (
                Failure::new("start", "the program", Errno::UnknownErrno),
                false,
            )
        };
        return Err(serde_json::from_slice(&reason).unwrap_or_else(unclear));
    }
    let step = |failure| (failure, false);
    let process = fd::pidfd(program.as_raw()).map_err(step)?;
    // A launcher that does not hear this is found gone below.
    let _ = wire::send(control, &Event::Running, &[]);
    let mut ends =
        [control, launcher, &process].map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
    while let Ok(0) | Err(Errno::EINTR) = poll(&mut ends, PollTimeout::NONE) {}
    let (code, signal) = end_all(program);
    let _ = wire::send(control, &Event::Exited { code, signal }, &[]);
    leave(0)
}

/// Kills the children, and the orphans they leave to this process, until none is left. Each round
/// ends with a reaped child, so a child that was born meanwhile is seen by the next one.
fn end_all(program: Pid) -> (Option<i32>, Option<i32>) {
    let mut end = (None, None);
    loop {
        for pid in children(program) {
            // A child that has ended already is a zombie of ours until reaped below: never somebody else.
            let _ = kill(pid, Signal::SIGKILL);
        }
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => end = (Some(code), None),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                end = (None, Some(signal as i32))
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return end,
        }
    }
}

/// proc_pid_task(5), `children`. In a PID namespace /proc is the namespace's, and the first process all there is.
fn children(program: Pid) -> Vec<Pid> {
    let listed = fs::read_to_string("/proc/thread-self/children");
    let parse = |text: String| {
        text.split_whitespace()
            .filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
            .collect()
    };
    listed.map_or_else(|_| vec![program], parse)
}
