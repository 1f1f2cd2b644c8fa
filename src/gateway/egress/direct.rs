//! Straight to the network, without Tor: for work on one's own pages.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::{Egress, EgressError, EgressErrorKind as Kind, Stream, io_kind};
use crate::gateway::isolation::IsolationKey;
use crate::policy::{Denial, Host, Policy, Target, Verdict};

/// How long one address may take, so that a dead first address leaves time for the next.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Names are resolved here, every answer is screened, and exactly a screened address is dialled.
#[derive(Debug)]
pub struct Direct {
    policy: Arc<Policy>,
}

impl Direct {
    /// Shows this machine's address to every site: only where the operator said so.
    pub fn dangerously(policy: Arc<Policy>) -> Self {
        Self { policy }
    }

    async fn dial(&self, target: &Target) -> Result<Stream, EgressError> {
        let addresses = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) if name.ends_with(".onion") => {
                return Err(EgressError::new(
                    Kind::Unreachable,
                    target,
                    "an onion service is reached over Tor only (--egress tor)",
                ));
            }
            Host::Name(name) => resolve(name, target).await?,
        };
        // One bad address among good ones is how rebinding begins: refuse them all.
        for address in &addresses {
            self.screen(target, *address)?;
        }
        let mut last = None;
        for address in addresses {
            match connect(SocketAddr::new(address, target.port)).await {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => EgressError::caused(io_kind(&error), target, error.to_string(), error),
            None => EgressError::new(Kind::Dns, target, "the name has no address"),
        })
    }

    /// The name was judged already, so that an address need not be listed; but what is never
    /// reachable, and what is denied by its address, stays so behind a name.
    fn screen(&self, target: &Target, address: IpAddr) -> Result<(), EgressError> {
        let resolved = Target {
            host: Host::Address(address),
            port: target.port,
        };
        match self.policy.judge(&resolved) {
            Verdict::Allow(_) | Verdict::Deny(Denial::NoRule(_) | Denial::NotListed(_)) => Ok(()),
            Verdict::Deny(_) => Err(EgressError::new(
                Kind::Denied,
                target,
                format!("DNS resolved {} to blocked IP {address}", target.host),
            )),
        }
    }
}

async fn resolve(name: &str, target: &Target) -> Result<Vec<IpAddr>, EgressError> {
    match timeout(ATTEMPT, lookup_host((name, target.port))).await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip()).collect()),
        Ok(Err(error)) => Err(EgressError::caused(
            Kind::Dns,
            target,
            format!("cannot resolve the name: {error}"),
            error,
        )),
        Err(_) => Err(EgressError::new(
            Kind::Dns,
            target,
            "resolving the name timed out",
        )),
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(ATTEMPT, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Egress for Direct {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        _key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        self.dial(target).boxed()
    }
}
