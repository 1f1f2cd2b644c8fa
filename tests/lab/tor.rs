//! A Tor network of Debian's tor: one authority, four relays of which two are exits, one onion service.
//!
//! What makes it quick: the authority takes its vote when it has everybody's descriptor (and not at some hour), and the
//! others are told to look for the consensus when there is one.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::control::Control;
use super::daemon::{Daemon, Keeper};
use super::scratch::Scratch;
use super::topology::{AUTHORITY, Internet, RELAYS};
use super::torrc::{self, DIR_PORT, DIST_SECONDS, OR_PORT, VOTE_SECONDS, VOTING_INTERVAL};

/// An onion service uploads the descriptors of two periods, here to every relay each.
const ONION_UPLOADS: usize = 2 * (1 + RELAYS.len());

/// The addresses that are Tor: whatever else home sends is outside.
pub fn relay_addresses() -> HashSet<SocketAddr> {
    let relays = RELAYS
        .iter()
        .map(|(_, address)| SocketAddr::from((*address, OR_PORT)));
    let authority = [OR_PORT, DIR_PORT].map(|port| SocketAddr::from((AUTHORITY, port)));
    relays.chain(authority).collect()
}

#[derive(Debug)]
pub struct TorNetwork {
    /// The fingerprint of the authority's signing identity.
    pub v3ident: String,
    dir_authority: String,
    scratch: PathBuf,
    authority: Daemon,
    relays: Vec<Daemon>,
    onion: Option<(Daemon, PathBuf)>,
}

/// A relay as a client has to know it before it has a consensus.
#[derive(Debug)]
pub struct Relay {
    pub address: SocketAddr,
    pub rsa: String,
    pub ed25519: String,
}

impl TorNetwork {
    /// Comes back with every daemon started, and every relay's descriptor in the authority's hands.
    pub fn start(
        net: &Internet,
        keeper: &Keeper,
        scratch: &Scratch,
        deadline: Instant,
    ) -> Result<Self> {
        // 1. The authority's keys, which everybody has to know.
        let (v3ident, fingerprint) = authority_keys(scratch)?;
        let dir_authority = format!(
            "DirAuthority authority orport={OR_PORT} v3ident={v3ident} {AUTHORITY}:{DIR_PORT} {fingerprint}\n"
        );
        // 2. The daemons; the authority votes only in the far future.
        for name in ["authority"]
            .into_iter()
            .chain(RELAYS.map(|(name, _)| name))
        {
            scratch.private_dir(name)?;
            scratch.write(&format!("{name}/state"), &torrc::past_bandwidth()?)?;
        }
        let launch =
            |name: &str, own: &str| launch(net, keeper, scratch.path(), &dir_authority, name, own);
        let authority = launch(
            "authority",
            &torrc::authority(unix_now() + VOTING_INTERVAL / 2)?,
        )?;
        let mut relays = Vec::new();
        for (name, address) in RELAYS {
            relays.push(launch(name, &torrc::relay(scratch.path(), name, address)?)?);
        }
        let network = Self {
            v3ident,
            dir_authority,
            scratch: scratch.path().to_owned(),
            authority,
            relays,
            onion: None,
        };
        // 3. Everybody's descriptor.
        let wanted = 1 + RELAYS.len();
        poll(net, "/tor/server/all", deadline, |text| {
            lines_with(text, "router ") == wanted
        })
        .context("the relays did not publish their descriptors")?;
        Ok(network)
    }

