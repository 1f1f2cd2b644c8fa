//! Patterns: `example.com`, `*.example.com`, `https://example.com:8443`.

use super::denial::Denial;
use super::host::parse_port;
use super::origin::Scheme;
use super::{Host, HostError, never};

/// One entry of an allow or deny list, normalised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// As the operator wrote it.
    pub text: String,
    pub host: Host,
    /// `*.host`: what is beneath the host, and not the host itself.
    pub subdomains: bool,
    pub scheme: Option<Scheme>,
    /// Any port where there is no scheme.
    pub port: Option<u16>,
}

/// A pattern that was refused at load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pattern {pattern:?}: {problem}")]
pub struct PatternError {
    pub pattern: String,
    #[source]
    pub problem: PatternProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternProblem {
    #[error("it is empty")]
    Empty,
    #[error("it would cover every host; that is --allow-public-web (default_action = \"allow\")")]
    Everything,
    #[error("it would cover a whole top-level domain")]
    TopLevel,
    #[error("a wildcard can only be the whole first label, as in *.example.com")]
    Wildcard,
    #[error("an address has no subdomains")]
    WildcardAddress,
    #[error("it can never match: only http and https are reachable, not {0:?}")]
    Scheme(String),
    #[error(
        "a pattern has no path, query or fragment: write the origin, as in https://example.com"
    )]
    Path,
    #[error("a pattern has no user name or password")]
    Userinfo,
    #[error("a port needs a scheme, as in https://example.com:8443")]
    PortWithoutScheme,
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("write an IPv6 address with a scheme in brackets, as in https://[2606:4700::1]:8443")]
    Brackets,
    #[error("it can never match: {0}, whatever the policy says")]
    NeverReachable(Denial),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Pattern {
    /// Normalises a pattern with the same code as the hosts it is compared with, or refuses it.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        parse(text).map_err(|problem| PatternError {
            pattern: text.to_owned(),
            problem,
        })
    }

    /// Whether port and scheme fit; the host is the index's business. A scheme that is not known
    /// fits every pattern that has the port.
    pub(super) fn fits(&self, port: u16, scheme: Option<Scheme>) -> bool {
        let same_scheme = match (self.scheme, scheme) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        same_scheme && self.port.is_none_or(|ours| ours == port)
    }
}

fn parse(text: &str) -> Result<Pattern, PatternProblem> {
    if text.is_empty() {
        return Err(PatternProblem::Empty);
    }
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => {
            let known = scheme
                .parse()
                .map_err(|_| PatternProblem::Scheme(scheme.to_owned()))?;
            (Some(known), rest)
        }
        None => (None, text),
    };
    if rest.contains(['/', '\\', '?', '#']) {
        return Err(PatternProblem::Path);
    }
    if rest.contains('@') {
        return Err(PatternProblem::Userinfo);
    }
    let (host, port) = match scheme {
        Some(scheme) => split_port(rest, scheme)?,
        None => (rest, None),
    };
    let (host, subdomains) = parse_host(host)?;
    Ok(Pattern {
        text: text.to_owned(),
        host,
        subdomains,
        scheme,
        port,
    })
}

/// The port of an origin, its scheme's own where it names none.
fn split_port(rest: &str, scheme: Scheme) -> Result<(&str, Option<u16>), PatternProblem> {
    let (host, port) = match rest.rsplit_once(':') {
        // The last colon of "[2606::1]" is the address's.
        Some(_) if rest.ends_with(']') => (rest, scheme.default_port()),
        Some((host, port)) => {
            if host.contains(':') && !host.starts_with('[') {
                return Err(PatternProblem::Brackets);
            }
            (host, parse_port(port).ok_or(PatternProblem::Port)?)
        }
        None => (rest, scheme.default_port()),
    };
    Ok((host, Some(port)))
}

