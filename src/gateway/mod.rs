//! The one socket Chromium can reach: names, judges, carries, records.
//!
//! Every accepted connection passes the same stations, in [`connection`]: whose is it, what does
//! it ask, may it, dial, answer, relay; and ends in exactly one row of the [`Ledger`].

mod connection;
pub mod egress;
mod isolation;
mod ledger;
mod relay;
mod socks;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use egress::{Egress, EgressError, EgressErrorKind};
pub use isolation::{Isolation, IsolationKey, NoRandomness, SessionId};
pub use ledger::{Judgement, Ledger, LedgerError, Outcome, Row};

use crate::policy::Policy;

/// What one gateway gives at most.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time; the next wait in the listener's backlog.
    pub connections: usize,
    /// From the accept to the complete request.
    pub handshake: Duration,
    /// From the verdict to the connection.
    pub connect: Duration,
    /// A connection on which nothing moves is closed after once to twice this time.
    pub idle: Duration,
    /// How long connections may take to end when the gateway shuts down.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            handshake: Duration::from_secs(10),
            connect: Duration::from_secs(60),
            idle: Duration::from_secs(15 * 60),
            grace: Duration::from_secs(2),
        }
    }
}

/// Where a gateway listens.
#[derive(Debug)]
pub enum Listener {
    /// Sessions are told apart by the loopback address that was dialled.
    Tcp(TcpListener),
    /// Sessions are told apart by uid and token.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener::Unix(listener)
    }
}

enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Client> {
        Ok(match self {
            Listener::Tcp(listener) => Client::Tcp(listener.accept().await?.0),
            Listener::Unix(listener) => Client::Unix(listener.accept().await?.0),
        })
    }
}

/// Judges, carries and records the connections of one browser.
#[derive(Clone, Debug)]
pub struct Gateway {
    policy: Arc<Policy>,
    egress: Arc<dyn Egress>,
    ledger: Arc<Ledger>,
    isolation: Arc<Isolation>,
    limits: Limits,
    permits: Arc<Semaphore>,
}

impl Gateway {
    pub fn new(
        policy: Arc<Policy>,
        egress: Arc<dyn Egress>,
        ledger: Arc<Ledger>,
        limits: Limits,
    ) -> Result<Self, NoRandomness> {
        Ok(Self {
            policy,
            egress,
            ledger,
            isolation: Arc::new(Isolation::new()?),
            permits: Arc::new(Semaphore::new(limits.connections)),
            limits,
        })
    }

    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Renews a session's circuits, and names its key.
    pub fn isolation(&self) -> &Arc<Isolation> {
        &self.isolation
    }

    /// Serves `listener` until `shutdown` completes, then ends every connection.
    pub async fn serve(&self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()>) {
        let listener = listener.into();
        let (stop, stopping) = watch::channel(());
        let mut connections = JoinSet::new();
        tokio::select! {
            () = shutdown => {}
            never = self.accept(&listener, &stopping, &mut connections) => match never {},
        }
        // No new connection from here on, and those waiting in the backlog are reset.
        drop(listener);
        drop(stop);
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.limits.grace, ended).await;
        // Whatever is left is aborted; its ledger entry writes the row as it is dropped.
        connections.shutdown().await;
    }

    async fn accept(
        &self,
        listener: &Listener,
        stopping: &watch::Receiver<()>,
        connections: &mut JoinSet<()>,
    ) -> std::convert::Infallible {
        let mut pause = Backoff::default();
        loop {
            while connections.try_join_next().is_some() {}
            // The semaphore is never closed, so that a permit always comes.
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
                std::future::pending().await
            };
            match listener.accept().await {
                Ok(client) => {
                    pause = Backoff::default();
                    let (gateway, stopping) = (self.clone(), stopping.clone());
                    connections.spawn(async move {
                        let _permit = permit;
                        match client {
                            Client::Tcp(stream) => gateway.tcp(stream, stopping).await,
                            Client::Unix(stream) => gateway.unix(stream, stopping).await,
                        }
                    });
                }
                // The peer left before it was accepted, or the process is out of descriptors or
                // memory (accept(2)): the listener is still good.
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    pause.wait().await;
                }
            }
        }
    }
}

/// Doubles from 10 ms to 1 s.
#[derive(Debug)]
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(10))
    }
}

impl Backoff {
    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}
