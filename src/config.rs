//! Flags, environment and files become one validated [`Config`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::browser::managed::Certificate;
use crate::cell::{Display, Requested};
use crate::gateway::egress::arti::TorConfig;
use crate::policy::{Overrides, Policy};
use crate::protocol::error::{Code, Failure};
use crate::protocol::render::Format;

/// What the operator wrote: every option has an environment twin.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Replies")]
pub struct Flags {
    /// How replies are written [default: human on a terminal, json elsewhere]
    #[arg(long, global = true, value_enum, env = "ONIONCELL_FORMAT")]
    pub format: Option<Format>,
    /// The same as --format json
    #[arg(long, global = true, conflicts_with = "format")]
    pub json: bool,
    /// Say more on stderr: -v what happens, -vv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// The policy, a TOML file
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONIONCELL_POLICY",
        help_heading = "What may be reached"
    )]
    pub policy: Option<PathBuf>,
    /// A host, *.host or origin that may be reached (repeatable)
    #[arg(
        long,
        global = true,
        value_name = "PATTERN",
        env = "ONIONCELL_ALLOW",
        value_delimiter = ',',
        help_heading = "What may be reached"
    )]
    pub allow: Vec<String>,
    /// A host, *.host or origin that may not (repeatable; beats --allow)
    #[arg(
        long,
        global = true,
        value_name = "PATTERN",
        env = "ONIONCELL_DENY",
        value_delimiter = ',',
        help_heading = "What may be reached"
    )]
    pub deny: Vec<String>,
    /// Every public host may be reached unless denied
    #[arg(
        long,
        global = true,
        env = "ONIONCELL_ALLOW_PUBLIC_WEB",
        help_heading = "What may be reached"
    )]
    pub allow_public_web: bool,
    /// Write a line for every connection to this file
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONIONCELL_LEDGER",
        help_heading = "What may be reached"
    )]
    pub ledger: Option<PathBuf>,

    /// tor (embedded), socks5://HOST:PORT (a Tor daemon elsewhere), or direct
    #[arg(
        long,
        global = true,
        default_value = "tor",
        env = "ONIONCELL_EGRESS",
        help_heading = "The way out"
    )]
    pub egress: String,
    /// Allow --egress direct: no Tor, your own address, for work on your own pages
    #[arg(
        long,
        global = true,
        env = "ONIONCELL_DANGEROUSLY_DIRECT",
        help_heading = "The way out"
    )]
    pub dangerously_direct: bool,
    /// Use a gateway that runs elsewhere
    #[arg(
        long,
        global = true,
        value_name = "unix:PATH",
        env = "ONIONCELL_GATEWAY",
        help_heading = "The way out"
    )]
    pub gateway: Option<String>,
    /// A bridge line, where Tor is blocked (repeatable)
    #[arg(
        long,
        global = true,
        value_name = "LINE",
        env = "ONIONCELL_BRIDGE",
        value_delimiter = '\n',
        help_heading = "The way out"
    )]
    pub bridge: Vec<String>,
    /// Only exits in this country, by its two letters
    #[arg(
        long,
        global = true,
        value_name = "CC",
        env = "ONIONCELL_EXIT_COUNTRY",
        help_heading = "The way out"
    )]
    pub exit_country: Option<String>,
    /// A private Tor network, as an Arti configuration in TOML
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONIONCELL_TOR_NETWORK",
        help_heading = "The way out"
    )]
    pub tor_network: Option<PathBuf>,
    /// Where Tor keeps its guards and directory [default: ~/.local/state/onioncell/tor]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "ONIONCELL_TOR_STATE",
        help_heading = "The way out"
    )]
    pub tor_state: Option<PathBuf>,
    /// Give up on Tor's bootstrap after this many seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 90, env = "ONIONCELL_TOR_TIMEOUT", help_heading = "The way out", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub tor_timeout: u64,

    /// How Chromium is cut off from the network
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "ONIONCELL_ISOLATION",
        help_heading = "The cell"
    )]
    pub isolation: IsolationFlag,
    /// Run Chromium without its own sandbox, where user namespaces are blocked
    #[arg(
        long,
        global = true,
        env = "ONIONCELL_DANGEROUSLY_NO_CHROMIUM_SANDBOX",
        help_heading = "The cell"
    )]
    pub dangerously_no_chromium_sandbox: bool,
    /// A certificate authority to trust besides the public ones, as PEM (repeatable)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONIONCELL_TRUST_CA",
        value_delimiter = ',',
        help_heading = "The cell"
    )]
    pub trust_ca: Vec<PathBuf>,
    /// Another Chromium
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "ONIONCELL_CHROMIUM",
        help_heading = "The cell"
    )]
    pub chromium: Option<PathBuf>,
    /// Show the window, where there is a display
    #[arg(
        long,
        global = true,
        env = "ONIONCELL_HEADED",
        help_heading = "The cell"
    )]
    pub headed: bool,

    /// Where files are read and written [default: /workspace, or the current directory]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "ONIONCELL_WORKSPACE",
        help_heading = "Files"
    )]
    pub workspace: Option<PathBuf>,
    /// Where cookies and logins live [default: .browser_profile in the workspace]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "ONIONCELL_PROFILE",
        help_heading = "Files",
        conflicts_with = "ephemeral"
    )]
    pub profile: Option<PathBuf>,
    /// Keep nothing: the profile is gone at exit
    #[arg(
        long,
        global = true,
        env = "ONIONCELL_EPHEMERAL",
        help_heading = "Files"
    )]
    pub ephemeral: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IsolationFlag {
    /// namespace where it can be had, else container
    #[default]
    Auto,
    /// A user and network namespace whose one socket is the gateway's
    Namespace,
    /// The container itself has no network but a gateway's unix socket
    Container,
}

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
    Ok(Display::X11 {
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
