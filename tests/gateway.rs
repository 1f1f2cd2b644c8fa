//! The gateway over real sockets: what it serves, what it refuses, and what it leaves in the ledger.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use onioncell::gateway::egress::{Direct, Socks, Stream, Tor, TorConfig, TorError, UnixGateway};
use onioncell::gateway::{
    Egress, EgressError, EgressErrorKind, Gateway, Isolation, IsolationKey, Judgement, Ledger,
    Limits, Outcome, Row,
};
use onioncell::policy::{Host, Overrides, Policy, Target};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_socks::tcp::Socks5Stream;

const HELLO: &[u8] = &[5, 1, 0];
const SECOND: Duration = Duration::from_secs(1);

/// Every name leads to one server on loopback: a test's internet.
#[derive(Debug)]
struct Loopback {
    server: SocketAddr,
    asked: Mutex<Vec<(String, IsolationKey)>>,
}

impl Loopback {
    fn to(server: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            server,
            asked: Mutex::default(),
        })
    }

    fn keys(&self) -> Vec<IsolationKey> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|(_, key)| key.clone()).collect()
    }
}

impl Egress for Loopback {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        key: &'a IsolationKey,
    ) -> BoxFuture<'a, Result<Stream, EgressError>> {
        async move {
            self.asked
                .lock()
                .unwrap()
                .push((target.to_string(), key.clone()));
            let fail = |error: std::io::Error| {
                EgressError::new(EgressErrorKind::Refused, target, error.to_string())
            };
            let stream = TcpStream::connect(self.server).await.map_err(fail)?;
            stream.set_nodelay(true).map_err(fail)?;
            Ok(Box::new(stream) as Stream)
        }
        .boxed()
    }
}

/// A server that answers what it was sent, and counts who came.
struct Echo {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                    let _ = to.shutdown().await;
                });
            }
        });
        Self {
            address,
            accepted,
            task,
        }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A gateway that is being served.
struct Served {
    gateway: Gateway,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(egress: Arc<dyn Egress>, limits: Limits) -> Self {
        Self::with(egress, limits, Arc::new(Ledger::in_memory())).await
    }

    async fn with(egress: Arc<dyn Egress>, limits: Limits, ledger: Arc<Ledger>) -> Self {
        // As in the cell: one listener for every session's loopback address.
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gateway = Gateway::new(policy(), egress, ledger, limits).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = gateway.clone();
        let task = tokio::spawn(async move {
            serving.serve(listener, stopped.map(|_| ())).await;
        });
        Self {
            gateway,
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            stop: Some(stop),
            task,
        }
    }

    /// Where the session with this number dials.
    fn session(&self, number: u8) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(127, 0, 0, number).into(), self.address.port())
    }

    async fn connect(&self, host: &str) -> tokio_socks::Result<Socks5Stream<TcpStream>> {
        Socks5Stream::connect(self.address, (host, 80)).await
    }

    /// The rows, once there are that many.
    async fn rows(&self, count: usize) -> Vec<Row> {
        within(async {
            loop {
                let rows = self.gateway.ledger().since(0);
                if rows.len() >= count {
                    assert_eq!(rows.len(), count, "{rows:#?}");
                    return rows;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        within(&mut self.task).await.unwrap();
    }
}

fn policy() -> Arc<Policy> {
    let overrides = Overrides {
        allow: vec!["site.example.com".into(), "*.many.example.com".into()],
        ..Overrides::default()
    };
    Arc::new(Policy::load(None, &overrides).unwrap())
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(30 * SECOND, future)
        .await
        .expect("in time")
}

/// Sends raw messages, each after the answer to the one before, and reads until the end.
async fn raw(address: SocketAddr, messages: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        stream.write_all(message).await.unwrap();
        if index + 1 < messages.len() {
            let mut reply = [0; 2];
            stream.read_exact(&mut reply).await.unwrap();
            answer.extend(reply);
        }
    }
    within(stream.read_to_end(&mut answer)).await.unwrap();
    answer
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let bytes = (0..length).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    });
    bytes.collect()
}

