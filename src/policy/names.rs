//! The names that are never reachable, and those of the browser's own services, as one table.
//!
//! The policy sees a host, not why the browser wants it. Hosts that serve nothing but Chromium
//! itself are therefore closed for good. Hosts that people visit too (`accounts.google.com` is a
//! login page, and where Chromium asks who is signed in) are closed to `default_action = "allow"`
//! only: an operator who wants the site says so with a pattern that covers it, `*.google.com`
//! included, and takes the browser's requests to it into the bargain.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::denial::{Denial, OnionFault};

/// Names under which no public site can be. Each row covers the name and everything beneath it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Means something on one machine or in one network.
    SpecialUse,
    /// Hands out a cloud's credentials.
    Metadata,
    /// Serves Chromium itself and no one else.
    BrowserOnly,
    /// Serves Chromium and also people: open to a pattern that covers it.
    BrowserToo,
}

use Kind::*;

/// Name, kind, and the source or the reason.
#[rustfmt::skip]
const NAMES: &[(&str, Kind, &str)] = &[
    ("localhost", SpecialUse, "RFC 6761 section 6.3"),
    ("localdomain", SpecialUse, "what resolvers append to localhost"),
    ("local", SpecialUse, "multicast DNS, RFC 6762"),
    ("internal", SpecialUse, "private use, ICANN resolution 2024.07.29.06"),
    ("home.arpa", SpecialUse, "home networks, RFC 8375"),

    ("metadata", Metadata, "Google Cloud's short name"),
    ("metadata.google.internal", Metadata, "Google Cloud"),
    ("metadata.goog", Metadata, "Google Cloud"),
    ("metadata.azure.internal", Metadata, "Azure"),
    ("instance-data", Metadata, "AWS EC2's short name"),
    ("instance-data.ec2.internal", Metadata, "AWS EC2"),
    ("metadata.tencentyun.com", Metadata, "Tencent Cloud"),

    ("update.googleapis.com", BrowserOnly, "component and extension updates"),
    ("clients2.google.com", BrowserOnly, "extension updates, network time"),
    ("clients2.googleusercontent.com", BrowserOnly, "extension packages"),
    ("clients4.google.com", BrowserOnly, "sync"),
    ("clientservices.googleapis.com", BrowserOnly, "field trials, metrics"),
    ("optimizationguide-pa.googleapis.com", BrowserOnly, "page hints and models"),
    ("content-autofill.googleapis.com", BrowserOnly, "form field prediction: sends what forms look like"),
    ("passwordsleakcheck-pa.googleapis.com", BrowserOnly, "password leak check"),
    ("safebrowsing.googleapis.com", BrowserOnly, "Safe Browsing lists: sends hashes of addresses"),
    ("sb-ssl.google.com", BrowserOnly, "Safe Browsing download check"),
    ("android.clients.google.com", BrowserOnly, "push messaging check-in"),
    ("mtalk.google.com", BrowserOnly, "push messaging"),
    ("connectivitycheck.gstatic.com", BrowserOnly, "captive portal detection"),
    ("chrome.cloudflare-dns.com", BrowserOnly, "DNS over HTTPS beside the gateway"),
    ("gvt2.com", BrowserOnly, "domain reliability beacons"),

    ("accounts.google.com", BrowserToo, "ListAccounts; also Google's login page"),
    ("gvt1.com", BrowserToo, "component downloads; also Google's download mirrors"),
];

/// No row has more.
const MAX_LABELS: usize = 4;

static KINDS: LazyLock<HashMap<&str, Kind>> =
    LazyLock::new(|| NAMES.iter().map(|(name, kind, _)| (*name, *kind)).collect());

/// Why this name can never be reached; `None` where the rules decide.
pub(super) fn never(name: &str) -> Option<Denial> {
    match kind(name) {
        Some(Metadata) => return Some(Denial::MetadataName),
        Some(SpecialUse) => return Some(Denial::SpecialUseName(name.to_owned())),
        Some(BrowserOnly) => return Some(Denial::BrowserService(name.to_owned())),
        Some(BrowserToo) | None => {}
    }
    let Some((rest, top)) = name.rsplit_once('.') else {
        return Some(Denial::SingleLabel);
    };
    // No top-level domain begins with a digit (RFC 1123 section 2.1); old resolvers read some
    // such names as addresses.
    if top.starts_with(|c: char| c.is_ascii_digit()) {
        return Some(Denial::NumericLabel);
    }
    if top == "onion" {
        return onion_fault(rest).map(Denial::MalformedOnion);
    }
    None
}

/// A site that is also a service of the browser: `default_action = "allow"` does not open it.
pub(super) fn needs_a_rule(name: &str) -> bool {
    kind(name) == Some(BrowserToo)
}

fn kind(name: &str) -> Option<Kind> {
    suffixes(name, MAX_LABELS).find_map(|suffix| KINDS.get(suffix).copied())
}

/// The name and its parents, those of at most so many labels, the longest first: of `a.b.c` and 2,
/// `b.c` and `c`. The bound keeps a name of 127 labels as cheap as any other.
pub(super) fn suffixes(name: &str, labels: usize) -> impl Iterator<Item = &str> {
    let longest = match name.rmatch_indices('.').nth(labels.saturating_sub(1)) {
        Some((dot, _)) => name.get(dot + 1..),
        None => Some(name),
    };
    std::iter::successors(longest, |rest| {
        rest.split_once('.').map(|(_, parent)| parent)
    })
    .take(labels)
}

