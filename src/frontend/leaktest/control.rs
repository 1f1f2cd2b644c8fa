//! The control: a plain Chromium with only `--proxy-server`, outside any cell. It has to be seen
//! leaking; a detector that sees nothing here would see nothing anywhere.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::browser::CloseParams;
use nix::fcntl::{FcntlArg, fcntl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::drive::{self, DriveError, Outcomes};
use super::web::Web;
use crate::browser::cdp::{CdpError, Connection};

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
    #[error("the control's pipe: {0}")]
    Pipe(#[from] CdpError),
    #[error("the control: {0}")]
    Drive(#[from] DriveError),
}

/// A finished control run.
#[derive(Debug)]
pub struct Ran {
    pub outcomes: Outcomes,
    /// The proxy's port on loopback: traffic with it is no leak.
    pub proxy_port: u16,
}

/// Runs the control in this network namespace.
pub async fn run(
    chromium: &Path,
    directory: &Path,
    web: Arc<Web>,
    domain: &str,
    at_least: Duration,
) -> Result<Ran, ControlError> {
    let make = |what| move |source| ControlError::Make { what, source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .map_err(make("proxy"))?;
    let proxy_port = listener.local_addr().map_err(make("proxy"))?.port();
    let proxy = tokio::spawn(accept(listener, web));
    let launched = launch(chromium, directory, proxy_port);
    let outcomes = match launched {
        Ok((mut child, connection)) => {
            let outcomes = drive::drive(&connection, None, domain, at_least).await;
            close(&mut child, &connection).await;
            outcomes.map_err(ControlError::from)
        }
        Err(error) => Err(error),
    };
    proxy.abort();
    Ok(Ran {
        outcomes: outcomes?,
        proxy_port,
    })
}

/// Only `--proxy-server`, and what it takes to run at all: no window, a pipe, a profile, and no
/// sandbox of its own, since the test's host may be a user namespace that does not nest.
fn launch(
    chromium: &Path,
    directory: &Path,
    proxy_port: u16,
) -> Result<(Child, Connection), ControlError> {
    let make = |what| move |source| ControlError::Make { what, source };
    let (hears, tell) = io::pipe().map_err(make("pipe"))?;
    let (listen, says) = io::pipe().map_err(make("pipe"))?;
    // Out of the way of 3 and 4, which they become.
    let hears = above_standard(&hears).map_err(make("pipe"))?;
    let says = above_standard(&says).map_err(make("pipe"))?;
    let mut command = Command::new(chromium);
    command
        .arg("--headless=new")
        .arg("--no-sandbox")
        .arg("--disable-dev-shm-usage")
        .arg("--remote-debugging-pipe")
        .arg(format!("--user-data-dir={}", directory.display()))
        .arg(format!("--proxy-server=socks5://127.0.0.1:{proxy_port}"))
        .env_clear()
        .env("HOME", directory)
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let (hears_fd, says_fd) = (hears.as_raw_fd(), says.as_raw_fd());
    // SAFETY: between fork and exec only dup2(2) is called, which is async-signal-safe; both
    // descriptors stay open in this process until after the spawn.
    unsafe {
        command.pre_exec(move || {
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

async fn accept(listener: TcpListener, web: Arc<Web>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(proxy(stream, Arc::clone(&web)));
    }
}

/// As plain a SOCKS5 proxy (RFC 1928) as there can be: the site is answered, the rest refused.
async fn proxy(mut stream: TcpStream, web: Arc<Web>) -> io::Result<()> {
    let [_, methods] = read(&mut stream).await?;
    stream
        .read_exact(&mut vec![0; usize::from(methods)])
        .await?;
    stream.write_all(&[5, 0]).await?;
    let [_, _, _, kind] = read(&mut stream).await?;
    let host = match kind {
        1 => Ipv4Addr::from(read::<4>(&mut stream).await?).to_string(),
        4 => std::net::Ipv6Addr::from(read::<16>(&mut stream).await?).to_string(),
        _ => {
            let [length] = read(&mut stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
    };
    let port = u16::from_be_bytes(read(&mut stream).await?);
    let ours = web.answers(&host, port);
    // 2: connection not allowed by ruleset.
    let status = if ours { 0 } else { 2 };
    stream
        .write_all(&[5, status, 0, 1, 0, 0, 0, 0, 0, 0])
        .await?;
    if ours {
        web.serve(stream, port).await
    } else {
        Ok(())
    }
}

async fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