/// Runs a test in a network namespace of its own, with an address on its `lo` if asked for.
fn in_own_network(address: Option<&'static str>, test: impl AsyncFnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // Of this thread only (unshare(2)).
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
            return false;
        }
        if let Some(address) = address {
            for line in ["link set lo up", &format!("addr add {address} dev lo")] {
                let mut ip = std::process::Command::new("ip");
                if !ip
                    .args(line.split(' '))
                    .status()
                    .is_ok_and(|status| status.success())
                {
                    return false;
                }
            }
        }
        // One thread, so that every task is in the namespace.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
        true
    });
    if !thread.join().unwrap() {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "no network namespace in CI"
        );
        eprintln!("SKIPPED: cannot make a network namespace here");
    }
}

#[tokio::test]
async fn connect_by_name_reaches_the_upstream_and_leaves_one_row_with_its_bytes() {
    let echo = Echo::start().await;
    let egress = Loopback::to(echo.address);
    let served = Served::start(egress.clone(), Limits::default()).await;
    let mut stream = served.connect("Site.Example.COM.").await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"hello");
    let rows = served.rows(1).await;
    assert_eq!(rows[0].outcome, Outcome::Completed);
    assert_eq!((rows[0].bytes_up, rows[0].bytes_down), (5, 5));
    assert_eq!(
        (rows[0].host.as_str(), rows[0].port),
        ("site.example.com", 80)
    );
    assert_eq!(rows[0].verdict, Judgement::Allow);
    assert!(
        rows[0].rule.contains("site.example.com"),
        "{}",
        rows[0].rule
    );
    assert_eq!(egress.asked.lock().unwrap()[0].0, "site.example.com:80");
}

