//! Descriptors: what the program inherits is exactly 0–4, whatever was open before.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::error::{Failure, On};

/// `cell-init` keeps what it holds at or above this, clear of the numbers that the program gets.
const HELPERS: RawFd = 20;

/// Chromium reads commands on 3 and writes replies on 4 (content/browser/devtools/devtools_pipe_handler.cc).
const CDP_READ: RawFd = 3;
const CDP_WRITE: RawFd = 4;

/// The same descriptor, out of the way of 0–4 and closed by exec.
pub(super) fn raise(fd: OwnedFd) -> Result<OwnedFd, Failure> {
    let raised = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(HELPERS)).on("duplicate", "descriptor")?;
    // SAFETY: F_DUPFD_CLOEXEC returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raised) })
}

/// Takes the descriptor at `number`, leaving /dev/null in its place.
pub(super) fn take(number: RawFd, null: &File) -> Result<OwnedFd, Failure> {
    // SAFETY: called once for a standard descriptor, which nothing in `cell-init` uses otherwise;
    // the number is put to use again by `place` below.
    let taken = raise(unsafe { OwnedFd::from_raw_fd(number) })?;
    place(null, number)?;
    Ok(taken)
}

pub(super) fn null() -> Result<File, Failure> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .on("open", "/dev/null")?;
    Ok(File::from(raise(file.into())?))
}

/// Gives the program its five descriptors, and marks every other to be closed by exec.
pub(super) fn hand_over(
    stderr: &OwnedFd,
    cdp_read: &OwnedFd,
    cdp_write: &OwnedFd,
) -> Result<(), Failure> {
    place(stderr, libc::STDERR_FILENO)?;
    place(cdp_read, CDP_READ)?;
    place(cdp_write, CDP_WRITE)?;
    close_range(CDP_WRITE + 1, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes all but 0–2 and the descriptors named: what the supervisor does not hold cannot be taken from it.
pub(super) fn close_all_but(keep: &[RawFd]) -> Result<(), Failure> {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut first = libc::STDERR_FILENO + 1;
    for fd in keep {
        if fd > first {
            close_span(first, fd - 1, 0)?;
        }
        first = fd + 1;
    }
    close_range(first, 0)
}

fn close_range(first: RawFd, flags: u32) -> Result<(), Failure> {
    close_span(first, RawFd::MAX, flags)
}

fn close_span(first: RawFd, last: RawFd, flags: u32) -> Result<(), Failure> {
    // SAFETY: close_range(2) takes three integers. Owners of what it closes never run again: the
    // callers exec, or leave through `_exit`.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    Errno::result(result)
        .on("close", "inherited descriptors")
        .map(drop)
}

/// dup2(2): the copy stays open across exec.
pub(super) fn place(fd: impl AsFd, number: RawFd) -> Result<(), Failure> {
    // SAFETY: dup2 on a live descriptor; the target number is 0–4, which no owner in this process holds.
    let result = unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) };
    Errno::result(result)
        .on("place descriptor", number)
        .map(drop)
}

pub(super) fn pidfd(pid: libc::pid_t) -> Result<OwnedFd, Failure> {
    // SAFETY: pidfd_open(2) takes two integers and returns a new descriptor, closed by exec.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
        .on("open pidfd of", pid)?;
    let fd = RawFd::try_from(fd).map_err(|_| Failure::new("open pidfd of", pid, Errno::EBADF))?;
    // SAFETY: just returned by the kernel, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
