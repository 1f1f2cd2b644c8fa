//! One table from error kind to wire code and exit status.

use serde::Serialize;

/// The kinds of failure that callers match on. Public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Usage,
    OpFailed,
    Timeout,
    Crashed,
    PolicyDenied,
    PathDenied,
    TorUnavailable,
    IsolationUnavailable,
}

impl Code {
    pub fn exit_status(self) -> u8 {
        match self {
            Code::Usage => 2,
            Code::OpFailed | Code::Timeout | Code::Crashed => 1,
            Code::PolicyDenied | Code::PathDenied => 3,
            Code::TorUnavailable => 4,
            Code::IsolationUnavailable => 5,
        }
    }
}

/// A failure as the caller reads it: what failed, on which object, why; and what would change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: Code,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
