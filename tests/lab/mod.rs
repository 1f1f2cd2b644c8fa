//! The lab: an internet in network namespaces, with a real Tor network of Debian's `tor`, DNS for its exits, web sites, an
//! onion service, a neighbour network that nobody may touch, and captures of every packet that home sends.
//!
//! Nothing of it has a name or a port on the machine: several labs can run at once, none reaches the outside, and when the
//! process ends, even by SIGKILL, the kernel takes namespaces and daemons down with it.
//!
//! ```text
//!   home ──eth0── backbone ── authority, relay1, relay2, exit1, exit2 (tor)
//!     │              ├─────── web (sites), dns, onion (tor + web server)
//!    eth1 ── neighbour: 192.168.77.1, 169.254.169.254 and every other private address
//! ```

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod capture;
mod control;
mod daemon;
pub mod dns;
mod http;
pub mod neighbour;
mod netns;
pub mod packet;
mod scratch;
mod stop;
mod tls;
pub mod topology;
mod tor;
mod torrc;
pub mod web;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use capture::Capture;
use daemon::{Daemon, Keeper};
use dns::Dns;
use neighbour::Neighbour;
pub use netns::Netns;
use scratch::Scratch;
use topology::Internet;
use tor::TorNetwork;
use web::{Request, Web};

/// Names that lead to the web host from the start; `site` adds others.
pub const SITES: [&str; 5] = [
    "www.onioncell-lab.net",
    "other-site.org",
    "leak-target.net",
    "site.example",
    "www.site.example",
];

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Without it there are only sites, DNS, the neighbour and captures: up in a fraction of a second.
    pub tor: bool,
    pub onion: bool,
    /// How long it may take to come up.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tor: true,
            onion: true,
            timeout: Duration::from_secs(60),
        }
    }
}

/// A lab that is up; it goes down when dropped. Fields are dropped in this order.
pub struct Lab {
    client: Mutex<Option<Daemon>>,
    tor: Mutex<Option<TorNetwork>>,
    keeper: Keeper,
    web: Web,
    onion_web: Web,
    dns: Dns,
    neighbour: Neighbour,
    capture: Capture,
    internet: Internet,
    authority: Arc<tls::Authority>,
    onion: Option<String>,
    network_toml: PathBuf,
    ca_pem: PathBuf,
    scratch: Scratch,
    timeout: Duration,
    took: Duration,
}

/// Whether the lab can be used here. If not it says so, and where CI=true it panics: there nothing may be left out.
pub fn required() -> bool {
    let missing = if !nix::unistd::geteuid().is_root() {
        "the lab needs root, to make network namespaces"
    } else if !["tor", "tor-gencert", "ip"].into_iter().all(installed) {
        "the lab needs tor, tor-gencert and ip (Debian: apt install tor iproute2)"
    } else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{missing}"
    );
    eprintln!("SKIPPED: {missing}");
    false
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

impl Lab {
    /// Brings a lab up, or panics.
    pub fn start(options: Options) -> Self {
        match Self::try_start(options) {
            Ok(lab) => lab,
            Err(error) => panic!("the lab did not come up: {error:#}"),
        }
    }

    pub fn try_start(options: Options) -> Result<Self> {
        let begin = Instant::now();
        let deadline = begin + options.timeout;
        let say = |what: &str| eprintln!("lab: {:5.1} s  {what}", begin.elapsed().as_secs_f32());

        // 1. Namespaces and links, captured before they are up.
        let scratch = Scratch::new()?;
        let resolv_conf =
            scratch.write("resolv.conf", &format!("nameserver {}\n", topology::DNS))?;
        let mut internet = Internet::new()?;
        internet.connect()?;
        let links = [
            (internet.host("home"), "eth0", "home/eth0"),
            (internet.host("home"), "eth1", "home/eth1"),
            (internet.host("neighbour"), "eth0", "neighbour/eth0"),
        ];
        let capture = Capture::start(&links, tor::relay_addresses())?;
        internet.bring_up()?;
        internet.set_home_resolver(&resolv_conf)?;

        // 2. Servers.
        let web_addresses: Vec<IpAddr> = topology::WEB
            .into_iter()
            .map(IpAddr::from)
            .chain([topology::WEB6.into()])
            .collect();
        let authority = Arc::new(tls::Authority::new(&web_addresses)?);
        let ca_pem = scratch.write("ca.pem", &authority.pem())?;
        let web = Web::start(
            internet.host("web"),
            &web_addresses,
            Some(authority.server_config()?),
        )?;
        let onion_web = Web::start(internet.host("onion"), &[Ipv4Addr::LOCALHOST.into()], None)?;
        let dns = Dns::start(internet.host("dns"), topology::DNS.into())?;
        for name in SITES {
            dns.set(name, &[topology::WEB[0].into(), topology::WEB6.into()]);
        }
        let neighbour = Neighbour::start(internet.host("neighbour"))?;
        say("network, DNS and web sites are up");

        let mut lab = Self {
            client: Mutex::new(None),
            tor: Mutex::new(None),
            keeper: Keeper::new(),
            web,
            onion_web,
            dns,
            neighbour,
            capture,
            internet,
            authority,
            onion: None,
            network_toml: scratch.path().join("tor-network.toml"),
            ca_pem,
            scratch,
            timeout: options.timeout,
            took: Duration::ZERO,
        };

        // 3. Tor.
        if options.tor {
            lab.start_tor(options.onion, deadline, &say)?;
        }
        lab.took = begin.elapsed();
        Ok(lab)
    }

