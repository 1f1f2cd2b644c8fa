//! Tor, embedded: an Arti client in this process.
//!
//! Tor has no half-open streams (tor-spec, "Closing streams"): when the browser closes its sending
//! side, the stream ends both ways.

mod config;
mod runtime;
mod supervisor;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arti_client::config::BoolOrAuto;
use arti_client::isolation::IsolationHelper;
use arti_client::status::BootstrapStatus;
use arti_client::{DataStream, ErrorKind, HasKind as _, StreamPrefs};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tor_error::ErrorReport as _;
use tor_geoip::CountryCode;
use tor_proto::client::stream::ClientStreamCtrl as _;

use super::{Egress, EgressError, EgressErrorKind as Kind, Stream};
use crate::gateway::isolation::IsolationKey;
use crate::policy::{Host, Target};

pub use config::TorConfig;
use supervisor::{Client, State, Supervisor};

/// How long a connection waits for Tor to become ready: less than the gateway's own bound, so that
/// the reason given is Tor's.
const PATIENCE: Duration = Duration::from_secs(45);
/// So many connections in a row that did not reach the Tor network, and the client says the same
/// of itself; or so many whatever it says: it is replaced.
const FAILURES: (u32, u32) = (3, 8);

/// Why Tor cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TorError {
    #[error("cannot use Tor directory {}: {source}", path.display())]
    Directory {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("Tor directory {} belongs to uid {owner}, not to uid {uid}", path.display())]
    Owner { path: PathBuf, owner: u32, uid: u32 },
    #[error("Tor directory {} is open to others (mode {mode:04o})", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("Tor directory {} is not safe: {problem}", path.display())]
    Unsafe { path: PathBuf, problem: String },
    #[error("Tor directory {} is not UTF-8", .0.display())]
    NotText(PathBuf),
    #[error("Tor network file {}: {problem}", path.display())]
    Network { path: PathBuf, problem: String },
    #[error("Tor configuration: {0}")]
    Config(String),
    #[error("exit country {0:?} is not two letters of ISO 3166-1")]
    Country(String),
    #[error("bridge: no program for the pluggable transport {0:?} is installed")]
    Transport(String),
    #[error("cannot start the Tor client: {0}")]
    Start(String),
    #[error("Tor is not ready after {} s: {status}", after.as_secs())]
    NotReady { after: Duration, status: TorStatus },
}

impl TorError {
    /// Whether the operator's settings are at fault, as opposed to the network.
    pub fn is_setting(&self) -> bool {
        !matches!(self, TorError::Start(_) | TorError::NotReady { .. })
    }

    /// What would change it.
    pub fn hint(&self) -> Option<String> {
        match self {
            TorError::Mode { path, .. } => Some(format!("chmod 700 {}", path.display())),
            TorError::Directory { .. }
            | TorError::Owner { .. }
            | TorError::Unsafe { .. }
            | TorError::NotText(_) => Some("--tor-state names another directory".into()),
            TorError::Country(_) => Some("write for example --exit-country DE".into()),
            TorError::Transport(_) => Some(
                "install obfs4proxy or lyrebird, or name one under bridges.transports in the \
                 file of --tor-network"
                    .into(),
            ),
            TorError::NotReady { .. } => Some(
                "`onioncell doctor` shows what can be reached; where Tor is blocked, use --bridge"
                    .into(),
            ),
            TorError::Network { .. } | TorError::Config(_) | TorError::Start(_) => None,
        }
    }
}

/// How far Tor is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TorStatus {
    /// From 0 to 1.
    pub fraction: f32,
    pub ready: bool,
    /// What stands in the way, in Arti's words.
    pub blocked: Option<String>,
}

impl TorStatus {
    fn of(status: &BootstrapStatus) -> Self {
        Self {
            fraction: status.as_frac(),
            ready: status.ready_for_traffic(),
            blocked: status.blocked().map(|blockage| blockage.to_string()),
        }
    }

    fn blocked(reason: impl Into<String>) -> Self {
        Self {
            blocked: Some(reason.into()),
            ..Self::default()
        }
    }
}