    /// Has the authority vote now; comes back when there is a consensus, and the relays know that.
    pub fn vote(&self, net: &Internet, deadline: Instant) -> Result<()> {
        let valid_after = unix_now() + 1 + VOTE_SECONDS + DIST_SECONDS;
        let torrc = torrc::complete(
            &self.scratch,
            &self.dir_authority,
            "authority",
            &torrc::authority(valid_after)?,
        );
        fs::write(self.scratch.join("authority/torrc"), torrc)?;
        self.authority.hang_up()?;
        let wanted = 1 + RELAYS.len();
        let path = "/tor/status-vote/current/consensus-microdesc";
        let complete =
            |text: &str| lines_with(text, "r ") == wanted && lines_with(text, "w Bandwidth=0") == 0;
        poll(net, path, deadline, complete).context("no consensus")?;
        // Those who asked before there was one would wait longer each time: a hang-up makes them ask again at once.
        for daemon in self
            .relays
            .iter()
            .chain(self.onion.iter().map(|(daemon, _)| daemon))
        {
            daemon.hang_up()?;
        }
        Ok(())
    }

    /// Starts the onion service: port 80, to port 80 of its own host.
    pub fn start_onion(
        &mut self,
        net: &Internet,
        keeper: &Keeper,
        scratch: &Scratch,
    ) -> Result<()> {
        let dir = scratch.private_dir("onion/service")?;
        let own = format!(
            "SocksPort 0\nControlSocket {}\nHiddenServiceDir {}\nHiddenServicePort 80 127.0.0.1:80\n",
            scratch.path().join("onion/control").display(),
            dir.display()
        );
        let daemon = launch(
            net,
            keeper,
            scratch.path(),
            &self.dir_authority,
            "onion",
            &own,
        )?;
        self.onion = Some((daemon, dir));
        Ok(())
    }

    /// The onion service's address, once its descriptors are where clients look for them.
    pub fn onion_ready(&mut self, control: &mut Control, deadline: Instant) -> Result<String> {
        control
            .wait_for(&["HS_DESC UPLOADED"], ONION_UPLOADS, deadline)
            .context("the onion service is not up")?;
        let Some((_, dir)) = &self.onion else {
            bail!("there is no onion service")
        };
        Ok(fs::read_to_string(dir.join("hostname"))?.trim().to_owned())
    }

    pub fn onion_control(&mut self, deadline: Instant) -> Result<Control> {
        let path = self.scratch.join("onion/control");
        let Some((daemon, _)) = &mut self.onion else {
            bail!("there is no onion service")
        };
        let mut control =
            Control::connect(&path, daemon, deadline).with_context(|| self.output("onion"))?;
        control.send("SETEVENTS HS_DESC")?;
        Ok(control)
    }

    /// A client in home with a SOCKS port on 127.0.0.1:9050; comes back when it is ready.
    pub fn start_client(
        &self,
        net: &Internet,
        keeper: &Keeper,
        deadline: Instant,
    ) -> Result<Daemon> {
        let socket = self.scratch.join("home/control");
        let own = format!(
            "SocksPort 127.0.0.1:9050\nControlSocket {}\n",
            socket.display()
        );
        let mut daemon = launch(
            net,
            keeper,
            &self.scratch,
            &self.dir_authority,
            "home",
            &own,
        )?;
        let mut control = Control::connect(&socket, &mut daemon, deadline)
            .with_context(|| self.output("home"))?;
        control.send("SETEVENTS STATUS_CLIENT")?;
        control.send("GETINFO status/bootstrap-phase")?;
        control
            .wait_for(&["BOOTSTRAP PROGRESS=100"], 1, deadline)
            .context("the tor client did not bootstrap")?;
        Ok(daemon)
    }

    /// The authority and all relays.
    pub fn directory_caches(&self) -> Result<Vec<Relay>> {
        let key = |name: &str, file: &str| -> Result<String> {
            let path = self.scratch.join(name).join(file);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Ok(text.split_whitespace().skip(1).collect())
        };
        let hosts = [("authority", AUTHORITY)].into_iter().chain(RELAYS);
        hosts
            .map(|(name, address)| {
                Ok(Relay {
                    address: (address, OR_PORT).into(),
                    rsa: key(name, "fingerprint")?,
                    ed25519: key(name, "fingerprint-ed25519")?,
                })
            })
            .collect()
    }

    /// What a daemon said last.
    fn output(&self, name: &str) -> String {
        let text = fs::read_to_string(self.scratch.join(name).join("output")).unwrap_or_default();
        let start = text.len().saturating_sub(1000);
        format!("tor in {name}: …{}", text.get(start..).unwrap_or(&text))
    }

