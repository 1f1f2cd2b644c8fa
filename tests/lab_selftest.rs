//! The lab does what the other tests rely on: it comes up in time, carries pages over Tor to Arti and to C tor, sees every
//! leak, and leaves nothing behind.
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::lab::{self, Lab, Options, topology};
use arti_client::config::{CfgPath, TorClientConfigBuilder};
use arti_client::{TorClient, TorClientConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tor_rtcompat::PreferredRuntime;

/// Labs start one after the other, since each start keeps two processors busy; the tests are about other things.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_lab_comes_up_in_time_carries_pages_over_tor_sees_every_leak_and_goes_down_without_a_trace() {
    if !lab::required() {
        return;
    }
    let _turn = one_at_a_time();
    let busy = load_average() > std::thread::available_parallelism().unwrap().get() as f32;
    let lab = Lab::start(Options::default());
    eprintln!("up after {:.1} s", lab.took().as_secs_f32());
    if busy {
        eprintln!("SKIPPED: the limit of 15 s, because the machine is busy with something else");
    } else {
        assert!(
            lab.took() < Duration::from_secs(15),
            "took {:?}",
            lab.took()
        );
    }

    arti_gets_a_page_through_an_exit_and_one_from_the_onion_service(&lab);
    a_tor_client_in_home_gets_both_pages_through_its_socks_port(&lab);
    nothing_left_home_outside_tor(&lab);
    the_capture_sees_every_leak(&lab);
    the_pcap_file_is_readable(&lab);
    a_cut_host_is_out_of_reach_until_it_is_mended(&lab);
    the_tor_network_stops_when_told(&lab);

    let remains = Remains::of(&lab);
    drop(lab);
    remains.wait_until_gone();
    assert!(!remains.directory.exists());
}

#[test]
fn two_labs_run_at_once_and_do_not_know_of_each_other() {
    if !lab::required() {
        return;
    }
    let _turn = one_at_a_time();
    let options = Options {
        onion: false,
        ..Options::default()
    };
    let [one, other] = std::thread::scope(|scope| {
        [(); 2]
            .map(|()| scope.spawn(move || Lab::start(options)))
            .map(|starting| starting.join().unwrap())
    });
    let page = socks_get(&one, one.tor_client(), "www.onioncell-lab.net", "/only-one");
    assert!(page.contains("404"), "{page}");
    assert_eq!(one.web().hits().len(), 1);
    assert_eq!(other.web().hits().len(), 0);
    let page = socks_get(&other, other.tor_client(), "www.onioncell-lab.net", "/");
    assert!(page.contains("Welcome to www.onioncell-lab.net"), "{page}");
    assert_eq!(one.web().hits().len(), 1);
    assert_eq!(other.web().hits().len(), 1);
}

#[test]
fn a_lab_whose_process_is_killed_leaves_only_a_directory_which_the_next_lab_removes() {
    if !lab::required() {
        return;
    }
    let _turn = one_at_a_time();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "lab_selftest::a_lab_to_be_killed",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let remains = Remains::parse(&lines.find(|line| line.contains("REMAINS ")).unwrap());
    assert!(
        remains.pids.len() >= 5 && remains.pids.iter().all(|pid| alive(*pid)),
        "control: they run"
    );
    assert!(
        remains.namespaces_in_use() > 0,
        "control: the namespaces are in use"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    remains.wait_until_gone();
    assert!(
        remains.directory.exists(),
        "control: nobody could remove the directory"
    );
    let _next = Lab::start(Options {
        tor: false,
        ..Options::default()
    });
    assert!(!remains.directory.exists());
}

/// The other side of the test above.
#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn a_lab_to_be_killed() {
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    println!("\n{}", Remains::of(&lab).print());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn arti_gets_a_page_through_an_exit_and_one_from_the_onion_service(lab: &Lab) {
    // Fails only where it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (site, onion) = ("www.onioncell-lab.net", lab.onion());
    let (exit_page, onion_page) = lab.home().enter(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let begin = Instant::now();
            let runtime = PreferredRuntime::current().unwrap();
            let builder = TorClient::with_runtime(runtime).config(arti_config(lab));
            let client =
                tokio::time::timeout(Duration::from_secs(60), builder.create_bootstrapped())
                    .await
                    .expect("bootstrap")
                    .unwrap();
            eprintln!(
                "arti bootstrapped in {:.1} s",
                begin.elapsed().as_secs_f32()
            );
            let get = async |host: &str| {
                let begin = Instant::now();
                let mut stream = client.connect((host, 80)).await.unwrap();
                stream
                    .write_all(request(host, "/").as_bytes())
                    .await
                    .unwrap();
                stream.flush().await.unwrap();
                let mut page = String::new();
                stream.read_to_string(&mut page).await.unwrap();
                eprintln!("arti got {host} in {:.1} s", begin.elapsed().as_secs_f32());
                page
            };
            (get(site).await, get(onion).await)
        })
    });
    assert!(
        exit_page.contains("Welcome to www.onioncell-lab.net"),
        "{exit_page}"
    );
    assert!(
        onion_page.contains(&format!("Welcome to {onion}")),
        "{onion_page}"
    );
    let exits: Vec<IpAddr> = exits();
    let hits = lab.site(site).hits();
    assert!(
        exits.contains(&hits[0].peer.ip()),
        "the request came from {}",
        hits[0].peer
    );
    assert!(
        lab.dns()
            .log()
            .iter()
            .all(|question| exits.contains(&question.peer.ip())),
        "only exits asked"
    );
}