#[tokio::test]
async fn everything_but_connect_gets_its_exact_refusal_and_reaches_nobody() {
    let echo = Echo::start().await;
    let served = Served::start(Loopback::to(echo.address), Limits::default()).await;
    let refused = |code: u8| vec![5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0];
    let request = |command: u8, kind: u8| {
        [
            &[5, command, 0, kind, 16],
            &b"site.example.com"[..],
            &[0, 80],
        ]
        .concat()
    };
    let protocols: [(&str, &[u8], &[u8]); 3] = [
        (
            "SOCKS4",
            b"\x04\x01\x00\x50\x01\x01\x01\x01\x00",
            &[0, 0x5b, 0, 0, 0, 0, 0, 0],
        ),
        ("GSSAPI", &[5, 1, 1], &[5, 0xff]),
        (
            "HTTP",
            b"GET / HTTP/1.1\r\nHost: site.example.com\r\n\r\n",
            &[],
        ),
    ];
    for (name, message, expected) in protocols {
        assert_eq!(raw(served.address, &[message]).await, expected, "{name}");
    }
    let requests = [
        (2, 3, 7),
        (3, 3, 7),
        (0xf0, 3, 7),
        (0xf1, 3, 7),
        (9, 3, 7),
        (1, 2, 8),
    ];
    for (command, kind, code) in requests {
        let answer = raw(served.address, &[HELLO, &request(command, kind)]).await;
        assert_eq!(
            answer,
            refused(code),
            "command {command}, address type {kind}"
        );
    }
    let rows = served.rows(protocols.len() + requests.len()).await;
    let all_refused = rows
        .iter()
        .all(|row| matches!(row.outcome, Outcome::Refused(_)));
    assert!(all_refused, "{rows:#?}");
    assert_eq!(echo.accepted(), 0);
    // Control: the same server is there for what is served.
    let _stream = served.connect("site.example.com").await.unwrap();
    within(async {
        while echo.accepted() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_denied_host_is_never_dialled_and_the_caller_can_read_why() {
    let echo = Echo::start().await;
    let egress = Loopback::to(echo.address);
    let served = Served::start(egress.clone(), Limits::default()).await;
    let names = [
        "other.example.net",
        "127.0.0.1",
        "::1",
        "0x7f.1",
        "localhost",
        "a..b",
    ];
    for host in names {
        let name = [
            &[5, 1, 0, 3, u8::try_from(host.len()).unwrap()],
            host.as_bytes(),
            &[0, 80],
        ];
        let answer = raw(served.address, &[HELLO, &name.concat()]).await;
        assert_eq!(answer[2..4], [5, 2], "{host}");
    }
    // Addresses in the address types of their own, too.
    let v4 = b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    let v6 = b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50";
    for request in [&v4[..], v6] {
        let answer = raw(served.address, &[HELLO, request]).await;
        assert_eq!(answer[2..4], [5, 2]);
    }
    let rows = served.rows(names.len() + 2).await;
    let all_denied = rows
        .iter()
        .all(|row| matches!(row.outcome, Outcome::Denied(_)));
    assert!(all_denied, "{rows:#?}");
    assert_eq!(egress.keys().len(), 0);
    assert_eq!(echo.accepted(), 0);
    let ledger = served.gateway.ledger();
    let row = ledger.explain("127.0.0.1", rows[0].session, 0).unwrap();
    assert_eq!(
        row.explanation().unwrap(),
        "policy denied: loopback IP blocked"
    );
    // Control: what is allowed is dialled.
    let _stream = served.connect("site.example.com").await.unwrap();
    assert_eq!(egress.keys().len(), 1);
}

#[tokio::test]
async fn half_close_in_either_direction_delivers_every_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let egress = Loopback::to(listener.local_addr().unwrap());
    let served = Served::start(egress, Limits::default()).await;
    let (request, response) = (noise(3_000_000), noise(5_000_001));
    for server_first in [false, true] {
        let client = async {
            let mut stream = served.connect("site.example.com").await.unwrap();
            let mut got = Vec::new();
            if server_first {
                stream.read_to_end(&mut got).await.unwrap();
            }
            stream.write_all(&request).await.unwrap();
            stream.shutdown().await.unwrap();
            if !server_first {
                stream.read_to_end(&mut got).await.unwrap();
            }
            got
        };
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = Vec::new();
            if !server_first {
                stream.read_to_end(&mut got).await.unwrap();
            }
            stream.write_all(&response).await.unwrap();
            stream.shutdown().await.unwrap();
            if server_first {
                stream.read_to_end(&mut got).await.unwrap();
            }
            got
        };
        let (at_client, at_server) = within(async { tokio::join!(client, server) }).await;
        assert!(at_client == response, "server first: {server_first}");
        assert!(at_server == request, "server first: {server_first}");
    }
    for row in served.rows(2).await {
        assert_eq!(row.outcome, Outcome::Completed);
        assert_eq!((row.bytes_up, row.bytes_down), (3_000_000, 5_000_001));
    }
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_the_client_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let egress = Loopback::to(listener.local_addr().unwrap());
    let served = Served::start(egress, Limits::default()).await;
    let mut stream = served.connect("site.example.com").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let chunk = noise(64 * 1024);
    let mut sent = 0_usize;
    // Until nothing moves for half a second.
    while let Ok(written) = tokio::time::timeout(SECOND / 2, stream.write(&chunk)).await {
        sent += written.unwrap();
        // Four kernel buffers (tcp_wmem, tcp_rmem) and one of ours.
        assert!(
            sent < 64 << 20,
            "{sent} bytes were taken in, and nobody reads them"
        );
    }
    // Control: it goes on when the server reads.
    let drain = tokio::spawn(async move {
        let (mut total, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            match server.read(&mut buffer).await.unwrap() {
                0 => return total,
                read => total += read,
            }
        }
    });
    within(stream.write_all(&chunk)).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(within(drain).await.unwrap(), sent + chunk.len());
}

#[tokio::test]
async fn when_the_upstream_is_gone_connections_fail_and_nothing_takes_its_place() {
    let echo = Echo::start().await;
    let served = Served::start(Loopback::to(echo.address), Limits::default()).await;
    // Control: it works before.
    drop(served.connect("site.example.com").await.unwrap());
    echo.task.abort();
    let _ = echo.task.await;
    let error = served.connect("site.example.com").await.unwrap_err();
    assert!(
        matches!(error, tokio_socks::Error::ConnectionRefused),
        "{error}"
    );
    let rows = served.rows(2).await;
    let failed = |row: &Row| match &row.outcome {
        Outcome::Failed { kind, .. } => *kind == EgressErrorKind::Refused,
        _ => false,
    };
    assert!(rows.iter().any(failed), "{rows:#?}");
}

#[tokio::test]
async fn a_client_that_dawdles_in_the_handshake_is_cut_off() {
    let limits = Limits {
        handshake: SECOND / 2,
        ..Limits::default()
    };
    let echo = Echo::start().await;
    let served = Served::start(Loopback::to(echo.address), limits).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // A byte now and then does not win time.
    let bytes = [5, 1, 0, 5, 1, 0, 3, 200].into_iter().chain([b'a'; 200]);
    let began = Instant::now();
    for byte in bytes {
        if stream.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(SECOND / 10).await;
    }
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    let rows = served.rows(1).await;
    assert_eq!(
        rows[0].outcome,
        Outcome::Unanswered("handshake timed out".into())
    );
    // Control: who does not dawdle is served.
    let _stream = served.connect("site.example.com").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_at_once_are_all_answered() {
    let echo = Echo::start().await;
    let served = Arc::new(Served::start(Loopback::to(echo.address), Limits::default()).await);
    let clients = (0..1000).map(|number| {
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let host = format!("h{number}.many.example.com");
            let mut stream = served.connect(&host).await.unwrap();
            stream.write_all(host.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, host);
        })
    });
    for client in clients.collect::<Vec<_>>() {
        within(client).await.unwrap();
    }
    let rows = served.rows(1000).await;
    let hosts: HashSet<_> = rows.iter().map(|row| &row.host).collect();
    assert_eq!(hosts.len(), 1000);
    for row in &rows {
        let bytes = row.host.len() as u64;
        assert_eq!(row.outcome, Outcome::Completed);
        assert_eq!((row.bytes_up, row.bytes_down), (bytes, bytes));
    }
}

