//! A host, normalised once: everything after the parse compares plain values.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// RFC 1035 section 2.3.4, as text: 255 octets on the wire, less the length byte and the root.
const MAX_NAME: usize = 253;
/// RFC 1035 section 2.3.4.
const MAX_LABEL: usize = 63;

/// A host name in its canonical ASCII form, or an address. Made by [`Host::parse`].
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

/// Why a text is no host. The text itself is quoted and escaped: it may come from a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("an empty string is not a host")]
    Empty,
    #[error("{host:?} is not a host: it contains {character:?}")]
    Character { host: String, character: char },
    #[error("{0:?} is not a host: it carries a port")]
    Port(String),
    #[error("{0:?} is not a host: IPv6 zone ids mean something on one machine only")]
    Zone(String),
    #[error("{0:?} is not an IPv6 address")]
    Ipv6(String),
    #[error("{0:?} is not a host: an empty label")]
    EmptyLabel(String),
    #[error("a name of {0} characters is not a host: at most {MAX_NAME}")]
    NameTooLong(usize),
    #[error("{0:?} is not a host: a label has at most {MAX_LABEL} characters")]
    LabelTooLong(String),
    #[error("{host:?} is not a host: {source}")]
    Whatwg {
        host: String,
        source: url::ParseError,
    },
}

/// Why a text is no `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("{0:?} is not host:port: the port is missing")]
    NoPort(String),
    #[error("{0:?} is not host:port: the port is not a number from 1 to 65535")]
    Port(String),
    #[error("{0:?} is not host:port: write an IPv6 address in brackets")]
    Brackets(String),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Host {
    /// Parses what SOCKS, a URL or a pattern calls a host.
    ///
    /// The WHATWG host parser decides, as it does in Chromium, so that `0x7f.1`, `１２７.1` and
    /// `127.0.0.1` are one value here. Three things differ, because SOCKS and people write them:
    /// IPv6 addresses may come without brackets, a trailing dot is dropped, and what no DNS name
    /// can contain is refused.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        // What IDNA makes of a text is at most a few times shorter; this bounds its work.
        if text.len() > 16 * MAX_NAME {
            return Err(HostError::NameTooLong(text.len()));
        }
        if let Some(character) = text.chars().find(|c| is_never_in_a_host(*c)) {
            return Err(HostError::Character {
                host: text.to_owned(),
                character,
            });
        }
        if text.contains(['[', ']', ':']) {
            return ipv6(text).map(|address| Host::Address(address.into()));
        }
        let parsed = url::Host::parse(text).map_err(|source| HostError::Whatwg {
            host: text.to_owned(),
            source,
        })?;
        match parsed {
            url::Host::Ipv4(address) => Ok(Host::Address(address.into())),
            url::Host::Ipv6(address) => Ok(Host::Address(address.into())),
            url::Host::Domain(name) => name_of(name, text),
        }
    }

    /// The name, unless this is an address.
    pub fn name(&self) -> Option<&str> {
        match self {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }

    /// An onion service, well-formed or not: Tor carries it to no exit.
    pub fn is_onion(&self) -> bool {
        self.name().is_some_and(|name| name.ends_with(".onion"))
    }
}

/// Separators of a URL, and what would forge a line of a log or a terminal.
fn is_never_in_a_host(c: char) -> bool {
    c.is_control() || c.is_whitespace() || matches!(c, '/' | '\\' | '?' | '#' | '@')
}

fn ipv6(text: &str) -> Result<Ipv6Addr, HostError> {
    let inner = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inner, "")) => inner,
            Some((_, after)) if after.starts_with(':') => {
                return Err(HostError::Port(text.to_owned()));
            }
            _ => return Err(HostError::Ipv6(text.to_owned())),
        },
        None => text,
    };
    if inner.contains('%') {
        return Err(HostError::Zone(text.to_owned()));
    }
    match inner.parse() {
        Ok(address) => Ok(address),
        Err(_) if inner.matches(':').count() == 1 && !text.starts_with('[') => {
            Err(HostError::Port(text.to_owned()))
        }
        Err(_) => Err(HostError::Ipv6(text.to_owned())),
    }
}

/// Checks what WHATWG leaves open for schemes other than the web's: the limits of the DNS.
fn name_of(mut name: String, text: &str) -> Result<Host, HostError> {
    if name.ends_with('.') {
        name.pop();
    }
    if name.len() > MAX_NAME {
        return Err(HostError::NameTooLong(name.len()));
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel(text.to_owned()));
        }
        if label.len() > MAX_LABEL {
            return Err(HostError::LabelTooLong(text.to_owned()));
        }
    }
    // Letters, digits and hyphens (RFC 1123), and the underscore that real names have.
    let stranger = |c: &char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(*c));
    match name.chars().find(stranger) {
        Some(character) => Err(HostError::Character {
            host: text.to_owned(),
            character,
        }),
        None => Ok(Host::Name(name)),
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

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Host::parse(text)
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Host::Address(address)
    }
}

