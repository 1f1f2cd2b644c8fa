//! The subject of the test: Chromium in its cell, started as every other run starts it, or with the
//! cell as its only defence.

use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::browser::CloseParams;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::certificate;
use super::drive;
use super::progress::Progress;
use super::verdict::Evidence;
use super::web;
use crate::browser::managed::Certificate;
use crate::browser::profile::Profile;
use crate::browser::switches::Switches;
use crate::cell::{self, Requested};
use crate::protocol::error::{Code, Failure};
use crate::run::launch::{Launch, Launched, Program, isolation};

const FAREWELL: Duration = Duration::from_secs(5);

/// What the cell has besides the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defences {
    All,
    KernelAlone,
}

/// Runs the subject in this network namespace. The packets are for the caller to add.
pub(super) async fn run(
    program: &Program,
    defences: Defences,
    chromium_sandbox_off: bool,
    domain: &str,
    at_least: Duration,
    progress: &Progress,
) -> Result<(Evidence, Vec<&'static str>), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::OpFailed, error.to_string());
    let can = cell::probe().map_err(isolation)?;
    let profile = Profile::ephemeral().map_err(|error| failed(&error))?;
    let identity = certificate::identity(domain).map_err(|error| failed(&error))?;
    // Without mounts no policy can name an authority; then the pipe alone makes the page secure.
    let trusted = match can.mounts {
        Ok(_) => Certificate::parse_pem(&identity.authority).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let launch = Launch {
        can: &can,
        isolation: cell::choose(Requested::Namespace, &can, false).map_err(isolation)?,
        chromium_sandbox: cell::chromium_sandbox(&can, chromium_sandbox_off).map_err(isolation)?,
        program,
        profile: &profile,
        trusted: &trusted,
        switches: match defences {
            Defences::All => Switches::Ours,
            Defences::KernelAlone => Switches::Bare {
                trusted_key: &identity.key_hash,
            },
        },
        display: None,
    };
    let Launched {
        listener,
        connection,
        supervisor,
        gaps,
        ..
    } = launch.run().await?;
    listener
        .set_nonblocking(true)
        .map_err(|error| failed(&error))?;
    let listener = TcpListener::from_std(listener).map_err(|error| failed(&error))?;
    let gateway = web::serve(listener, domain, &identity).map_err(|error| failed(&error))?;
    let outcomes = drive::drive(&connection, domain, at_least, progress).await;
    if connection.root().send(CloseParams::default()).is_ok() {
        let _ = timeout(FAREWELL, connection.closed()).await;
    }
    // Waits for the whole process tree, so that no packet comes after this.
    let ended = tokio::task::spawn_blocking(move || supervisor.kill());
    let _ = ended.await;
    let evidence = Evidence {
        packets: Vec::new(),
        asked: gateway.stop().await,
        outcomes: outcomes.map_err(|error| failed(&error))?,
        proxy_port: None,
    };
    Ok((evidence, gaps))
}