impl fmt::Display for TorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % bootstrapped", self.fraction * 100.0)?;
        match &self.blocked {
            Some(reason) => write!(f, ", blocked: {reason}"),
            None => Ok(()),
        }
    }
}

/// An embedded Tor client. Dropping it ends the client.
pub struct Tor {
    state: watch::Receiver<State>,
    lost: Arc<Notify>,
    failures: AtomicU32,
    country: Option<CountryCode>,
    bootstrap_timeout: Duration,
    supervisor: JoinHandle<()>,
}

impl Tor {
    /// Checks the configuration and the directories, and begins to bootstrap in the background.
    /// Connections wait until Tor is ready, or fail. `progress` hears of every change.
    pub fn launch(
        config: TorConfig,
        progress: impl Fn(TorStatus) + Send + Sync + 'static,
    ) -> Result<Self, TorError> {
        // Arti's TLS panics without; an error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (client, country) = (config.client()?, config.country()?);
        config.make_directories()?;
        if config.is_owned_elsewhere() {
            let path = config.state_dir.display();
            tracing::info!("another process owns the Tor state in {path}: it is only read here");
        }
        let (sender, state) = watch::channel(State::Starting(TorStatus::default()));
        let lost = Arc::new(Notify::new());
        let bootstrap_timeout = config.bootstrap_timeout;
        let supervisor = Supervisor {
            config,
            client,
            state: sender,
            lost: Arc::clone(&lost),
            progress: Box::new(progress),
        };
        Ok(Self {
            state,
            lost,
            failures: AtomicU32::new(0),
            country,
            bootstrap_timeout,
            supervisor: tokio::spawn(supervisor.run()),
        })
    }

    /// [`Self::launch`], then [`Self::ready`].
    pub async fn start(
        config: TorConfig,
        progress: impl Fn(TorStatus) + Send + Sync + 'static,
    ) -> Result<Self, TorError> {
        let tor = Self::launch(config, progress)?;
        tor.ready().await?;
        Ok(tor)
    }

    /// Waits until Tor is ready for traffic, as long as its configuration gives it.
    pub async fn ready(&self) -> Result<(), TorError> {
        let after = self.bootstrap_timeout;
        match self.client(after).await {
            Ok(_) => Ok(()),
            Err(status) => Err(TorError::NotReady { after, status }),
        }
    }

    pub fn status(&self) -> TorStatus {
        match &*self.state.borrow() {
            State::Starting(status) | State::Late(status) => status.clone(),
            State::Ready(client) => TorStatus::of(&client.arti.bootstrap_status()),
        }
    }

    /// The client as soon as there is one.
    async fn client(&self, patience: Duration) -> Result<Client, TorStatus> {
        let mut state = self.state.clone();
        let decided = state.wait_for(|state| !matches!(state, State::Starting(_)));
        match timeout(patience, decided).await {
            Ok(Ok(state)) => match &*state {
                State::Ready(client) => return Ok(client.clone()),
                State::Starting(status) | State::Late(status) => return Err(status.clone()),
            },
            Ok(Err(_)) => return Err(TorStatus::blocked("the Tor client has ended")),
            Err(_) => {}
        }
        Err(self.status())
    }

    async fn dial(&self, target: &Target, key: &IsolationKey) -> Result<DataStream, EgressError> {
        // 1. Nothing goes out before Tor is ready for traffic.
        let client = self.client(PATIENCE).await.map_err(|status| {
            EgressError::new(
                Kind::NotReady,
                target,
                format!("Tor is not ready: {status}"),
            )
        })?;
        // 2. On circuits of this session only.
        let mut prefs = StreamPrefs::new();
        prefs
            .set_isolation(key.clone())
            .connect_to_onion_services(BoolOrAuto::Explicit(true));
        if let Some(country) = self.country {
            prefs.exit_country(country);
        }
        let host = match &target.host {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        };
        let (arti, port) = (Arc::clone(&client.arti), target.port);
        // Ends with this future, or with the client.
        let mut connecting = JoinSet::new();
        connecting.spawn_on(
            async move { arti.connect_with_prefs((host, port), &prefs).await },
            &client.handle,
        );
        // 3. A client that reaches nothing any more is replaced.
        match connecting.join_next().await {
            Some(Ok(Ok(stream))) => {
                self.failures.store(0, Ordering::Relaxed);
                Ok(stream)
            }
            Some(Ok(Err(error))) => {
                self.note(&client, error.kind());
                let message = error.report().to_string();
                let message = message.strip_prefix("error: ").unwrap_or(&message);
                Err(EgressError::caused(
                    class(&error, target),
                    target,
                    message,
                    error,
                ))
            }
            Some(Err(_)) | None => {
                let message = "Tor is not ready: the client was replaced";
                Err(EgressError::new(Kind::NotReady, target, message))
            }
        }
    }