    pub fn pids(&self) -> Vec<u32> {
        let onion = self.onion.iter().map(|(daemon, _)| daemon);
        [&self.authority]
            .into_iter()
            .chain(&self.relays)
            .chain(onion)
            .map(Daemon::pid)
            .collect()
    }
}

/// Makes the authority's identities; gives the fingerprints of the one that signs consensuses and of the relay.
fn authority_keys(scratch: &Scratch) -> Result<(String, String)> {
    let dir = scratch.private_dir("authority")?;
    let keys = scratch.private_dir("authority/keys")?;
    let mut gencert = Command::new("tor-gencert")
        .args([
            "--create-identity-key",
            "-m",
            "12",
            "--passphrase-fd",
            "0",
            "-a",
        ])
        .arg(format!("{AUTHORITY}:{DIR_PORT}"))
        .current_dir(&keys)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run tor-gencert")?;
    if let Some(mut passphrase) = gencert.stdin.take() {
        passphrase.write_all(b"\n")?;
    }
    // Meanwhile the relay's; tor wants some authority to be configured even for this.
    let torrc = format!(
        "TestingTorNetwork 1\nDataDirectory {}\nNickname authority\nORPort {OR_PORT}\n\
         DirAuthority nobody orport=1 127.0.0.1:1 {:040}\n",
        dir.display(),
        0
    );
    let torrc = scratch.write("authority/fingerprint.torrc", &torrc)?;
    let listed = Command::new("tor")
        .args([
            "--defaults-torrc",
            "/dev/null",
            "--quiet",
            "--list-fingerprint",
            "-f",
        ])
        .arg(torrc)
        .output()
        .context("cannot run tor")?;
    let gencert = gencert.wait_with_output()?;
    ensure!(
        gencert.status.success(),
        "tor-gencert: {}",
        String::from_utf8_lossy(&gencert.stderr)
    );
    let listed = String::from_utf8_lossy(&listed.stdout);
    let Some((_, fingerprint)) = listed.lines().last().and_then(|line| line.split_once(' ')) else {
        bail!("tor --list-fingerprint printed {listed:?}");
    };
    let certificate = fs::read_to_string(keys.join("authority_certificate"))?;
    let v3ident = certificate
        .lines()
        .find_map(|line| line.strip_prefix("fingerprint "));
    let v3ident = v3ident.context("the authority's certificate has no fingerprint")?;
    Ok((v3ident.to_owned(), fingerprint.replace(' ', "")))
}

fn launch(
    net: &Internet,
    keeper: &Keeper,
    scratch: &Path,
    dir_authority: &str,
    name: &str,
    own: &str,
) -> Result<Daemon> {
    // Closed to others, or tor makes no control socket in it.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(scratch.join(name))?;
    let text = torrc::complete(scratch, dir_authority, name, own);
    let path = scratch.join(name).join("torrc");
    fs::write(&path, text)?;
    let output = fs::File::create(scratch.join(name).join("output"))?;
    let mut command = net.host(name).command("tor");
    command
        .args(["--defaults-torrc", "/dev/null", "-f"])
        .arg(path);
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    keeper.spawn(command)
}

/// Asks the authority for `path` until the answer is `good`.
fn poll(
    net: &Internet,
    path: &str,
    deadline: Instant,
    good: impl Fn(&str) -> bool + Sync,
) -> Result<()> {
    net.host("authority").enter(|| {
        while Instant::now() < deadline {
            if ask(path).is_ok_and(|text| good(&text)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "the authority's answer to {path} was not as awaited: {:?}",
            ask(path)
        )
    })
}

fn ask(path: &str) -> Result<String> {
    let mut socket = TcpStream::connect((AUTHORITY, DIR_PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(socket, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(text)
}

fn lines_with(text: &str, start: &str) -> usize {
    text.lines().filter(|line| line.starts_with(start)).count()
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