#[tokio::test]
async fn shutdown_ends_relays_and_handshakes_and_each_has_its_row() {
    let echo = Echo::start().await;
    let served = Served::start(Loopback::to(echo.address), Limits::default()).await;
    let mut relayed = served.connect("site.example.com").await.unwrap();
    relayed.write_all(b"x").await.unwrap();
    relayed.read_exact(&mut [0]).await.unwrap();
    let mut waiting = TcpStream::connect(served.address).await.unwrap();
    waiting.write_all(HELLO).await.unwrap();
    waiting.read_exact(&mut [0; 2]).await.unwrap();
    let (address, ledger) = (served.address, Arc::clone(served.gateway.ledger()));
    served.stop().await;
    assert_eq!(within(relayed.read(&mut [0])).await.unwrap_or(0), 0);
    assert_eq!(within(waiting.read(&mut [0])).await.unwrap_or(0), 0);
    let rows = ledger.since(0);
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter().all(|row| row.outcome == Outcome::Shutdown),
        "{rows:#?}"
    );
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn two_session_addresses_are_two_keys_and_renewing_one_makes_a_third() {
    let echo = Echo::start().await;
    let egress = Loopback::to(echo.address);
    let served = Served::start(egress.clone(), Limits::default()).await;
    let connect = async |number| {
        let target = ("site.example.com", 80);
        drop(
            Socks5Stream::connect(served.session(number), target)
                .await
                .unwrap(),
        );
    };
    for number in [2, 3, 2] {
        connect(number).await;
    }
    let keys = egress.keys();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[0], keys[2]);
    served.gateway.isolation().renew(keys[0].session());
    connect(2).await;
    connect(3).await;
    let keys = egress.keys();
    assert_ne!(keys[3], keys[0]);
    assert_eq!(keys[4], keys[1]);
    let rows = served.rows(5).await;
    let sessions: HashSet<_> = rows.iter().map(|row| row.session.to_string()).collect();
    assert_eq!(sessions, HashSet::from(["s2".to_owned(), "s3".to_owned()]));
}