    fn start_tor(&mut self, onion: bool, deadline: Instant, say: &dyn Fn(&str)) -> Result<()> {
        let mut tor = TorNetwork::start(&self.internet, &self.keeper, &self.scratch, deadline)?;
        say("tor: the authority has every relay's descriptor");
        let mut control = None;
        if onion {
            tor.start_onion(&self.internet, &self.keeper, &self.scratch)?;
            control = Some(tor.onion_control(deadline)?);
        }
        std::fs::write(&self.network_toml, network_toml(&tor)?)?;
        tor.vote(&self.internet, deadline)?;
        say("tor: consensus");
        if let Some(control) = &mut control {
            self.onion = Some(tor.onion_ready(control, deadline)?);
            say("tor: the onion service is reachable");
        }
        self.tor = Mutex::new(Some(tor));
        Ok(())
    }

    /// How long it took to come up.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Where onioncell runs.
    pub fn home(&self) -> &Netns {
        self.internet.host("home")
    }

    /// Any host: home, web, dns, onion, authority, relay1, relay2, exit1, exit2, neighbour, backbone.
    pub fn host(&self, name: &str) -> &Netns {
        self.internet.host(name)
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Netns> {
        self.internet.namespaces()
    }

    /// For `onioncell --tor-network FILE`.
    pub fn tor_network_toml(&self) -> &Path {
        &self.network_toml
    }

    pub fn web(&self) -> &Web {
        &self.web
    }

    pub fn dns(&self) -> &Dns {
        &self.dns
    }

    pub fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// The site of that name; it resolves from now on.
    pub fn site(&self, name: &str) -> Site<'_> {
        if !self.dns.knows(name) {
            self.dns
                .set(name, &[topology::WEB[0].into(), topology::WEB6.into()]);
        }
        Site {
            name: name.to_owned(),
            web: &self.web,
        }
    }

    /// The onion service's address, "….onion".
    pub fn onion(&self) -> &str {
        self.onion
            .as_deref()
            .expect("this lab has no onion service")
    }

    /// The web server behind the onion service.
    pub fn onion_web(&self) -> &Web {
        &self.onion_web
    }

    /// The certificate of the authority that signed the sites' certificates.
    pub fn ca_pem(&self) -> &Path {
        &self.ca_pem
    }

    /// The same for Chromium's CACertificates policy.
    pub fn ca_der_base64(&self) -> String {
        self.authority.der_base64()
    }

    /// The same for Chromium's --ignore-certificate-errors-spki-list.
    pub fn ca_spki_hash(&self) -> String {
        self.authority.spki_hash()
    }

    /// Starts Debian's tor as a client in home, once; gives the address of its SOCKS port there.
    pub fn tor_client(&self) -> SocketAddr {
        let mut client = lock(&self.client);
        if client.is_none() {
            let tor = lock(&self.tor);
            let tor = tor.as_ref().expect("this lab has no Tor network");
            let deadline = Instant::now() + self.timeout;
            match tor.start_client(&self.internet, &self.keeper, deadline) {
                Ok(daemon) => *client = Some(daemon),
                Err(error) => panic!("{error:#}"),
            }
        }
        (Ipv4Addr::LOCALHOST, 9050).into()
    }

    /// Kills every relay, the authority and the onion service. There is no way back.
    pub fn stop_tor_network(&self) {
        lock(&self.tor).take();
    }

    /// Pulls the plug of a host.
    pub fn cut(&self, host: &str) {
        self.internet.cut(host).expect("cannot cut");
    }

    /// Puts it back.
    pub fn mend(&self, host: &str) {
        self.internet.mend(host).expect("cannot mend");
    }

    /// The processes of the lab.
    pub fn pids(&self) -> Vec<u32> {
        let mut pids = lock(&self.tor)
            .as_ref()
            .map(TorNetwork::pids)
            .unwrap_or_default();
        pids.extend(lock(&self.client).as_ref().map(Daemon::pid));
        pids
    }

    /// The lab's directory: every daemon's configuration and log is in it.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }
}

/// A web site by its name.
pub struct Site<'a> {
    name: String,
    web: &'a Web,
}

impl Site<'_> {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.name)
    }

    pub fn https_url(&self, path: &str) -> String {
        format!("https://{}{path}", self.name)
    }

    pub fn hits(&self) -> Vec<Request> {
        self.web
            .hits()
            .into_iter()
            .filter(|hit| hit.host == self.name)
            .collect()
    }
}

/// What Arti has to know about this network, as its configuration has it.
fn network_toml(tor: &TorNetwork) -> Result<String> {
    let mut caches = String::new();
    for relay in tor
        .directory_caches()
        .context("a relay has no identity yet")?
    {
        caches.push_str(&format!(
            "\n[[tor_network.fallback_caches]]\nrsa_identity = \"{}\"\ned_identity = \"{}\"\norports = [\"{}\"]\n",
            relay.rsa, relay.ed25519, relay.address
        ));
    }
    Ok(format!(
        "# A private Tor network, for arti-client 0.47 and `onioncell --tor-network`.\n\
         [tor_network.authorities]\nv3idents = [\"{}\"]\n{caches}\n\
         [override_net_params]\nhsdir_interval = {}\n",
        tor.v3ident,
        torrc::HSDIR_INTERVAL_MINUTES
    ))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
