//! Which hosts may be reached: one verdict function for every connection.
//!
//! A verdict is found in this order, and the first that speaks decides:
//!
//! 1. never reachable (`ranges`, `names`): no file and no flag opens it;
//! 2. `denied_origins`, `--deny`;
//! 3. `allowed_origins`, `--allow`;
//! 4. sites that the browser also asks unbidden (`names`);
//! 5. `default_action`.

mod denial;
mod document;
mod file;
mod host;
mod index;
mod names;
mod origin;
mod pattern;
mod ranges;
#[cfg(test)]
mod tests;

use std::fmt;

pub use denial::{Denial, OnionFault};
pub use document::{PublicUrl, UrlDenied};
pub use file::{Overrides, Place, PolicyError};
pub use host::{Host, HostError, Target, TargetError};
pub use origin::{Origin, Scheme};
pub use pattern::{Pattern, PatternError, PatternProblem};
pub use ranges::AddressKind;

use index::Index;

/// What the policy says of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow(Rule),
    Deny(Denial),
}

impl Verdict {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Verdict::Allow(_))
    }
}

/// The rule that let a connection through, as the ledger names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An entry of `allowed_origins`, as the operator wrote it.
    Allowed(String),
    /// `default_action = "allow"`.
    Default,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Allowed(pattern) => write!(f, "matches allowed pattern {pattern}"),
            Rule::Default => f.write_str("default_action=allow"),
        }
    }
}

/// What happens to what no pattern covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DefaultAction {
    #[default]
    Deny,
    Allow,
}

/// The rules of one run, compiled. The default denies everything.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    default_action: DefaultAction,
    allowed: Index,
    denied: Index,
}

impl Policy {
    /// Judges one connection of the browser, whatever caused it.
    pub fn judge(&self, target: &Target) -> Verdict {
        self.decide(target, None)
    }

    fn decide(&self, target: &Target, scheme: Option<Scheme>) -> Verdict {
        if let Some(denial) = never(&target.host) {
            return Verdict::Deny(denial);
        }
        if target.port == 0 {
            return Verdict::Deny(Denial::PortZero);
        }
        // A connection has no scheme, so `http://a.example:8443` denies https there too. The
        // check of a URL says the same, or it would promise what the gateway then refuses.
        if let Some(pattern) = self.denied.find(target, None) {
            return Verdict::Deny(Denial::DeniedPattern(pattern.text.clone()));
        }
        if let Some(pattern) = self.allowed.find(target, scheme) {
            return Verdict::Allow(Rule::Allowed(pattern.text.clone()));
        }
        match self.default_action {
            DefaultAction::Allow => match target.host.name() {
                Some(name) if names::needs_a_rule(name) => {
                    Verdict::Deny(Denial::BrowserSite(name.to_owned()))
                }
                _ => Verdict::Allow(Rule::Default),
            },
            DefaultAction::Deny => {
                let origin = Origin {
                    scheme,
                    target: target.clone(),
                };
                Verdict::Deny(match self.allowed.is_empty() {
                    true => Denial::NoRule(origin),
                    false => Denial::NotListed(origin),
                })
            }
        }
    }
}

/// Why nothing can open this host; `None` where the rules decide.
fn never(host: &Host) -> Option<Denial> {
    match host {
        Host::Address(address) => ranges::never(*address).map(Denial::Address),
        Host::Name(name) => names::never(name),
    }
}
