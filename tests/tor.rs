//! The embedded Tor client against a real Tor network, that of the lab.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab::{self, Lab, Options, SITES};
use onioncell::gateway::egress::{Stream, Tor, TorConfig};
use onioncell::gateway::{Egress, EgressErrorKind, Isolation, IsolationKey};
use onioncell::policy::{Host, Target};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const SECOND: Duration = Duration::from_secs(1);

/// Runs in the lab's home; a hang fails.
fn at_home(lab: &Lab, test: impl AsyncFnOnce() + Send) {
    lab.home().enter(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(120 * SECOND, test()).await.unwrap() });
    });
}

fn config(lab: &Lab, folder: &Path) -> TorConfig {
    let mut config = TorConfig::beneath(folder);
    config.network = Some(lab.tor_network_toml().to_owned());
    config
}

fn target(host: &str, port: u16) -> Target {
    Target {
        host: Host::Name(host.to_owned()),
        port,
    }
}

fn key(isolation: &Isolation, session: u8) -> IsolationKey {
    let local = std::net::SocketAddr::from(([127, 0, 0, session], 1080));
    isolation.key_for(local).unwrap()
}

/// The status line and headers, and how many bytes followed. The lab keeps connections open.
async fn get(stream: &mut Stream, host: &str, path: &str) -> (String, usize) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // Arti keeps up to a cell back until flushed.
    stream.flush().await.unwrap();
    let (mut head, mut body, mut buffer) = (Vec::new(), None, vec![0; 64 * 1024]);
    loop {
        let (have, want) = body.unwrap_or((0, usize::MAX));
        if have >= want {
            return (String::from_utf8(head).unwrap(), have);
        }
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "closed after {have} bytes");
        if body.is_some() {
            body = Some((have + read, want));
            continue;
        }
        head.extend(&buffer[..read]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = head.len() - (end + 4);
            head.truncate(end + 4);
            let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            body = Some((rest, length.expect("a length").trim().parse().unwrap()));
        }
    }
}

#[test]
fn sites_and_onions_are_reached_on_circuits_that_no_two_sessions_share() {
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options::default());
    let folder = tempfile::tempdir().unwrap();
    at_home(&lab, async || {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let statuses = Arc::clone(&heard);
        let began = Instant::now();
        let progress = move |status| statuses.lock().unwrap().push(status);
        let tor = Tor::launch(config(&lab, folder.path()), progress).unwrap();
        // 1. A connection that comes before Tor is ready waits for it.
        let isolation = Isolation::new().unwrap();
        let site = target(SITES[0], 80);
        let mut early = tor.connect(&site, &key(&isolation, 2)).await.unwrap();
        println!("first connection {:?} after the launch", began.elapsed());
        assert!(tor.status().ready);
        let heard = heard.lock().unwrap().clone();
        assert!(!heard[0].ready && heard.last().unwrap().ready, "{heard:?}");
        assert!(
            get(&mut early, SITES[0], "/")
                .await
                .0
                .starts_with("HTTP/1.1 200")
        );
        // 2. An onion service.
        let onion = target(lab.onion(), 80);
        let mut stream = tor.connect(&onion, &key(&isolation, 2)).await.unwrap();
        assert!(
            get(&mut stream, lab.onion(), "/")
                .await
                .0
                .starts_with("HTTP/1.1 200")
        );
        // 3. Circuits.
        let circuit = async |session| {
            let (_stream, path) = tor.trace(&site, &key(&isolation, session)).await.unwrap();
            assert!(path.len() > 3, "{path:?}");
            path[0].clone()
        };
        let (first, second, again) = (circuit(2).await, circuit(3).await, circuit(2).await);
        assert_ne!(first, second);
        assert_eq!(first, again);
        isolation.renew(key(&isolation, 2).session());
        let renewed = circuit(2).await;
        assert!(renewed != first && renewed != second);
        assert_eq!(circuit(3).await, second);
        // 4. What cannot be reached says why.
        let kind = async |host: &str, port| {
            let wanted = target(host, port);
            match tor.connect(&wanted, &key(&isolation, 2)).await {
                Ok(_) => panic!("{host} was reached"),
                Err(error) => {
                    println!("{error}");
                    error.kind()
                }
            }
        };
        assert_eq!(kind("no-such-name.net", 80).await, EgressErrorKind::Dns);
        // Tor's exits say "refused" or no more than that it failed (END reason MISC).
        let closed = kind(SITES[0], 81).await;
        assert!(matches!(
            closed,
            EgressErrorKind::Refused | EgressErrorKind::Unreachable
        ));
        assert_eq!(kind("aaaa.onion", 80).await, EgressErrorKind::OnionAddress);
    });
}