#[tokio::test]
async fn a_socks_upstream_hears_names_and_credentials_of_each_session() {
    // An upstream that writes down what it is sent, and then refuses.
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("socks5h://{}", upstream.local_addr().unwrap());
    let egress = Arc::new(Socks::parse(&place).await.unwrap());
    let served = Served::start(egress, Limits::default()).await;
    let mut heard = Vec::new();
    for number in [2, 3, 2] {
        let session = served.session(number);
        let client = tokio::spawn(Socks5Stream::connect(session, ("site.example.com", 443)));
        let (mut stream, _) = within(upstream.accept()).await.unwrap();
        let mut greeting = [0; 2];
        stream.read_exact(&mut greeting).await.unwrap();
        let mut methods = vec![0; usize::from(greeting[1])];
        stream.read_exact(&mut methods).await.unwrap();
        assert!(methods.contains(&2));
        stream.write_all(&[5, 2]).await.unwrap();
        let mut credentials = vec![0; 512];
        let read = stream.read(&mut credentials).await.unwrap();
        credentials.truncate(read);
        stream.write_all(&[1, 0]).await.unwrap();
        let mut request = vec![0; 512];
        let read = stream.read(&mut request).await.unwrap();
        assert_eq!(
            request[..read],
            *b"\x05\x01\x00\x03\x10site.example.com\x01\xbb"
        );
        stream
            .write_all(&[5, 4, 0, 1, 0, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        heard.push(credentials);
        let error = within(client).await.unwrap().unwrap_err();
        assert!(
            matches!(error, tokio_socks::Error::HostUnreachable),
            "{error}"
        );
    }
    assert_ne!(heard[0], heard[1]);
    assert_eq!(heard[0], heard[2]);
    drop(upstream);
    let error = served.connect("site.example.com").await.unwrap_err();
    assert!(
        matches!(error, tokio_socks::Error::NetworkUnreachable),
        "{error}"
    );
}

#[tokio::test]
async fn a_gateway_behind_a_unix_socket_carries_isolates_and_denies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway");
    let echo = Echo::start().await;
    let far_egress = Loopback::to(echo.address);
    // The far side allows less than the near one.
    let overrides = Overrides {
        allow: vec!["site.example.com".into()],
        ..Overrides::default()
    };
    let far_policy = Arc::new(Policy::load(None, &overrides).unwrap());
    let ledger = Arc::new(Ledger::in_memory());
    let (egress, rows) = (far_egress.clone(), Arc::clone(&ledger));
    let far = Gateway::new(far_policy, egress, rows, Limits::default()).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = UnixListener::bind(&path).unwrap();
    let far = tokio::spawn(async move { far.serve(listener, stopped.map(|_| ())).await });

    let near = Served::start(Arc::new(UnixGateway::new(&path)), Limits::default()).await;
    for number in [2, 3, 2] {
        let target = ("site.example.com", 80);
        let mut stream = Socks5Stream::connect(near.session(number), target)
            .await
            .unwrap();
        stream.write_all(b"through").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer, b"through");
    }
    let keys = far_egress.keys();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[0], keys[2]);
    let error = near.connect("a.many.example.com").await.unwrap_err();
    let denied = matches!(error, tokio_socks::Error::ConnectionNotAllowedByRuleset);
    assert!(denied, "{error}");
    assert_eq!(far_egress.keys().len(), 3);
    let rows = near.rows(4).await;
    assert!(matches!(&rows[3].outcome, Outcome::Denied(_)), "{rows:#?}");

    // Without a token nobody is served.
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, [5, 0xff]);
    drop(stream);
    stop.send(()).unwrap();
    within(far).await.unwrap();
    assert_eq!(ledger.since(0).len(), 5);
    let error = near.connect("site.example.com").await.unwrap_err();
    assert!(
        matches!(error, tokio_socks::Error::NetworkUnreachable),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_takes_its_dial_along() {
    #[derive(Debug)]
    struct Never(AtomicUsize);
    impl Egress for Never {
        fn connect<'a>(
            &'a self,
            _: &'a Target,
            _: &'a IsolationKey,
        ) -> BoxFuture<'a, Result<Stream, EgressError>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending().boxed()
        }
    }
    let egress = Arc::new(Never(AtomicUsize::new(0)));
    let served = Served::start(egress.clone(), Limits::default()).await;
    let client = tokio::spawn(Socks5Stream::connect(
        served.address,
        ("site.example.com", 80),
    ));
    within(async {
        while egress.0.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Control: while it waits, there is no row.
    assert_eq!(served.gateway.ledger().since(0).len(), 0);
    client.abort();
    let rows = served.rows(1).await;
    assert_eq!(
        rows[0].outcome,
        Outcome::Unanswered("the client left".into())
    );
}

#[test]
fn direct_dials_public_addresses_only_and_no_onion() {
    in_own_network(Some("11.22.33.44/32"), async || {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let overrides = Overrides {
            allow_public_web: true,
            deny: vec!["99.99.99.99".into()],
            ..Overrides::default()
        };
        let direct = Direct::dangerously(Arc::new(Policy::load(None, &overrides).unwrap()));
        let isolation = Isolation::new().unwrap();
        let key = isolation.key_for("127.0.0.2:1".parse().unwrap()).unwrap();
        let dial = async |host: &str| {
            let host = match host.parse::<IpAddr>() {
                Ok(address) => Host::Address(address),
                Err(_) => Host::Name(host.into()),
            };
            let target = Target { host, port };
            let result = direct.connect(&target, &key).await;
            result.map(drop).map_err(|error| error.kind())
        };
        // Control: the listener is there.
        assert_eq!(dial("11.22.33.44").await, Ok(()));
        within(listener.accept()).await.unwrap();
        // The gateway would have denied these by name; the screening stands alone.
        for host in ["127.0.0.1", "localhost", "::1", "99.99.99.99"] {
            assert_eq!(dial(host).await, Err(EgressErrorKind::Denied), "{host}");
        }
        let onion = format!("{}.onion", "a".repeat(56));
        assert_eq!(dial(&onion).await, Err(EgressErrorKind::Unreachable));
        assert_eq!(dial("no.such.example.com").await, Err(EgressErrorKind::Dns));
        let nobody = tokio::time::timeout(SECOND / 5, listener.accept()).await;
        assert!(nobody.is_err());
    });
}

#[test]
fn without_a_network_tor_says_so_within_its_bound() {
    in_own_network(None, async || {
        let folder = tempfile::tempdir().unwrap();
        let mut config = TorConfig::beneath(&folder.path().join("tor"));
        config.bootstrap_timeout = 4 * SECOND;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let began = Instant::now();
        let progress = move |status| listener.lock().unwrap().push(status);
        let error = Tor::start(config, progress).await.unwrap_err();
        assert!(began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());
        assert!(matches!(error, TorError::NotReady { .. }), "{error}");
        let text = error.to_string();
        println!("{text}; {}", error.hint().unwrap());
        assert!(
            text.contains("not ready after 4 s") && text.contains('%'),
            "{text}"
        );
        assert!(error.hint().is_some());
        let heard = heard.lock().unwrap();
        assert!(
            !heard.is_empty() && heard.iter().all(|status| !status.ready),
            "{heard:?}"
        );
    });
}

#[tokio::test]
async fn a_tor_state_that_is_open_to_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&state, 0o777);
    let mut config = TorConfig::beneath(folder.path());
    // A network that is not there, so that the control below asks nobody.
    let network = folder.path().join("network.toml");
    std::fs::write(&network, "[tor_network]\nfallback_caches = []\n").unwrap();
    config.network = Some(network);
    let error = Tor::launch(config.clone(), |_| {}).unwrap_err();
    assert!(
        matches!(error, TorError::Mode { mode: 0o777, .. }),
        "{error}"
    );
    assert_eq!(
        error.hint().unwrap(),
        format!("chmod 700 {}", state.display())
    );
    // Control: what the hint says helps.
    set_mode(&state, 0o700);
    drop(Tor::launch(config, |_| {}).unwrap());
}

