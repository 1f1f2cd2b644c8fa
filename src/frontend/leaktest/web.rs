//! What stands in for the internet: answers for the test's own site, and notes down every other
//! request without carrying it anywhere.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::certificate::{self, CertificateError};
use super::site;

const MAX_REQUEST: usize = 64 * 1024;

/// A connection that the browser asked its proxy for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub host: String,
    pub port: u16,
    /// Why policy refused it; without, it would have been carried.
    pub denied: Option<String>,
}

/// The stand-in. One serves one run.
pub struct Web {
    domain: String,
    tls: TlsAcceptor,
    asked: Mutex<Vec<Asked>>,
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Web")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl Web {
    pub fn new(domain: &str) -> Result<Self, CertificateError> {
        Ok(Self {
            domain: domain.to_owned(),
            tls: certificate::acceptor(domain)?,
            asked: Mutex::default(),
        })
    }

    /// Whether this is the test's own site; anything else is noted down.
    pub fn answers(&self, host: &str, port: u16) -> bool {
        let ours = host == self.domain && matches!(port, 80 | 443);
        if !ours {
            self.asked().push(Asked {
                host: host.to_owned(),
                port,
                denied: None,
            });
        }
        ours
    }

    /// What was asked for so far, besides the site.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked())
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection to the site.
    pub async fn serve<S>(&self, stream: S, port: u16) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if port == 443 {
            self.exchange(self.tls.accept(stream).await?).await
        } else {
            self.exchange(stream).await
        }
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