#[test]
fn a_client_that_began_without_a_network_is_ready_soon_after_it_is_there() {
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    let folder = tempfile::tempdir().unwrap();
    lab.cut("home");
    at_home(&lab, async || {
        let tor = Tor::launch(config(&lab, folder.path()), |status| println!("{status}")).unwrap();
        tokio::time::sleep(25 * SECOND).await;
        assert!(!tor.status().ready);
        lab.mend("home");
        let mended = Instant::now();
        let isolation = Isolation::new().unwrap();
        let site = target(SITES[0], 80);
        while tor.connect(&site, &key(&isolation, 2)).await.is_err() {
            assert!(mended.elapsed() < 60 * SECOND);
        }
        println!("back after {:?}", mended.elapsed());
    });
}

#[test]
fn a_second_client_on_the_same_state_uses_what_the_first_keeps() {
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    let folder = tempfile::tempdir().unwrap();
    at_home(&lab, async || {
        let isolation = Isolation::new().unwrap();
        let site = target(SITES[0], 80);
        let first = Tor::start(config(&lab, folder.path()), |_| {})
            .await
            .unwrap();
        let began = Instant::now();
        let second = Tor::start(config(&lab, folder.path()), |_| {})
            .await
            .unwrap();
        println!("the second is ready after {:?}", began.elapsed());
        for tor in [&first, &second] {
            let mut stream = tor.connect(&site, &key(&isolation, 2)).await.unwrap();
            assert!(
                get(&mut stream, SITES[0], "/")
                    .await
                    .0
                    .starts_with("HTTP/1.1 200")
            );
        }
        drop((first, second));
        let began = Instant::now();
        let _third = Tor::start(config(&lab, folder.path()), |_| {})
            .await
            .unwrap();
        println!("warm, alone: ready after {:?}", began.elapsed());
    });
}

/// 20 MB through Arti, against C tor's SOCKS port in the same lab.
#[test]
#[ignore = "a measurement: cargo test --release tor::throughput -- --ignored --nocapture"]
fn throughput_of_arti_against_tor() {
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    let folder = tempfile::tempdir().unwrap();
    let socks = lab.tor_client();
    at_home(&lab, async || {
        let tor = Tor::start(config(&lab, folder.path()), |_| {})
            .await
            .unwrap();
        let isolation = Isolation::new().unwrap();
        let site = target(SITES[0], 80);
        for _ in 0..3 {
            let mut arti = tor.connect(&site, &key(&isolation, 2)).await.unwrap();
            let c_tor = tokio_socks::tcp::Socks5Stream::connect(socks, (SITES[0], 80)).await;
            let mut c_tor: Stream = Box::new(c_tor.unwrap().into_inner());
            for (name, stream) in [("arti", &mut arti), ("tor", &mut c_tor)] {
                let began = Instant::now();
                assert_eq!(get(stream, SITES[0], "/bytes/20000000").await.1, 20_000_000);
                let large = began.elapsed();
                let began = Instant::now();
                for _ in 0..100 {
                    get(stream, SITES[0], "/bytes/10").await;
                }
                println!(
                    "{name}: 20 MB in {large:?}, 10 bytes in {:?}",
                    began.elapsed() / 100
                );
            }
        }
    });
}
