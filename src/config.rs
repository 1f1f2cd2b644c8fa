//! Flags, environment and files become one validated [`Config`].

mod flags;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::browser::managed::Certificate;
use crate::cell::{Display, Requested};
use crate::gateway::egress::arti::TorConfig;
use crate::policy::{Overrides, Policy};
use crate::protocol::error::{Code, Failure};
use crate::protocol::render::Format;

pub use flags::{Flags, IsolationFlag};

/// Everything a run needs, checked.
#[derive(Debug)]
pub struct Config {
    pub policy: Policy,
    pub egress: EgressChoice,
    pub isolation: Requested,
    pub chromium_sandbox: bool,
    pub chromium: Option<PathBuf>,
    pub display: Option<Display>,
    pub trusted: Vec<Certificate>,
    pub workspace: PathBuf,
    pub profile: ProfileChoice,
    pub ledger: Option<PathBuf>,
    /// Small answers that may be asked again.
    pub cache: PathBuf,
}

#[derive(Debug)]
pub enum EgressChoice {
    Tor(TorConfig),
    /// socks5://host:port
    Socks(String),
    Unix(PathBuf),
    /// Only after `--dangerously-direct`.
    Direct,
}

#[derive(Debug, PartialEq, Eq)]
pub enum ProfileChoice {
    At(PathBuf),
    Ephemeral,
}

fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, message).hint(hint)
}

impl Flags {
    pub fn format(&self) -> Format {
        let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
        match self.format {
            Some(format) => format,
            None if self.json || !on_terminal => Format::Json,
            None => Format::Human,
        }
    }

    /// Reads the files that the flags name and checks that everything fits together.
    pub fn validate(self) -> Result<Config, Failure> {
        let policy = self.load_policy()?;
        let workspace = self.workspace_directory()?;
        let profile = match (&self.profile, self.ephemeral) {
            (_, true) => ProfileChoice::Ephemeral,
            (Some(directory), _) => ProfileChoice::At(directory.clone()),
            (None, _) => ProfileChoice::At(workspace.join(".browser_profile")),
        };
        Ok(Config {
            policy,
            egress: self.egress_choice()?,
            isolation: match self.isolation {
                IsolationFlag::Auto => Requested::Auto,
                IsolationFlag::Namespace => Requested::Namespace,
                IsolationFlag::Container => Requested::Container,
            },
            chromium_sandbox: !self.dangerously_no_chromium_sandbox,
            display: self.headed.then(display).transpose()?,
            trusted: certificates(&self.trust_ca)?,
            chromium: self.chromium,
            workspace,
            profile,
            ledger: self.ledger,
            cache: home_directory("XDG_CACHE_HOME", ".cache", "/var/cache"),
        })
    }

    pub fn load_policy(&self) -> Result<Policy, Failure> {
        let overrides = Overrides {
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            allow_public_web: self.allow_public_web,
        };
        Policy::load(self.policy.as_deref(), &overrides).map_err(|error| {
            usage(
                error.to_string(),
                "`onioncell policy check` tests a policy without starting anything",
            )
        })
    }

    fn workspace_directory(&self) -> Result<PathBuf, Failure> {
        let path = match &self.workspace {
            Some(path) => path.clone(),
            None if Path::new("/workspace").is_dir() => PathBuf::from("/workspace"),
            None => PathBuf::from("."),
        };
        let bad = |reason: &str| {
            usage(
                format!("cannot use the workspace {}: {reason}", path.display()),
                "name an existing directory with --workspace DIR",
            )
        };
        let path = path
            .canonicalize()
            .map_err(|error| bad(&error.to_string()))?;
        if path.is_dir() {
            Ok(path)
        } else {
            Err(bad("not a directory"))
        }
    }

    pub fn egress_choice(&self) -> Result<EgressChoice, Failure> {
        if let Some(gateway) = &self.gateway {
            return match gateway.strip_prefix("unix:") {
                Some(path) if !path.is_empty() => Ok(EgressChoice::Unix(PathBuf::from(path))),
                _ => Err(usage(
                    format!("--gateway {gateway}: not a unix socket"),
                    "write --gateway unix:/run/onioncell/gateway.sock",
                )),
            };
        }
        match self.egress.as_str() {
            "tor" => self.tor().map(EgressChoice::Tor),
            "direct" if self.dangerously_direct => Ok(EgressChoice::Direct),
            "direct" => Err(usage(
                "--egress direct uses your own address and no Tor",
                "add --dangerously-direct if that is what you want",
            )),
            other => socks_upstream(other),
        }
    }

