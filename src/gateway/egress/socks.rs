//! A SOCKS5 proxy elsewhere, such as a Tor daemon. Names are passed on, never resolved here.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_socks::TargetAddr;
use tokio_socks::tcp::Socks5Stream;

use super::{Egress, EgressError, EgressErrorKind as Kind, Stream};
use crate::gateway::isolation::IsolationKey;
use crate::policy::{Host, Target};

/// How long the proxy itself may take to accept; the target's time is the gateway's to bound.
const REACH: Duration = Duration::from_secs(10);

/// An upstream that was configured wrongly or cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("{0:?} is not an upstream proxy: write socks5://HOST:PORT")]
    Malformed(String),
    #[error("cannot resolve upstream proxy {host}: {source}")]
    Resolve { host: String, source: io::Error },
}

/// An upstream SOCKS5 proxy.
///
/// A session's key goes along as user name and password, by which a Tor daemon keeps circuits
/// apart (`IsolateSOCKSAuth`, on by default; tor(1)).
#[derive(Debug)]
pub struct Socks {
    proxy: SocketAddr,
}

impl Socks {
    /// Reads `socks5://host:port` (`socks5h://` is the same). A host name in it is the operator's
    /// and is resolved once, here, by the system.
    pub async fn parse(text: &str) -> Result<Self, UpstreamError> {
        let malformed = || UpstreamError::Malformed(text.to_owned());
        let place = text
            .strip_prefix("socks5://")
            .or_else(|| text.strip_prefix("socks5h://"))
            .ok_or_else(malformed)?;
        let place = place.strip_suffix('/').unwrap_or(place);
        if let Ok(proxy) = place.parse() {
            return Ok(Self { proxy });
        }
        let (host, port) = place.rsplit_once(':').ok_or_else(malformed)?;
        let port: u16 = port.parse().map_err(|_| malformed())?;
        if host.is_empty() || port == 0 || host.contains([':', '/', '@', '[', ']', '?', '#']) {
            return Err(malformed());
        }
        let fail = |source| UpstreamError::Resolve {
            host: host.to_owned(),
            source,
        };
        let mut found = lookup_host((host, port)).await.map_err(fail)?;
        let proxy = found
            .next()
            .ok_or_else(|| fail(io::ErrorKind::NotFound.into()))?;
        Ok(Self { proxy })
    }

    pub fn address(&self) -> SocketAddr {
        self.proxy
    }

    async fn dial(&self, target: &Target, key: &IsolationKey) -> Result<Stream, EgressError> {
        let gone = |error: io::Error| {
            let message = format!("cannot reach the upstream proxy at {}: {error}", self.proxy);
            EgressError::caused(Kind::NotReady, target, message, error)
        };
        let socket = timeout(REACH, TcpStream::connect(self.proxy))
            .await
            .map_err(|_| gone(io::ErrorKind::TimedOut.into()))?
            .map_err(gone)?;
        socket.set_nodelay(true).map_err(gone)?;
        negotiate(socket, target, key, "upstream proxy").await
    }
}

impl Egress for Socks {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        self.dial(target, key).boxed()
    }
}

/// Asks whoever is behind `socket` for a connection to `target`.
pub(super) async fn negotiate<S>(
    socket: S,
    target: &Target,
    key: &IsolationKey,
    proxy: &str,
) -> Result<Stream, EgressError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = match &target.host {
        Host::Name(name) => TargetAddr::Domain(name.as_str().into(), target.port),
        Host::Address(address) => TargetAddr::Ip(SocketAddr::new(*address, target.port)),
    };
    let (username, password) = (key.token(), key.session().to_string());
    match Socks5Stream::connect_with_password_and_socket(socket, address, &username, &password)
        .await
    {
        Ok(stream) => Ok(Box::new(stream.into_inner())),
        Err(error) => {
            let message = format!("{proxy}: {error}");
            Err(EgressError::caused(kind(&error), target, message, error))
        }
    }
}

/// RFC 1928's reply codes, as tokio-socks reads them.
fn kind(error: &tokio_socks::Error) -> Kind {
    use tokio_socks::Error as E;
    match error {
        E::ConnectionNotAllowedByRuleset => Kind::Denied,
        E::NetworkUnreachable => Kind::Unreachable,
        E::HostUnreachable => Kind::Dns,
        E::ConnectionRefused => Kind::Refused,
        E::TtlExpired => Kind::Timeout,
        E::Io(_) | E::ProxyServerUnreachable | E::GeneralSocksServerFailure => Kind::NotReady,
        _ => Kind::Protocol,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upstream_is_scheme_host_and_port_or_an_error() {
        for (text, address) in [
            ("socks5://127.0.0.1:9050", "127.0.0.1:9050"),
            ("socks5h://[::1]:9150/", "[::1]:9150"),
        ] {
            let upstream = Socks::parse(text).await.unwrap();
            assert_eq!(upstream.address(), address.parse().unwrap());
        }
        for text in [
            "127.0.0.1:9050",
            "http://127.0.0.1:9050",
            "socks4://127.0.0.1:9050",
            "socks5://127.0.0.1",
            "socks5://:9050",
            "socks5://127.0.0.1:0x1",
            "socks5://user:secret@127.0.0.1:9050",
            "socks5://::1:9050",
            "socks5://a/b:9050",
            "",
        ] {
            let error = Socks::parse(text).await.unwrap_err();
            assert!(
                matches!(error, UpstreamError::Malformed(_)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn reply_codes_become_kinds() {
        use tokio_socks::Error as E;
        for (error, expected) in [
            (E::ConnectionNotAllowedByRuleset, Kind::Denied),
            (E::HostUnreachable, Kind::Dns),
            (E::ConnectionRefused, Kind::Refused),
            (E::TtlExpired, Kind::Timeout),
            (E::NetworkUnreachable, Kind::Unreachable),
            (E::CommandNotSupported, Kind::Protocol),
        ] {
            assert_eq!(kind(&error), expected, "{error}");
        }
    }
}
