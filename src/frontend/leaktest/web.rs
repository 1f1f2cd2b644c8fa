//! What stands in for the internet: a gateway whose egress answers for the test's own site, and
//! carries nothing else anywhere.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::certificate::{self, CertificateError, Identity};
use super::site;
use crate::gateway::egress::Stream;
use crate::gateway::{
    Egress, EgressError, EgressErrorKind, Gateway, IsolationKey, Judgement, Ledger, Limits,
    NoRandomness,
};
use crate::policy::{Overrides, Policy, PolicyError, Target};

const MAX_REQUEST: usize = 64 * 1024;
const PIPE: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("cannot start the test's gateway: {0}")]
    Gateway(#[from] NoRandomness),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// A connection that the browser asked the gateway for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub host: String,
    pub port: u16,
    /// Why policy refused it; without, Tor would have carried it.
    pub denied: Option<String>,
}

/// A gateway at work for one run.
#[derive(Debug)]
pub(super) struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    ledger: Arc<Ledger>,
    domain: String,
}

/// Serves the site behind a gateway that allows the public web.
pub(super) fn serve(
    listener: TcpListener,
    domain: &str,
    identity: &Identity,
) -> Result<Serving, WebError> {
    let open_web = Overrides {
        allow_public_web: true,
        ..Default::default()
    };
    let policy = Arc::new(Policy::from_toml("", "leaktest", &open_web)?);
    let web = Arc::new(Web {
        domain: domain.to_owned(),
        identity: identity.clone(),
    });
    let ledger = Arc::new(Ledger::in_memory());
    let egress = Arc::new(SiteOnly(web));
    let gateway = Gateway::new(policy, egress, Arc::clone(&ledger), Limits::default())?;
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let stopped = async {
            // A dropped sender stops it as well.
            let _ = stopped.await;
        };
        gateway.serve(listener, stopped).await;
    });
    Ok(Serving {
        stop,
        task,
        ledger,
        domain: domain.to_owned(),
    })
}

impl Serving {
    /// Ends the gateway, and tells what it was asked for besides the site.
    pub(super) async fn stop(self) -> Vec<Asked> {
        // Connections write their row when they end.
        drop(self.stop);
        let _ = self.task.await;
        let rows = self.ledger.since(0).into_iter();
        rows.filter(|row| row.host != self.domain && row.verdict != Judgement::None)
            .map(|row| Asked {
                host: row.host,
                port: row.port,
                denied: (row.verdict == Judgement::Deny).then_some(row.rule),
            })
            .collect()
    }
}

/// The way out that leads to the site and nowhere else.
#[derive(Debug)]
struct SiteOnly(Arc<Web>);

impl Egress for SiteOnly {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        _key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        Box::pin(async move {
            if !self.0.answers(target) {
                let kind = EgressErrorKind::Unreachable;
                return Err(EgressError::new(
                    kind,
                    target,
                    "the leak test carries nothing",
                ));
            }
            let (near, far) = tokio::io::duplex(PIPE);
            let (web, port) = (Arc::clone(&self.0), target.port);
            tokio::spawn(async move { web.answer(far, port).await });
            Ok(Box::new(near) as Stream)
        })
    }
}

/// The site as a server.
struct Web {
    domain: String,
    identity: Identity,
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Web")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl Web {
    fn answers(&self, target: &Target) -> bool {
        target.host.to_string() == self.domain
            && (matches!(target.port, 80 | 443) || self.untrusted_port() == target.port)
    }

    /// Serves one connection to the site.
    async fn answer<S>(&self, stream: S, port: u16) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = match port {
            80 => return self.exchange(stream).await,
            443 => &self.identity.acceptor,
            _ => &self.identity.untrusted,
        };
        self.exchange(tls.accept(stream).await?).await
    }

    fn untrusted_port(&self) -> u16 {
        certificate::aim(&self.domain).port()
    }

    /// One request, one answer. The pages post nothing to the site, so a request is its head.
    async fn exchange<S>(&self, mut stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut head = Vec::new();
        while !head.windows(4).any(|window| window == b"\r\n\r\n") {
            if head.len() > MAX_REQUEST || stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&head);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let answer = site::respond(path, &self.domain).to_http();
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }
}