/// What is wrong with the part before `.onion`. Subdomains are the service's own affair.
///
/// rend-spec-v3 section 6: base32 of a 32-byte key, a 2-byte checksum and the version byte 3.
/// The version's eight bits are the last character ("d") and the low three of the one before.
fn onion_fault(rest: &str) -> Option<OnionFault> {
    let label = rest.rsplit('.').next().unwrap_or(rest).as_bytes();
    let is_base32 = |byte: &u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    match label.len() {
        16 => Some(OnionFault::Version2),
        56 if !label.iter().all(is_base32) => Some(OnionFault::Alphabet),
        56 => match label {
            [.., b'a' | b'i' | b'q' | b'y', b'd'] => None,
            _ => Some(OnionFault::Version),
        },
        length => Some(OnionFault::Length(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Tor Project's own site.
    const ONION: &str = "2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion";

    #[test]
    fn each_never_reachable_name_has_its_reason() {
        for (name, reason) in [
            ("localhost", "special-use name blocked: localhost"),
            ("a.b.localhost", "special-use name blocked: a.b.localhost"),
            ("printer.local", "special-use name blocked: printer.local"),
            ("local", "special-use name blocked: local"),
            (
                "db.corp.internal",
                "special-use name blocked: db.corp.internal",
            ),
            (
                "host.docker.internal",
                "special-use name blocked: host.docker.internal",
            ),
            (
                "localhost.localdomain",
                "special-use name blocked: localhost.localdomain",
            ),
            ("home.arpa", "special-use name blocked: home.arpa"),
            ("nas.home.arpa", "special-use name blocked: nas.home.arpa"),
            (
                "metadata.google.internal",
                "cloud metadata endpoint blocked",
            ),
            ("metadata", "cloud metadata endpoint blocked"),
            ("intranet", "single-label name blocked"),
            ("onion", "single-label name blocked"),
            ("foo.1a", "numeric top-level label blocked"),
            ("127.0.0.1", "numeric top-level label blocked"),
            (
                "update.googleapis.com",
                "browser service blocked: update.googleapis.com",
            ),
            (
                "beacons.gvt2.com",
                "browser service blocked: beacons.gvt2.com",
            ),
        ] {
            assert_eq!(
                never(name).map(|d| d.to_string()).as_deref(),
                Some(reason),
                "{name}"
            );
        }
    }

    #[test]
    fn names_that_only_look_alike_are_left_to_the_rules() {
        for name in [
            "example.com",
            "localhost.example.com",
            "notlocalhost.example",
            "mylocal.example",
            "xlocal.xinternal",
            "arpa.example",
            "127.0.0.1.nip.io",
            "accounts.google.com",
            "redirector.gvt1.com",
            "googleapis.com",
            "notupdate.googleapis.com",
            "com.xn--p1ai",
        ] {
            assert_eq!(never(name), None, "{name}");
        }
    }

    #[test]
    fn only_version_3_onions_are_left_to_the_rules() {
        assert_eq!(never(ONION), None);
        assert_eq!(never(&format!("www.{ONION}")), None);
        for (name, fault) in [
            ("expyuzz4wqqyqhjn.onion".to_owned(), OnionFault::Version2),
            (
                "www.expyuzz4wqqyqhjn.onion".to_owned(),
                OnionFault::Version2,
            ),
            ("short.onion".to_owned(), OnionFault::Length(5)),
            (format!("a{ONION}"), OnionFault::Length(57)),
            (ONION.replacen('2', "1", 1), OnionFault::Alphabet),
            (ONION.replace("wid.", "wia."), OnionFault::Version),
            (ONION.replace("wid.", "wbd."), OnionFault::Version),
        ] {
            assert_eq!(never(&name), Some(Denial::MalformedOnion(fault)), "{name}");
        }
    }

    #[test]
    fn every_row_is_a_normalised_name_with_a_reason() {
        assert_eq!(KINDS.len(), NAMES.len(), "a name is listed twice");
        for (name, _, why) in NAMES {
            assert_eq!(
                super::super::Host::parse(name)
                    .map(|h| h.to_string())
                    .as_deref(),
                Ok(*name)
            );
            assert!(name.split('.').count() <= MAX_LABELS, "{name}");
            assert!(!why.is_empty());
        }
    }

    #[test]
    fn suffixes_are_the_parents_of_at_most_so_many_labels() {
        for (name, labels, expected) in [
            ("a.b.c", 9, &["a.b.c", "b.c", "c"][..]),
            ("a.b.c", 3, &["a.b.c", "b.c", "c"]),
            ("a.b.c", 2, &["b.c", "c"]),
            ("a.b.c", 1, &["c"]),
            ("a.b.c", 0, &[]),
            ("a", 2, &["a"]),
        ] {
            assert_eq!(
                suffixes(name, labels).collect::<Vec<_>>(),
                expected,
                "{name} {labels}"
            );
        }
    }
}
