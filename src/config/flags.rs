//! The options, as the operator writes them: on the command line or in the environment.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