/// 100 MB from a server through the gateway, against the same without it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: cargo test --release --test gateway -- --ignored --nocapture"]
async fn throughput_of_the_gateway_against_a_plain_copy() {
    const BYTES: usize = 100_000_000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let chunk = vec![7; 256 * 1024];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut left = BYTES;
            while left > 0 {
                let now = left.min(chunk.len());
                stream.write_all(&chunk[..now]).await.unwrap();
                left -= now;
            }
        }
    });
    let served = Served::start(Loopback::to(address), Limits::default()).await;
    // A relay that does nothing else: what any proxy costs.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_address = plain.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = plain.accept().await.unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(address).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    async fn drain(mut stream: TcpStream) -> Duration {
        let (began, mut total) = (Instant::now(), 0);
        let mut buffer = vec![0; 256 * 1024];
        while total < BYTES {
            match stream.read(&mut buffer).await.unwrap() {
                0 => panic!("{total} bytes only"),
                read => total += read,
            }
        }
        began.elapsed()
    }
    let (mut direct, mut copied, mut gated) = (Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..7 {
        direct = direct.min(drain(TcpStream::connect(address).await.unwrap()).await);
        copied = copied.min(drain(TcpStream::connect(plain_address).await.unwrap()).await);
        let stream = served.connect("site.example.com").await.unwrap();
        gated = gated.min(drain(stream.into_inner()).await);
    }
    let ratio = |other: Duration| other.as_secs_f64() / gated.as_secs_f64();
    println!("100 MB: no proxy {direct:?}, plain proxy {copied:?}, gateway {gated:?}");
    println!(
        "gateway/no proxy {:.2}, gateway/plain proxy {:.2}",
        ratio(direct),
        ratio(copied)
    );
}
