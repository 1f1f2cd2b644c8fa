//! A gateway that runs elsewhere, behind a unix socket: `--gateway unix:PATH`.

use std::path::PathBuf;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::net::UnixStream;

use super::{Egress, EgressError, EgressErrorKind as Kind, Stream, socks};
use crate::gateway::isolation::IsolationKey;
use crate::policy::Target;

/// SOCKS5 over a unix stream, the session's token as the user name. The far gateway judges once
/// more, and what it denies comes back as a denial.
#[derive(Debug)]
pub struct UnixGateway {
    path: PathBuf,
}

impl UnixGateway {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    async fn dial(&self, target: &Target, key: &IsolationKey) -> Result<Stream, EgressError> {
        let socket = UnixStream::connect(&self.path).await.map_err(|error| {
            let message = format!(
                "cannot reach the gateway at {}: {error}",
                self.path.display()
            );
            EgressError::caused(Kind::NotReady, target, message, error)
        })?;
        socks::negotiate(socket, target, key, "gateway").await
    }
}

impl Egress for UnixGateway {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        self.dial(target, key).boxed()
    }
}
