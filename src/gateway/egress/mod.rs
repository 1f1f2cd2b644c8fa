//! Ways out of the gateway: a trait, and one file for each implementation.
//!
//! None of them falls back to another: what cannot be carried fails.

pub mod arti;
mod direct;
mod socks;
mod unix;

use std::error::Error;
use std::fmt;

use futures::future::BoxFuture;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use super::isolation::IsolationKey;
use crate::policy::Target;

pub use arti::{Tor, TorConfig, TorError, TorStatus};
pub use direct::Direct;
pub use socks::{Socks, UpstreamError};
pub use unix::UnixGateway;

/// A connection that an egress made.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

pub type Stream = Box<dyn Connection>;

/// Carries connections that the policy has allowed.
pub trait Egress: fmt::Debug + Send + Sync {
    /// Connects to `target` on a path that only connections with an equal `key` share.
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>>;
}

/// What went wrong, in the classes that callers and SOCKS clients tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressErrorKind {
    /// The way out is not there (yet): Tor still bootstrapping, or the upstream gone.
    NotReady,
    /// The far gateway's policy, or the screening of a resolved address, refused.
    Denied,
    Dns,
    Refused,
    Timeout,
    Unreachable,
    OnionNotFound,
    OnionDown,
    OnionAddress,
    ExitPolicy,
    Protocol,
    Io,
}

impl EgressErrorKind {
    /// What the user can do about it, where there is something.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::NotReady => Some("`onioncell doctor` shows whether the way out can be reached"),
            Self::OnionNotFound => {
                Some("the onion address has no descriptor: mistyped, or never published")
            }
            Self::OnionDown => Some("the onion service is known, but does not answer now"),
            Self::OnionAddress => Some("a v3 onion address has 56 characters before .onion"),
            Self::ExitPolicy => Some("no exit relay carries this port; 80 and 443 always work"),
            Self::Timeout => Some("try again: a new circuit may be faster"),
            _ => None,
        }
    }
}

/// A connection that could not be made: its target, the kind, the cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {target}: {message}")]
pub struct EgressError {
    kind: EgressErrorKind,
    target: Target,
    message: String,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl EgressError {
    pub fn new(kind: EgressErrorKind, target: &Target, message: impl Into<String>) -> Self {
        Self {
            kind,
            target: target.clone(),
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn caused(
        kind: EgressErrorKind,
        target: &Target,
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            source: Some(source.into()),
            ..Self::new(kind, target, message)
        }
    }

    pub fn kind(&self) -> EgressErrorKind {
        self.kind
    }

    /// The cause without the target, which a ledger row already names.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn hint(&self) -> Option<&'static str> {
        self.kind.hint()
    }
}

/// Classes of the errors that connect(2) gives.
pub(crate) fn io_kind(error: &std::io::Error) -> EgressErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::ConnectionRefused => EgressErrorKind::Refused,
        Io::TimedOut => EgressErrorKind::Timeout,
        Io::HostUnreachable | Io::NetworkUnreachable | Io::NetworkDown => {
            EgressErrorKind::Unreachable
        }
        _ => EgressErrorKind::Io,
    }
}
