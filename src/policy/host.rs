//! A host, normalised once: everything after the parse compares plain values.

use std::fmt;
use std::net::IpAddr;

/// A host name in its canonical ASCII form, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// Lower case, IDNA-encoded, without a trailing dot, never an address in disguise.
    Name(String),
    Address(IpAddr),
}

/// A host and a port: what one connection wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("{0:?} is not a host name")]
    Invalid(String),
}

impl Host {
    /// Parses what SOCKS, a URL or a pattern calls a host.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        Err(HostError::Invalid(text.to_owned()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Host::Address(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
