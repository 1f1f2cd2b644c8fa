//! The control: a plain Chromium with only `--proxy-server`, outside any cell. It has to be seen
//! leaking; a detector that sees nothing here would see nothing anywhere.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::browser::CloseParams;
use nix::fcntl::{FcntlArg, fcntl};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::certificate::{self, CertificateError};
use super::drive::{self, DriveError};
use super::progress::Progress;
use super::verdict::Evidence;
use super::web::{self, WebError};
use crate::browser::cdp::{CdpError, Connection};
use crate::browser::switches;

const CLOSE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot start {path} for the control: {source}")]
    Start { path: String, source: io::Error },
    #[error("cannot make the control's {what}: {source}")]
    Make {
        what: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Web(#[from] WebError),
    #[error("the control's pipe: {0}")]
    Pipe(#[from] CdpError),
    #[error("the control: {0}")]
    Drive(#[from] DriveError),
}

/// Runs the control in this network namespace. The packets are for the caller to add.
pub async fn run(
    chromium: &Path,
    directory: &Path,
    domain: &str,
    at_least: Duration,
    progress: &Progress,
) -> Result<Evidence, ControlError> {
    let make = |what| move |source| ControlError::Make { what, source };
    let loopback = (Ipv4Addr::LOCALHOST, 0);
    let listener = TcpListener::bind(loopback).await.map_err(make("proxy"))?;
    let proxy_port = listener.local_addr().map_err(make("proxy"))?.port();
    let identity = certificate::identity(domain)?;
    let proxy = web::serve(listener, domain, &identity)?;
    let (mut child, connection) = launch(chromium, directory, proxy_port, &identity.key_hash)?;
    let outcomes = drive::drive(&connection, domain, at_least, progress).await;
    close(&mut child, &connection).await;
    Ok(Evidence {
        packets: Vec::new(),
        asked: proxy.stop().await,
        outcomes: outcomes?,
        proxy_port: Some(proxy_port),
    })
}

/// Only `--proxy-server`, and what it takes to run at all: no window, a pipe, a profile, and no
/// sandbox of its own, since the test's host may be a user namespace that does not nest.
fn launch(
    chromium: &Path,
    directory: &Path,
    proxy_port: u16,
    trusted_key: &str,
) -> Result<(Child, Connection), ControlError> {
    let make = |what| move |source| ControlError::Make { what, source };
    let (hears, tell) = io::pipe().map_err(make("pipe"))?;
    let (listen, says) = io::pipe().map_err(make("pipe"))?;
    // Out of the way of 3 and 4, which they become.
    let hears = above_standard(&hears).map_err(make("pipe"))?;
    let says = above_standard(&says).map_err(make("pipe"))?;
    let mut command = Command::new(chromium);
    command
        .args(switches::bare(proxy_port, trusted_key))
        .arg("--no-sandbox")
        .arg("--disable-dev-shm-usage")
        .arg(format!("--user-data-dir={}", directory.display()))
        .env_clear()
        .env("HOME", directory)
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let (hears_fd, says_fd) = (hears.as_raw_fd(), says.as_raw_fd());
    // SAFETY: between fork and exec only prctl(2) and dup2(2) are called, which are
    // async-signal-safe; both descriptors stay open in this process until after the spawn.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            for (from, to) in [(hears_fd, 3), (says_fd, 4)] {
                if libc::dup2(from, to) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = command.spawn().map_err(|source| ControlError::Start {
        path: chromium.display().to_string(),
        source,
    })?;
    let connection = Connection::open(listen.into(), tell.into())?;
    Ok((child, connection))
}

fn above_standard(fd: &impl AsFd) -> io::Result<OwnedFd> {
    let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(20))?;
    // SAFETY: fcntl made this descriptor just now, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

async fn close(child: &mut Child, connection: &Connection) {
    // Chromium may be gone before it answers.
    let _ = timeout(CLOSE_LIMIT, connection.root().call(CloseParams::default())).await;
    if timeout(CLOSE_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