fn a_tor_client_in_home_gets_both_pages_through_its_socks_port(lab: &Lab) {
    let socks = lab.tor_client();
    for host in ["site.example", lab.onion()] {
        let page = socks_get(lab, socks, host, "/");
        assert!(page.contains(&format!("Welcome to {host}")), "{page}");
    }
}

fn nothing_left_home_outside_tor(lab: &Lab) {
    let outside = lab.capture().outside_tor();
    assert!(outside.is_empty(), "{}", list(&outside));
    assert!(
        lab.capture().to_tor_since(lab::capture::Mark::START).len() > 50,
        "control: Tor's packets were seen"
    );
    assert_eq!(lab.neighbour().visits().len(), 0);
}

fn the_capture_sees_every_leak(lab: &Lab) {
    let mark = lab.capture().mark();
    let web = topology::WEB[0];
    let group_member = lab.home().enter(|| {
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        udp.send_to(b"stun", (web, 3478)).unwrap();
        udp.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &topology::HOME)
            .unwrap();
        udp.send_to(b"mdns", "224.0.0.251:5353").unwrap();
        UdpSocket::bind("[::]:0")
            .unwrap()
            .send_to(b"six", (topology::WEB6, 3478))
            .unwrap();
        for address in [
            topology::NEIGHBOUR,
            topology::METADATA,
            Ipv4Addr::new(10, 1, 2, 3),
        ] {
            let connected =
                TcpStream::connect_timeout(&(address, 80).into(), Duration::from_secs(2));
            assert!(connected.is_ok(), "{address}: {connected:?}");
        }
        assert!(TcpStream::connect((web, 80)).is_ok());
        udp
    });
    // The kernel reports the new group after a random delay (RFC 3376, unsolicited report interval).
    let reported = |packet: &lab::packet::Packet| packet.protocol == Some(lab::packet::IGMP);
    assert!(
        lab.capture()
            .wait_for(mark, Duration::from_secs(20), reported)
    );
    drop(group_member);
    let resolved = lab
        .home()
        .command("getent")
        .args(["ahostsv4", "leak-target.net"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&resolved.stdout).contains(&web.to_string()),
        "{resolved:?}"
    );

    let seen = lab.capture().outside_tor_since(mark);
    let text = list(&seen);
    for leak in [
        format!("UDP {}", topology::HOME),
        format!("-> {web}:3478"),
        "IGMP".to_owned(),
        "-> 224.0.0.251:5353".to_owned(),
        format!("-> [{}]:3478", topology::WEB6),
        format!("TCP {}", topology::HOME_LAN),
        format!("-> {}:80", topology::NEIGHBOUR),
        format!("-> {}:80", topology::METADATA),
        "-> 10.1.2.3:80".to_owned(),
        format!("-> {web}:80"),
        format!("-> {}:53 DNS A leak-target.net", topology::DNS),
    ] {
        assert!(text.contains(&leak), "not seen: {leak}\n{text}");
    }
    assert_eq!(lab.neighbour().visits().len(), 3);
    let asked_by_home = |question: &lab::dns::Question| question.peer.ip() == topology::HOME;
    assert!(lab.dns().log().iter().any(asked_by_home));
}

