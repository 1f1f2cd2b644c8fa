//! Why something was refused, in the words that callers match on.

use std::fmt;

use super::origin::Origin;
use super::ranges::AddressKind;

/// Why a connection was refused. `Display` gives the contract's reason text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// An address that is not globally routable, in whatever spelling.
    Address(AddressKind),
    MetadataName,
    SpecialUseName(String),
    SingleLabel,
    NumericLabel,
    MalformedOnion(OnionFault),
    /// A host that serves only the browser itself.
    BrowserService(String),
    /// A site that the browser also asks unbidden: reachable by a pattern only.
    BrowserSite(String),
    PortZero,
    /// A scheme other than http and https.
    Scheme(String),
    InvalidUrl(String),
    /// An entry of `denied_origins`, as the operator wrote it.
    DeniedPattern(String),
    /// There is an allow list, and this is not on it.
    NotListed(Origin),
    /// There is no allow list.
    NoRule(Origin),
}

/// What is wrong with a `.onion` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnionFault {
    Version2,
    Length(usize),
    Alphabet,
    Version,
}

impl fmt::Display for OnionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnionFault::Version2 => {
                f.write_str("version 2 onion services were switched off in 2021")
            }
            OnionFault::Length(found) => write!(f, "{found} characters where version 3 has 56"),
            OnionFault::Alphabet => f.write_str("a character that is not base32"),
            OnionFault::Version => f.write_str("not version 3"),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denial::Address(kind) => kind.fmt(f),
            Denial::MetadataName => AddressKind::Metadata.fmt(f),
            Denial::SpecialUseName(name) => write!(f, "special-use name blocked: {name}"),
            Denial::SingleLabel => f.write_str("single-label name blocked"),
            Denial::NumericLabel => f.write_str("numeric top-level label blocked"),
            Denial::MalformedOnion(fault) => write!(f, "malformed onion address blocked: {fault}"),
            Denial::BrowserService(name) | Denial::BrowserSite(name) => {
                write!(f, "browser service blocked: {name}")
            }
            Denial::PortZero => f.write_str("port 0 blocked"),
            Denial::Scheme(scheme) => write!(f, "scheme {scheme:?} not in allow list"),
            Denial::InvalidUrl(problem) => write!(f, "invalid URL: {problem}"),
            Denial::DeniedPattern(pattern) => write!(f, "matches denied pattern {pattern}"),
            Denial::NotListed(origin) => write!(f, "origin {origin} not in allow list"),
            Denial::NoRule(origin) => {
                write!(f, "default_action=deny and no rule matched origin {origin}")
            }
        }
    }
}

impl Denial {
    /// The flag or setting that exists and would change it; `None` where nothing can.
    pub fn hint(&self) -> Option<String> {
        match self {
            Denial::NotListed(origin) | Denial::NoRule(origin) => {
                Some(format!("--allow {}", origin.host()))
            }
            Denial::BrowserSite(name) => Some(format!("--allow {name}")),
            Denial::DeniedPattern(pattern) => {
                Some(format!("take {pattern} out of denied_origins or --deny"))
            }
            Denial::Address(_)
            | Denial::MetadataName
            | Denial::SpecialUseName(_)
            | Denial::SingleLabel
            | Denial::NumericLabel
            | Denial::MalformedOnion(_)
            | Denial::BrowserService(_)
            | Denial::PortZero
            | Denial::Scheme(_)
            | Denial::InvalidUrl(_) => None,
        }
    }
}
