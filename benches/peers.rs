//! `make bench`: what onioncell costs, as ratios against peers measured in the same run.
//!
//! Rounds alternate between the two sides, so that a busy machine slows both; medians are compared.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "../tests/lab/mod.rs"]
mod lab;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use lab::{Lab, Options, topology};
use onioncell::browser::cdp::Connection;
use onioncell::browser::switches::{self, Setup};
use onioncell::browser::{Session, version};
use onioncell::cell;
use onioncell::config::{Config, EgressChoice, ProfileChoice};
use onioncell::gateway::egress::{Stream, Tor, TorConfig};
use onioncell::gateway::{Egress, EgressError, Gateway, IsolationKey, Ledger, Limits};
use onioncell::policy::{Overrides, Policy, Target};
use onioncell::protocol::op::{Navigate, Op, WaitUntil};
use onioncell::run::Instance;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_socks::tcp::Socks5Stream;

const CHROMIUM: &str = "/usr/lib/chromium/chromium";
const LAUNCHES: usize = 11;
const DOWNLOADS: usize = 3;
const DOWNLOAD: usize = 100_000_000;

fn main() {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == cell::INIT_COMMAND)
    {
        cell::init();
    }
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    println!(
        "{:<46} {:>12} {:>12} {:>7}  goal",
        "", "onioncell", "peer", "ratio"
    );
    at_home(&lab, async || {
        launch_to_first_page().await;
        gateway_alone().await;
        download_over_tor(&lab).await;
    });
    memory(&lab);
}

fn at_home(lab: &Lab, work: impl AsyncFnOnce() + Send) {
    lab.home().enter(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(work());
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn row(name: &str, ours: Duration, theirs: Duration, goal: &str) {
    // Throughput goals are stated as ours over theirs, times as theirs to be stayed below.
    let faster_is_more = goal.starts_with('≥');
    let (a, b) = (ours.as_secs_f64(), theirs.as_secs_f64());
    let ratio = if faster_is_more { b / a } else { a / b };
    let shown = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    println!(
        "{name:<46} {:>12} {:>12} {ratio:>7.2}  {goal}",
        shown(ours),
        shown(theirs)
    );
}

/// The page is asked for by address: the peer must not pay for a resolver that we do not use.
fn page() -> String {
    format!("http://{}/", topology::WEB[0])
}

async fn launch_to_first_page() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=LAUNCHES {
        let (cell, plain) = (in_a_cell().await, without_a_cell().await);
        // The first round fills the page cache.
        if round > 0 {
            ours.push(cell);
            theirs.push(plain);
        }
    }
    let name = "start to first page: cell / plain Chromium";
    row(name, median(ours), median(theirs), "≤ 1.2");
}

async fn in_a_cell() -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let allow = Overrides {
        allow: vec![topology::WEB[0].to_string()],
        ..Overrides::default()
    };
    let config = Config {
        policy: Policy::load(None, &allow).unwrap(),
        egress: EgressChoice::Direct,
        isolation: cell::Requested::Namespace,
        chromium_sandbox: true,
        chromium: Some(CHROMIUM.into()),
        display: None,
        trusted: Vec::new(),
        workspace: directory.path().to_owned(),
        profile: ProfileChoice::At(directory.path().join("profile")),
        ledger: None,
        cache: std::env::temp_dir().join("onioncell-bench"),
    };
    let began = Instant::now();
    let mut instance = Instance::start(config, |_| {}).await.unwrap();
    instance.execute(&Op::Navigate(first_page())).await.unwrap();
    let took = began.elapsed();
    instance.stop().await;
    took
}

fn first_page() -> Navigate {
    Navigate {
        url: page(),
        wait_until: WaitUntil::Load,
        timeout_ms: None,
    }
}

/// The same Chromium and switches, its own sandbox on, as the same user; no cell and no proxy.
async fn without_a_cell() -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let ids = cell::CELL_IDS;
    std::os::unix::fs::chown(directory.path(), Some(ids.uid), Some(ids.gid)).unwrap();
    let arguments = switches::arguments(Setup {
        gateway_port: 1080,
        major_version: version::major("156"),
        headed: false,
    });
    let is_proxy = |switch: &String| switch.contains("proxy") || switch.contains("resolver");
    let began = Instant::now();
    let (their_read, write) = std::io::pipe().unwrap();
    let (read, their_write) = std::io::pipe().unwrap();
    let mut command = Command::new(CHROMIUM);
    command
        .args(arguments.into_iter().filter(|switch| !is_proxy(switch)))
        .arg(format!("--user-data-dir={}", directory.path().display()))
        .env_clear()
        .env("HOME", directory.path())
        .uid(ids.uid)
        .gid(ids.gid)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (three, four) = (OwnedFd::from(their_read), OwnedFd::from(their_write));
    let place = move || {
        use std::os::fd::AsRawFd as _;
        // SAFETY: dup2(2) is safe between fork and exec; both sources are open and above 4.
        let placed = unsafe {
            libc::dup2(three.as_raw_fd(), 3) == 3 && libc::dup2(four.as_raw_fd(), 4) == 4
        };
        placed
            .then_some(())
            .ok_or_else(std::io::Error::last_os_error)
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(place) };
    let mut child = command.spawn().unwrap();
    drop(command);
    let connection = Connection::open(read.into(), write.into()).unwrap();
    let session = Session::open(&connection).await.unwrap();
    session.navigate(&first_page()).await.unwrap();
    let took = began.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    took
}

