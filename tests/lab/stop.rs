//! Ends threads that wait on sockets: one pipe, whose closing every wait notices.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Dropping it stops every thread that waits on a token of it.
#[derive(Debug)]
pub struct Stop {
    _open: PipeWriter,
}

#[derive(Debug, Clone)]
pub struct Stopped(Arc<PipeReader>);

impl Stop {
    pub fn new() -> io::Result<(Self, Stopped)> {
        let (reader, writer) = io::pipe()?;
        Ok((Self { _open: writer }, Stopped(Arc::new(reader))))
    }
}

impl Stopped {
    /// Waits until `socket` can be read (true) or all is to stop (false).
    pub fn readable(&self, socket: BorrowedFd<'_>) -> bool {
        let mut fds = [
            PollFd::new(socket, PollFlags::POLLIN),
            PollFd::new(self.0.as_fd(), PollFlags::POLLIN),
        ];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                Err(_) => return false,
                Ok(_) => return fds[1].revents().is_none_or(|events| events.is_empty()),
            }
        }
    }
}