fn the_pcap_file_is_readable(lab: &Lab) {
    let file = lab.directory().join("home.pcap");
    lab.capture().write_pcap(&file).unwrap();
    let Ok(read) = Command::new("tcpdump")
        .args(["-nr"])
        .arg(&file)
        .arg("udp port 3478")
        .output()
    else {
        eprintln!("SKIPPED: reading the pcap file, because tcpdump is not installed");
        return;
    };
    assert_eq!(
        String::from_utf8_lossy(&read.stdout).lines().count(),
        2,
        "{read:?}"
    );
}

fn a_cut_host_is_out_of_reach_until_it_is_mended(lab: &Lab) {
    let address = SocketAddr::from((topology::WEB[0], 80));
    let reach = || {
        lab.home()
            .enter(|| TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok())
    };
    assert!(reach());
    lab.cut("web");
    assert!(!reach());
    lab.mend("web");
    assert!(reach());
}

fn the_tor_network_stops_when_told(lab: &Lab) {
    let pids = lab.pids();
    lab.stop_tor_network();
    assert_eq!(
        pids.iter().filter(|pid| alive(**pid)).count(),
        1,
        "the client in home is all that is left"
    );
}

/// What Arti is told: the lab's file, and directories.
fn arti_config(lab: &Lab) -> TorClientConfig {
    let text = std::fs::read_to_string(lab.tor_network_toml()).unwrap();
    let mut config: TorClientConfigBuilder = toml::from_str(&text).unwrap();
    let dir = |name: &str| CfgPath::new_literal(lab.directory().join(name));
    config
        .storage()
        .cache_dir(dir("arti-cache"))
        .state_dir(dir("arti-state"));
    config.build().unwrap()
}

fn socks_get(lab: &Lab, socks: SocketAddr, host: &str, path: &str) -> String {
    lab.home().enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut stream = tokio_socks::tcp::Socks5Stream::connect(socks, (host, 80))
                .await
                .unwrap();
            stream
                .write_all(request(host, path).as_bytes())
                .await
                .unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).await.unwrap();
            page
        })
    })
}

fn request(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn exits() -> Vec<IpAddr> {
    topology::RELAYS
        .iter()
        .filter(|(name, _)| name.starts_with("exit"))
        .map(|(_, address)| (*address).into())
        .collect()
}

fn list(packets: &[lab::packet::Packet]) -> String {
    packets.iter().map(|packet| format!("{packet}\n")).collect()
}

fn load_average() -> f32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// What a lab could leave behind.
struct Remains {
    pids: Vec<u32>,
    namespaces: Vec<u64>,
    directory: PathBuf,
}

impl Remains {
    fn of(lab: &Lab) -> Self {
        Self {
            pids: lab.pids(),
            namespaces: lab.namespaces().map(|ns| ns.inode().unwrap()).collect(),
            directory: lab.directory().to_owned(),
        }
    }

    fn print(&self) -> String {
        let join = |words: Vec<String>| words.join(",");
        format!(
            "REMAINS {} {} {}",
            join(self.pids.iter().map(ToString::to_string).collect()),
            join(self.namespaces.iter().map(ToString::to_string).collect()),
            self.directory.display()
        )
    }

    fn parse(line: &str) -> Self {
        let mut words = line.split(' ').skip(1);
        let pids = words
            .next()
            .unwrap()
            .split(',')
            .map(|pid| pid.parse().unwrap())
            .collect();
        let namespaces = words
            .next()
            .unwrap()
            .split(',')
            .map(|ns| ns.parse().unwrap())
            .collect();
        Self {
            pids,
            namespaces,
            directory: words.next().unwrap().into(),
        }
    }

    fn namespaces_in_use(&self) -> usize {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let used: Vec<PathBuf> = processes
            .flat_map(|entry| std::fs::read_link(entry.path().join("ns/net")))
            .collect();
        let name = |inode: &u64| PathBuf::from(format!("net:[{inode}]"));
        self.namespaces
            .iter()
            .filter(|inode| used.contains(&name(inode)))
            .count()
    }

    fn wait_until_gone(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.pids.iter().any(|pid| alive(*pid)) || self.namespaces_in_use() > 0 {
            assert!(Instant::now() < deadline, "still there: {}", self.print());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a process runs; one that only waits for its parent's attention does not.
fn alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))
    else {
        return false;
    };
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
}