    fn tor(&self) -> Result<TorConfig, Failure> {
        let state = match &self.tor_state {
            Some(directory) => directory.clone(),
            None => home_directory("XDG_STATE_HOME", ".local/state", "/var/lib").join("tor"),
        };
        Ok(TorConfig {
            state_dir: state.join("state"),
            cache_dir: state.join("cache"),
            network: self.tor_network.clone(),
            bridges: self.bridge.clone(),
            exit_country: self.exit_country.clone(),
            bootstrap_timeout: Duration::from_secs(self.tor_timeout),
        })
    }
}

fn socks_upstream(text: &str) -> Result<EgressChoice, Failure> {
    let bad = |reason: &str| {
        usage(
            format!("--egress {text}: {reason}"),
            "one of: tor, socks5://127.0.0.1:9050, direct",
        )
    };
    let address = text
        .strip_prefix("socks5://")
        .or_else(|| text.strip_prefix("socks5h://"))
        .ok_or_else(|| bad("unknown egress"))?;
    let (host, port) = address
        .trim_end_matches('/')
        .rsplit_once(':')
        .ok_or_else(|| bad("no port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if !port.parse().is_ok_and(|port: u16| port != 0) {
        return Err(bad("the port is not a number from 1 to 65535"));
    }
    let is_address = host.parse::<IpAddr>().is_ok();
    let is_name = host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if host.is_empty() || !(is_address || is_name) {
        return Err(bad("the host is neither a name nor an address"));
    }
    Ok(EgressChoice::Socks(text.to_owned()))
}

fn certificates(files: &[PathBuf]) -> Result<Vec<Certificate>, Failure> {
    let mut trusted = Vec::new();
    for file in files {
        let bad = |reason: &str| {
            usage(
                format!("--trust-ca {}: {reason}", file.display()),
                "name a PEM file with -----BEGIN CERTIFICATE-----",
            )
        };
        let text = std::fs::read_to_string(file).map_err(|error| bad(&error.to_string()))?;
        trusted.extend(Certificate::parse_pem(&text).ok_or_else(|| bad("no certificate in it"))?);
    }
    Ok(trusted)
}

/// The X display of `--headed`: a local one, whose socket the cell can be given.
fn display() -> Result<Display, Failure> {
    let Ok(name) = std::env::var("DISPLAY") else {
        return Err(usage(
            "--headed needs a display, and DISPLAY is not set",
            "run it in a desktop session, or leave --headed out",
        ));
    };
    // ":1" or ":1.0" (X(7), display names).
    let number = name
        .strip_prefix(':')
        .and_then(|rest| rest.split('.').next())
        .filter(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    let Some(number) = number else {
        return Err(usage(
            format!("--headed needs a display of this machine, and DISPLAY is {name:?}"),
            "forwarded displays would need a network; leave --headed out",
        ));
    };
    Ok(Display {
        socket: PathBuf::from(format!("/tmp/.X11-unix/X{number}")),
        xauthority: std::env::var_os("XAUTHORITY").map(PathBuf::from),
        name,
    })
}

/// onioncell's directory of one kind (XDG base directory specification).
fn home_directory(variable: &str, below_home: &str, without_home: &str) -> PathBuf {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute(variable)
        .or_else(|| absolute("HOME").map(|home| home.join(below_home)))
        .unwrap_or_else(|| PathBuf::from(without_home))
        .join("onioncell")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        for text in [
            "socks5://127.0.0.1:9050",
            "socks5h://tor:9150/",
            "socks5://[::1]:9050",
        ] {
            assert!(
                matches!(socks_upstream(text), Ok(EgressChoice::Socks(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in [
            "http://127.0.0.1:9050",
            "socks5://127.0.0.1",
            "socks5://127.0.0.1:0",
            "socks5://127.0.0.1:99999",
            "socks5://:9050",
            "socks5://user@host:9050",
            "socks4://127.0.0.1:9050",
            "",
        ] {
            let message = socks_upstream(text).unwrap_err().message;
            assert!(
                message.starts_with(&format!("--egress {text}: ")),
                "{message}"
            );
        }
    }
}