impl Target {
    pub fn new(host: Host, port: u16) -> Self {
        Target { host, port }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| TargetError::NoPort(text.to_owned()))?;
        // "::1:80" is an address of its own: which colon begins the port is anyone's guess.
        if host.contains(':') && !host.starts_with('[') {
            return Err(TargetError::Brackets(text.to_owned()));
        }
        let port = parse_port(port).ok_or_else(|| TargetError::Port(text.to_owned()))?;
        Ok(Target {
            host: Host::parse(host)?,
            port,
        })
    }
}

/// A port that a connection can have: digits only, not 0.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|port| *port != 0)
}

/// Hosts and targets travel as the text that `Display` gives, and come back through the parser.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(de::Error::custom)
            }
        }
    };
}

serde_as_text!(Host);
serde_as_text!(Target);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn address(text: &str) -> Host {
        Host::Address(text.parse().unwrap())
    }

    #[test]
    fn every_spelling_of_an_ipv4_address_is_that_address() {
        for text in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "0177.0.0.1",
            "0x7f.1",
            "0X7F.0.0.0x1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "１２７.０.０.１",
            "127。0。0。1",
            "127．0．0．1",
            "①②⑦.0.0.1",
            "%31%32%37.0.0.1",
            "127.0.0.%31",
            "127.0.0.1%2e",
            "1\u{ad}27.0.0.1",
        ] {
            assert_eq!(Host::parse(text), Ok(address("127.0.0.1")), "{text:?}");
        }
    }

    #[test]
    fn ipv6_addresses_parse_with_and_without_brackets() {
        for (text, expected) in [
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("0:0:0:0:0:0:0:1", "::1"),
            ("[0000:0000::0001]", "::1"),
            ("::ffff:127.0.0.1", "::ffff:7f00:1"),
            ("[::FFFF:7F00:1]", "::ffff:127.0.0.1"),
            (
                "2606:2800:220:1:248:1893:25C8:1946",
                "2606:2800:220:1:248:1893:25c8:1946",
            ),
        ] {
            assert_eq!(Host::parse(text), Ok(address(expected)), "{text:?}");
        }
    }

    #[test]
    fn names_are_normalised() {
        for (text, expected) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("example。com", "example.com"),
            ("ｅｘａｍｐｌｅ．ｃｏｍ", "example.com"),
            ("e\u{ad}xample.com", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("faß.example", "xn--fa-hia.example"),
            ("Ⅻ.example", "xii.example"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("127.0.0.1.nip.io", "127.0.0.1.nip.io"),
            ("loc%61lhost", "localhost"),
            ("a.b.c.example.1a", "a.b.c.example.1a"),
        ] {
            assert_eq!(
                Host::parse(text),
                Ok(Host::Name(expected.to_owned())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_homograph_is_another_name() {
        // Cyrillic "а" and "е".
        let host = Host::parse("еxаmple.com").unwrap();
        assert!(host.to_string().starts_with("xn--"), "{host}");
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = format!("{}com", "a.".repeat(126));
        let huge = "a".repeat(1 << 20);
        for text in [
            "",
            ".",
            "..",
            ".example.com",
            "example..com",
            "example.com..",
            "127.0.0.1..",
            "example.com:80",
            "127.0.0.1:80",
            "[::1]:80",
            "[::1",
            "::1]",
            "[[::1]]",
            "[]",
            ":",
            ":::",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "user@example.com",
            "user:pass@example.com",
            "user%40example.com",
            "http://example.com",
            "example.com/path",
            "example.com%2fpath",
            "example.com\\path",
            "example.com?query",
            "example.com#fragment",
            "exam ple.com",
            " example.com",
            "example.com\n",
            "example.com\0",
            "example.com%00.evil.example",
            "exam\u{7f}ple.com",
            "exam\u{85}ple.com",
            "exam\u{2028}ple.com",
            "*.example.com",
            "*",
            "exa!mple.com",
            "exa%mple.com",
            "exa<mple.com",
            "a,b.example",
            "256.0.0.1",
            "1.2.3.4.5",
            "1.2.3.08",
            "0x100000000",
            "4294967296",
            "example.com.127",
            "xn--a.example",
            "xn--.example",
            &long_label,
            &long_name,
            &huge,
        ] {
            assert!(
                Host::parse(text).is_err(),
                "{text:?} gave {:?}",
                Host::parse(text)
            );
        }
        // The control: the same lengths less one are hosts.
        assert!(Host::parse(&format!("{}.com", "a".repeat(63))).is_ok());
        assert!(Host::parse(&format!("{}c", "a.".repeat(126))).is_ok());
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        for (text, why) in [
            ("fe80::1%eth0", "zone ids"),
            ("example.com:80", "carries a port"),
            ("[::1]:80", "carries a port"),
            ("1::2::3", "not an IPv6 address"),
            ("a..b", "an empty label"),
            ("user@example.com", "it contains '@'"),
            ("a\nb.example", "it contains '\\n'"),
            ("1.2.3.256", "invalid IPv4 address"),
        ] {
            let error = Host::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_target_is_host_colon_port() {
        for (text, shown) in [
            ("Example.com:443", "example.com:443"),
            ("127.1:80", "127.0.0.1:80"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), shown);
            let json = serde_json::to_string(&target).unwrap();
            assert_eq!(json, format!("{shown:?}"));
            assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
        }
        for text in [
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:+80",
            "example.com:65536",
            "example.com:http",
            ":80",
            "::1:80",
            "[::1]",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
    }
}