/// An egress that dials one address: what is left is the gateway.
#[derive(Debug)]
struct Loopback(SocketAddr);

impl Egress for Loopback {
    fn connect<'a>(
        &'a self,
        _: &'a Target,
        _: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        async { Ok(Box::new(TcpStream::connect(self.0).await.unwrap()) as Stream) }.boxed()
    }
}

async fn serve_gateway(egress: Arc<dyn Egress>) -> SocketAddr {
    let public = Overrides {
        allow_public_web: true,
        ..Overrides::default()
    };
    let policy = Arc::new(Policy::load(None, &public).unwrap());
    let ledger = Arc::new(Ledger::in_memory());
    let gateway = Gateway::new(policy, egress, ledger, Limits::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { gateway.serve(listener, std::future::pending()).await });
    address
}

async fn gateway_alone() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            tokio::spawn(async move {
                let chunk = vec![7; 250_000];
                for _ in 0..DOWNLOAD / chunk.len() {
                    stream.write_all(&chunk).await.unwrap();
                }
            });
        }
    });
    // A relay that does nothing else: what any proxy costs.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_address = plain.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = plain.accept().await.unwrap();
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(address).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut upstream).await
            });
        }
    });
    let gateway = serve_gateway(Arc::new(Loopback(address))).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        let through = Socks5Stream::connect(gateway, ("site.example", 80)).await;
        ours.push(drain(through.unwrap().into_inner()).await);
        theirs.push(drain(TcpStream::connect(plain_address).await.unwrap()).await);
    }
    row(
        "100 MB: gateway / plain TCP relay",
        median(ours),
        median(theirs),
        "≥ 0.8",
    );
}

async fn drain(mut stream: TcpStream) -> Duration {
    let (began, mut total, mut buffer) = (Instant::now(), 0, vec![0; 256 * 1024]);
    while total < DOWNLOAD {
        match stream.read(&mut buffer).await.unwrap() {
            0 => panic!("{total} bytes only"),
            read => total += read,
        }
    }
    began.elapsed()
}

async fn download_over_tor(lab: &Lab) {
    let state = tempfile::tempdir().unwrap();
    let config = TorConfig {
        network: Some(lab.tor_network_toml().to_owned()),
        ..TorConfig::beneath(state.path())
    };
    let tor = Tor::start(config, |_| {}).await.unwrap();
    let ours = serve_gateway(Arc::new(tor)).await;
    let theirs = lab.tor_client();
    let (mut gateway, mut c_tor) = (Vec::new(), Vec::new());
    for _ in 0..DOWNLOADS {
        gateway.push(download(ours).await);
        c_tor.push(download(theirs).await);
    }
    let name = "100 MB over Tor: gateway + Arti / C tor";
    row(name, median(gateway), median(c_tor), "≥ 0.9");
}

async fn download(socks: SocketAddr) -> Duration {
    let host = lab::SITES[0];
    let mut stream = Socks5Stream::connect(socks, (host, 80))
        .await
        .unwrap()
        .into_inner();
    let request = format!("GET /bytes/{DOWNLOAD} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    drain(stream).await
}

/// What the launcher needs with Tor bootstrapped and a page loading.
fn memory(lab: &Lab) {
    let directory = tempfile::tempdir().unwrap();
    let site = lab.site("memory.site.example");
    let mut onioncell = lab
        .home()
        .command(env!("CARGO_BIN_EXE_onioncell"))
        .args(["--allow", "memory.site.example", "--tor-network"])
        .arg(lab.tor_network_toml())
        .arg("--tor-state")
        .arg(directory.path().join("tor"))
        .arg("--workspace")
        .arg(directory.path())
        .args(["navigate", &site.url("/endless")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let asked = lab.web().wait_for(Duration::from_secs(60), |hit| {
        hit.host == "memory.site.example"
    });
    assert!(asked.is_some_and(|hit| matches!(hit.peer.ip(), IpAddr::V4(_) | IpAddr::V6(_))));
    let megabytes = resident(onioncell.id()) / 1024;
    onioncell.kill().unwrap();
    onioncell.wait().unwrap();
    println!(
        "{:<46} {:>9} MB {:>12} {:>7}  ≤ 60 MB",
        "launcher's memory, Tor bootstrapped", megabytes, "", ""
    );
}

/// VmRSS in kilobytes (proc_pid_status(5)).
fn resident(pid: u32) -> u64 {
    let status =
        fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