    fn note(&self, client: &Client, error: ErrorKind) {
        if kind(error) != Kind::NotReady {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let status = TorStatus::of(&client.arti.bootstrap_status());
        let sure = !status.ready || status.blocked.is_some();
        if failures >= FAILURES.1 || sure && failures >= FAILURES.0 {
            self.failures.store(0, Ordering::Relaxed);
            self.lost.notify_one();
        }
    }

    /// Connects, and names the relays that carry the stream: for tests and for people who want to
    /// see that two sessions share none.
    pub async fn trace(
        &self,
        target: &Target,
        key: &IsolationKey,
    ) -> Result<(Stream, Vec<String>), EgressError> {
        let stream = self.dial(target, key).await?;
        let tunnel = stream.client_stream_ctrl().and_then(|ctrl| ctrl.tunnel());
        let mut path = Vec::new();
        if let Some(tunnel) = tunnel {
            path.push(tunnel.unique_id().to_string());
            for hops in tunnel.all_paths() {
                path.extend(hops.iter().map(ToString::to_string));
            }
        }
        Ok((Box::new(stream), path))
    }
}

impl Drop for Tor {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl fmt::Debug for Tor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tor")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Egress for Tor {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        async move { Ok(Box::new(self.dial(target, key).await?) as Stream) }.boxed()
    }
}

/// Arti asks this of every circuit that could carry a stream.
impl IsolationHelper for IsolationKey {
    fn compatible_same_type(&self, other: &Self) -> bool {
        self == other
    }

    fn join_same_type(&self, other: &Self) -> Option<Self> {
        (self == other).then(|| self.clone())
    }
}

/// Arti does not tell a malformed onion address from any other.
fn class(error: &arti_client::Error, target: &Target) -> Kind {
    match (error.kind(), &target.host) {
        (ErrorKind::InvalidStreamTarget, Host::Name(name)) if name.ends_with(".onion") => {
            Kind::OnionAddress
        }
        (other, _) => kind(other),
    }
}

/// Arti's classes of errors in ours.
fn kind(kind: ErrorKind) -> Kind {
    use ErrorKind as E;
    match kind {
        E::BootstrapRequired
        | E::TorAccessFailed
        | E::LocalNetworkError
        | E::DirectoryExpired
        | E::TorDirectoryError
        | E::ArtiShuttingDown
        | E::ReactorShuttingDown
        | E::CircuitCollapse
        | E::TorNetworkTimeout
        | E::NoPath => Kind::NotReady,
        E::ExitTimeout | E::RemoteNetworkTimeout => Kind::Timeout,
        E::RemoteHostNotFound | E::RemoteHostResolutionFailed => Kind::Dns,
        E::RemoteConnectionRefused => Kind::Refused,
        // The exit could not connect, and does not say more.
        E::RemoteNetworkFailed | E::RemoteStreamError | E::RemoteStreamReset => Kind::Unreachable,
        E::ExitPolicyRejected | E::NoExit => Kind::ExitPolicy,
        E::OnionServiceNotFound => Kind::OnionNotFound,
        E::OnionServiceNotRunning
        | E::OnionServiceConnectionFailed
        | E::OnionServiceProtocolViolation
        | E::OnionServiceMissingClientAuth
        | E::OnionServiceWrongClientAuth => Kind::OnionDown,
        E::OnionServiceAddressInvalid => Kind::OnionAddress,
        E::ForbiddenStreamTarget => Kind::Denied,
        _ => Kind::Protocol,
    }
}
