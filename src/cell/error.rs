//! What goes wrong in a cell: the operation, the object, and the kernel's reason.

use std::fmt;
use std::io;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// The operation that fails on a profile which the cell's user cannot use.
pub(super) const WRITE_TO: &str = "write to";

/// One refused step. Plain data, because it happens in `cell-init` and is told in the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub operation: String,
    pub object: String,
    /// 0 where the kernel gave none.
    pub errno: i32,
}

impl Failure {
    pub(crate) fn new(operation: &str, object: impl fmt::Display, errno: Errno) -> Self {
        Self {
            operation: operation.to_owned(),
            object: object.to_string(),
            errno: errno as i32,
        }
    }

    #[must_use]
    pub fn reason(&self) -> Errno {
        Errno::from_raw(self.errno)
    }

    /// What the operator can change, for the steps that depend on more than the kernel.
    fn remedy(&self) -> Option<&'static str> {
        match self.reason() {
            // Only where the network is shared: a namespace of the cell's own has every port free.
            Errno::EADDRINUSE => Some(
                "another program in this container has the port; give each browser a container of its own",
            ),
            Errno::EACCES if self.operation == WRITE_TO => Some(
                "name a directory that this user can reach and write to with --profile DIR, or start as that user",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.object)?;
        match self.reason() {
            Errno::UnknownErrno => Ok(()),
            errno => write!(f, ": {} ({errno:?})", errno.desc()),
        }
    }
}

/// Names the operation and the object of a failed call.
pub(crate) trait On<T> {
    fn on(self, operation: &str, object: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> On<T> for Result<T, Errno> {
    fn on(self, operation: &str, object: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(operation, object, errno))
    }
}

impl<T> On<T> for io::Result<T> {
    fn on(self, operation: &str, object: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| {
            Failure::new(
                operation,
                object,
                Errno::from_raw(e.raw_os_error().unwrap_or(0)),
            )
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// Nothing may start here; contract 3 `isolation_unavailable`, exit status 5.
    #[error("isolation unavailable: {problem}")]
    Unavailable { problem: String, remedy: String },
    /// A step of the plan was refused.
    #[error("cell: {0}")]
    Step(Failure),
    /// The program could not be executed.
    #[error("cell: {0}")]
    Program(Failure),
    /// `cell-init` itself could not be started or spoken to.
    #[error("cell: {0}")]
    Launch(Failure),
    #[error("cell: cell-init ended without a word ({0})")]
    Silent(String),
}

impl CellError {
    /// What the operator can change, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unavailable { remedy, .. } => Some(remedy),
            Self::Program(_) => Some("--chromium PATH names the Chromium binary"),
            Self::Step(failure) => failure.remedy(),
            Self::Launch(_) | Self::Silent(_) => None,
        }
    }
}
