//! `onioncell gateway`: the network and Tor for browsers that have neither.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tokio::net::UnixListener;

use super::progress;
use crate::config::Flags;
use crate::gateway::{Gateway, Limits};
use crate::protocol::error::{Code, Failure};
use crate::run;

#[derive(Debug, Args)]
pub struct GatewayOptions {
    /// The socket that browsers connect to
    #[arg(long, value_name = "unix:PATH", env = "ONIONCELL_LISTEN")]
    listen: String,
}

pub(super) async fn run(flags: Flags, options: GatewayOptions) -> Result<(String, u8), Failure> {
    let Some(path) = options.listen.strip_prefix("unix:").map(PathBuf::from) else {
        return Err(Failure::new(
            Code::Usage,
            format!("--listen {}: not a unix socket", options.listen),
        )
        .hint("write --listen unix:/run/onioncell/gateway.sock"));
    };
    let policy = Arc::new(flags.load_policy()?);
    let ledger = Arc::new(run::open_ledger(flags.ledger.as_deref())?);
    let choice = flags.egress_choice()?;
    let socket = Socket::bind(&path)?;
    let tor = progress::TorProgress::new();
    let egress = tokio::select! {
        egress = run::connect(choice, policy.clone(), tor.reporter()) => egress?,
        signal = progress::interrupted() => return Ok((ended(signal), 0)),
    };
    let gateway = Gateway::new(policy, egress, ledger, Limits::default())
        .map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;
    eprintln!("onioncell gateway: ready on {}", path.display());
    let mut signal = "";
    let shutdown = async { signal = progress::interrupted().await };
    gateway.serve(socket.listener, shutdown).await;
    Ok((ended(signal), 0))
}

fn ended(signal: &str) -> String {
    format!("gateway ended by {signal}\n")
}

/// A listening socket that takes its name with it when it ends.
struct Socket {
    listener: UnixListener,
    _name: Name,
}

struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Socket {
    fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |reason: &dyn std::fmt::Display| {
            Failure::new(
                Code::Usage,
                format!("cannot listen on {}: {reason}", path.display()),
            )
            .hint("--listen unix:PATH names a socket in a directory that exists")
        };
        // A socket that nobody answers is what a killed gateway left.
        if path.exists() {
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(_) => return Err(failed(&"another gateway answers there")),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(|error| failed(&error))?;
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        let listener = UnixListener::bind(path).map_err(|error| failed(&error))?;
        let name = Name(path.to_owned());
        // Browsers run as users of their own; who may reach the socket is the directory's affair.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
            .map_err(|error| failed(&error))?;
        Ok(Self {
            listener,
            _name: name,
        })
    }
}
