//! Gateway, then cell, then browser; torn down in reverse.

mod execute;
pub(crate) mod launch;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::browser::CloseParams;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::browser::Session;
use crate::browser::cdp::Connection;
use crate::browser::profile::Profile;
use crate::browser::switches::Switches;
use crate::cell;
use crate::config::{Config, EgressChoice, ProfileChoice};
use crate::gateway::egress::{Direct, Egress, Socks, Tor, TorStatus, UnixGateway};
use crate::gateway::{Gateway, Ledger, Limits};
use crate::policy::Policy;
use crate::protocol::error::{Code, Failure};
use crate::workspace::Workspace;
use launch::{Launch, Program, isolation};

pub use execute::precheck;

/// How long Chromium may take to write its profile before it is killed.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running browser with its gateway. Dropping it kills the cell; [`Instance::stop`] asks first.
#[derive(Debug)]
pub struct Instance {
    session: Session,
    connection: Connection,
    policy: Arc<Policy>,
    ledger: Arc<Ledger>,
    workspace: Workspace,
    // Dropped in this order: Chromium, its way out, its files.
    supervisor: cell::Supervisor,
    gateway: Serving,
    profile: Profile,
}

/// A gateway at work. Dropping it ends every connection.
#[derive(Debug)]
struct Serving {
    _stop: oneshot::Sender<()>,
    _task: JoinHandle<()>,
}

impl Instance {
    /// Starts everything. Nothing goes out before Tor is ready for traffic.
    pub async fn start(
        config: Config,
        report: impl Fn(TorStatus) + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let can = cell::probe().map_err(isolation)?;
        let over_unix = matches!(config.egress, EgressChoice::Unix(_));
        let kind = cell::choose(config.isolation, &can, over_unix).map_err(isolation)?;
        let sandbox = cell::chromium_sandbox(&can, !config.chromium_sandbox).map_err(isolation)?;
        let workspace = Workspace::open(&config.workspace)
            .map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
        let ledger = Arc::new(open_ledger(config.ledger.as_deref())?);
        let profile = match &config.profile {
            ProfileChoice::At(directory) => Profile::persistent(directory),
            ProfileChoice::Ephemeral => Profile::ephemeral(),
        }
        .map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;

        let program = Program::find(config.chromium.as_deref(), &config.cache)?;
        let policy = Arc::new(config.policy);
        let launch = Launch {
            can: &can,
            isolation: kind,
            chromium_sandbox: sandbox,
            program: &program,
            profile: &profile,
            display: config.display,
            trusted: &config.trusted,
            switches: Switches::Ours,
        };
        // Tor and Chromium come up side by side; what Chromium asks meanwhile waits in the backlog.
        let (egress, launched) =
            tokio::try_join!(connect(config.egress, policy.clone(), report), launch.run(),)?;
        for gap in launched.gaps {
            tracing::warn!("{gap}");
        }
        let gateway = serve(policy.clone(), egress, ledger.clone(), launched.listener)?;
        Ok(Self {
            session: launched.session,
            connection: launched.connection,
            policy,
            ledger,
            workspace,
            supervisor: launched.supervisor,
            gateway,
            profile,
        })
    }

    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Lets Chromium write its profile, then ends it and the gateway.
    pub async fn stop(self) {
        let goodbye = self.connection.root().send(CloseParams::default());
        if goodbye.is_ok() {
            let _ = tokio::time::timeout(FAREWELL, self.connection.closed()).await;
        }
        let ended = tokio::task::spawn_blocking(move || {
            let Self {
                supervisor,
                gateway,
                profile,
                ..
            } = self;
            supervisor.kill();
            drop((gateway, profile));
        });
        let _ = ended.await;
    }
}

pub(crate) fn open_ledger(file: Option<&Path>) -> Result<Ledger, Failure> {
    match file {
        None => Ok(Ledger::in_memory()),
        Some(path) => Ledger::with_file(path).map_err(|error| {
            Failure::new(Code::Usage, error.to_string()).hint("name another file with --ledger")
        }),
    }
}

/// The way out that the operator chose, ready for traffic.
pub(crate) async fn connect(
    choice: EgressChoice,
    policy: Arc<Policy>,
    report: impl Fn(TorStatus) + Send + Sync + 'static,
) -> Result<Arc<dyn Egress>, Failure> {
    Ok(match choice {
        EgressChoice::Tor(config) => {
            let tor = Tor::start(config, report).await.map_err(|error| {
                let code = if error.is_setting() {
                    Code::Usage
                } else {
                    Code::TorUnavailable
                };
                let failure = Failure::new(code, error.to_string());
                match error.hint() {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            })?;
            Arc::new(tor)
        }
        EgressChoice::Socks(upstream) => {
            let socks = Socks::parse(&upstream).await.map_err(|error| {
                Failure::new(Code::TorUnavailable, error.to_string())
                    .hint("--egress socks5://HOST:PORT names a Tor daemon's SOCKS port")
            })?;
            Arc::new(socks)
        }
        EgressChoice::Unix(path) => Arc::new(UnixGateway::new(path)),
        EgressChoice::Direct => Arc::new(Direct::dangerously(policy)),
    })
}

fn serve(
    policy: Arc<Policy>,
    egress: Arc<dyn Egress>,
    ledger: Arc<Ledger>,
    listener: TcpListener,
) -> Result<Serving, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Code::OpFailed, format!("cannot start the gateway: {error}"))
    };
    let gateway =
        Gateway::new(policy, egress, ledger, Limits::default()).map_err(|error| failed(&error))?;
    listener
        .set_nonblocking(true)
        .map_err(|error| failed(&error))?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| failed(&error))?;
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let stopped = async {
            // The sender is dropped, never used.
            let _ = stopped.await;
        };
        gateway.serve(listener, stopped).await;
    });
    Ok(Serving {
        _stop: stop,
        _task: task,
    })
}
