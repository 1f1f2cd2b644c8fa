//! Who is asked: scheme, host and port, as far as they are known.

use std::fmt;
use std::str::FromStr;

use super::{Host, Target};

/// The two schemes of the web. WebSockets share their hosts and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// Text that is neither `http` nor `https`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOfTheWeb;

impl FromStr for Scheme {
    type Err = NotOfTheWeb;

    fn from_str(text: &str) -> Result<Self, NotOfTheWeb> {
        if text.eq_ignore_ascii_case("http") {
            Ok(Scheme::Http)
        } else if text.eq_ignore_ascii_case("https") {
            Ok(Scheme::Https)
        } else {
            Err(NotOfTheWeb)
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        })
    }
}

/// A target and, where a URL told, its scheme: at the gateway a connection has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: Option<Scheme>,
    pub target: Target,
}

impl Origin {
    pub fn host(&self) -> &Host {
        &self.target.host
    }
}

impl fmt::Display for Origin {
    /// `https://example.com` as browsers write an origin, `example.com:443` without a scheme.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Some(scheme) if self.target.port == scheme.default_port() => {
                write!(f, "{scheme}://{}", self.target.host)
            }
            Some(scheme) => write!(f, "{scheme}://{}", self.target),
            None => self.target.fmt(f),
        }
    }
}