fn parse_host(text: &str) -> Result<(Host, bool), PatternProblem> {
    if text == "*" {
        return Err(PatternProblem::Everything);
    }
    let (base, subdomains) = match text.strip_prefix("*.") {
        Some(base) => (base, true),
        None => (text, false),
    };
    if base.contains('*') {
        return Err(PatternProblem::Wildcard);
    }
    let host = Host::parse(base).map_err(|error| match error {
        HostError::Port(_) => PatternProblem::PortWithoutScheme,
        other => PatternProblem::Host(other),
    })?;
    // A name stands for all those beneath it: what is never reachable is so with its subdomains.
    let example = match (&host, subdomains) {
        (Host::Address(_), true) => return Err(PatternProblem::WildcardAddress),
        (Host::Name(name), true) if !name.contains('.') => return Err(PatternProblem::TopLevel),
        (Host::Name(name), true) => &Host::parse(&format!("x.{name}"))?,
        (_, false) => &host,
    };
    match never(example) {
        Some(denial) => Err(PatternProblem::NeverReachable(denial)),
        None => Ok((host, subdomains)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ONION: &str = "2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion";

    #[test]
    fn patterns_are_normalised_like_hosts() {
        for (text, host, subdomains, port) in [
            ("Example.COM.", "example.com", false, None),
            ("*.Bücher.example", "xn--bcher-kva.example", true, None),
            ("https://example.com", "example.com", false, Some(443)),
            ("HTTP://example.com", "example.com", false, Some(80)),
            ("https://example.com:8443", "example.com", false, Some(8443)),
            (
                "https://*.example.com:8443",
                "example.com",
                true,
                Some(8443),
            ),
            ("0x08.010.8.8", "8.8.8.8", false, None),
            (
                "2606:4700:4700::1111",
                "[2606:4700:4700::1111]",
                false,
                None,
            ),
            (
                "[2606:4700:4700:0::1111]",
                "[2606:4700:4700::1111]",
                false,
                None,
            ),
            (
                "https://[2606:4700:4700::1111]",
                "[2606:4700:4700::1111]",
                false,
                Some(443),
            ),
            (
                "https://[2606:4700:4700::1111]:8443",
                "[2606:4700:4700::1111]",
                false,
                Some(8443),
            ),
            ("accounts.google.com", "accounts.google.com", false, None),
            ("*.google.com", "google.com", true, None),
            ("*.co.uk", "co.uk", true, None),
            (ONION, ONION, false, None),
        ] {
            let pattern = Pattern::parse(text).unwrap();
            let found = (pattern.host.to_string(), pattern.subdomains, pattern.port);
            assert_eq!(found, (host.to_owned(), subdomains, port), "{text}");
            assert_eq!(pattern.text, text);
        }
        assert!(Pattern::parse(&format!("*.{ONION}")).is_ok());
    }

    #[test]
    fn a_pattern_that_is_too_wide_malformed_or_can_never_match_is_refused_by_name() {
        for (text, why) in [
            ("", "empty"),
            ("*", "every host"),
            ("https://*", "every host"),
            ("*.com", "top-level"),
            ("*.com.", "top-level"),
            ("*.onion", "top-level"),
            ("*.local", "top-level"),
            ("*.", "empty"),
            ("**.example.com", "wildcard"),
            ("*.*.com", "wildcard"),
            ("www.*.com", "wildcard"),
            ("*example.com", "wildcard"),
            ("example.*", "wildcard"),
            ("%2a.example.com", "'*'"),
            ("*.8.8.8.8", "no subdomains"),
            ("*.[2606::1]", "no subdomains"),
            ("ftp://example.com", "\"ftp\""),
            ("ws://example.com", "\"ws\""),
            ("://example.com", "\"\""),
            ("https://example.com/", "path"),
            ("https://example.com/path", "path"),
            ("example.com/path", "path"),
            ("example.com?q", "path"),
            ("https://user:pass@example.com", "user name"),
            ("user@example.com", "user name"),
            ("example.com:8443", "needs a scheme"),
            ("https://example.com:", "port"),
            ("https://example.com:0", "port"),
            ("https://example.com:65536", "port"),
            ("https://example.com:+1", "port"),
            ("https://2606:4700::1", "brackets"),
            ("https://", "empty"),
            (" example.com", "' '"),
            ("example.com, example.org", "' '"),
            ("example..com", "empty label"),
            ("127.0.0.1", "loopback IP blocked"),
            ("0x7f.1", "loopback IP blocked"),
            ("https://[::1]:8443", "loopback IP blocked"),
            ("::ffff:8.8.8.8", "IPv4-mapped"),
            ("10.0.0.1", "RFC 1918"),
            ("169.254.169.254", "metadata"),
            ("localhost", "special-use"),
            ("*.foo.localhost", "special-use"),
            ("*.home.arpa", "special-use"),
            ("metadata.google.internal", "metadata"),
            ("intranet", "single-label"),
            ("update.googleapis.com", "browser service"),
            ("*.gvt2.com", "browser service"),
            ("short.onion", "onion"),
            ("*.short.onion", "onion"),
        ] {
            let error = Pattern::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(error.starts_with(&format!("pattern {text:?}: ")), "{error}");
        }
        // Nothing fits beneath a name of full length.
        let full = format!("{}c", "a.".repeat(126));
        assert!(Pattern::parse(&full).is_ok());
        assert!(Pattern::parse(&format!("*.{full}")).is_err());
    }
}
