//! What launcher and `cell-init` say to each other: one JSON value a message, over a SOCK_SEQPACKET
//! pair, so that messages need no framing and descriptors ride along (unix(7), SCM_RIGHTS).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Failure, On};
use super::plan::Plan;
use super::probe::Capabilities;

/// The largest message: a plan with its switches takes about 10 kB.
const MESSAGE: usize = 128 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// With it: the browser's ends of the debugging pipe, read then write.
    Run(Box<Plan>),
    Probe,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// With it: the gateway's listener.
    Listening,
    /// The program has been executed.
    Running,
    Failed {
        failure: Failure,
        exec: bool,
    },
    Exited {
        code: Option<i32>,
        signal: Option<i32>,
    },
    Capabilities(Box<Capabilities>),
}

pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Failure> {
    socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .on("create", "control socket")
}

pub(super) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Failure> {
    let bytes =
        serde_json::to_vec(message).map_err(|e| Failure::new("encode", e, Errno::UnknownErrno))?;
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[] } else { &rights[..] };
    // The other side may be gone: an error, not SIGPIPE.
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(&bytes)],
        rights,
        flags,
        None,
    )
    .on("send on", "control socket")
    .map(drop)
}

/// The next message and its descriptors; `None` when the other side has gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> Result<Option<(T, Vec<OwnedFd>)>, Failure> {
    let mut bytes = vec![0; MESSAGE];
    let mut space = cmsg_space!([RawFd; 4]);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let fd = socket.as_fd().as_raw_fd();
    let message = loop {
        match recvmsg::<()>(fd, &mut iov, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            Err(Errno::ECONNRESET) => return Ok(None),
            other => break other.on("receive on", "control socket")?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs().on("receive on", "control socket")? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just installed these descriptors for us; nobody else owns them.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    let length = message.bytes;
    if length == 0 {
        return Ok(None);
    }
    let value = serde_json::from_slice(&bytes[..length])
        .map_err(|e| Failure::new("decode", e, Errno::UnknownErrno))?;
    Ok(Some((value, fds)))
}
