//! Patterns by host, so that a verdict costs the same with ten patterns and with ten thousand.

use std::collections::HashMap;
use std::net::IpAddr;

use super::names::suffixes;
use super::origin::Scheme;
use super::pattern::Pattern;
use super::{Host, Target};

/// A list of patterns, compiled.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    names: HashMap<String, Entries>,
    addresses: HashMap<IpAddr, Vec<Pattern>>,
    /// How many labels the longest `*.host` has: no need to look for a longer one.
    labels: usize,
}

/// The patterns that name one host: itself, and what is beneath it.
#[derive(Clone, Debug, Default)]
struct Entries {
    itself: Vec<Pattern>,
    beneath: Vec<Pattern>,
}

impl Index {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.addresses.is_empty()
    }

    pub(super) fn insert(&mut self, pattern: Pattern) {
        match &pattern.host {
            Host::Address(address) => self.addresses.entry(*address).or_default().push(pattern),
            Host::Name(name) => {
                let entries = self.names.entry(name.clone()).or_default();
                if pattern.subdomains {
                    self.labels = self.labels.max(name.split('.').count());
                    entries.beneath.push(pattern);
                } else {
                    entries.itself.push(pattern);
                }
            }
        }
    }

    /// The pattern that covers the target, the narrowest host first.
    pub(super) fn find(&self, target: &Target, scheme: Option<Scheme>) -> Option<&Pattern> {
        let fits = |pattern: &&Pattern| pattern.fits(target.port, scheme);
        let name = match &target.host {
            Host::Address(address) => return self.addresses.get(address)?.iter().find(fits),
            Host::Name(name) => name,
        };
        let itself = self
            .names
            .get(name)
            .and_then(|entries| entries.itself.iter().find(fits));
        itself.or_else(|| {
            let (_, parent) = name.split_once('.')?;
            suffixes(parent, self.labels)
                .filter_map(|parent| self.names.get(parent))
                .find_map(|entries| entries.beneath.iter().find(fits))
        })
    }
}
