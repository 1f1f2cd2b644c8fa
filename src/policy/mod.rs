//! Which hosts may be reached: one verdict function for every connection.

mod host;

pub use host::{Host, HostError, Target};

/// What the policy says of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow(Rule),
    Deny(Denial),
}

/// The rule that let a connection through, as the ledger names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An entry of `allowed_origins`, as the operator wrote it.
    Allowed(String),
    /// `default_action = "allow"`.
    Default,
}

/// Why a connection was refused. `Display` gives the contract's reason text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    DeniedPattern(String),
    NoRule(String),
}

/// The rules of one run, compiled.
#[derive(Clone, Debug, Default)]
pub struct Policy {}

impl Policy {
    /// Judges one connection of the browser, whatever caused it.
    pub fn judge(&self, target: &Target) -> Verdict {
        Verdict::Deny(Denial::NoRule(target.to_string()))
    }
}
