//! What a compromised Chromium would try, tried in its place: every attempt is refused in the cell,
//! and the same attempt by the same user outside succeeds, so that the refusal is the cell's doing.
mod probe;
mod stage;

use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use stage::{Kind, NEIGHBOUR, OUTSIDE, ROOT, Stage, Talk, USER, network, no_network, possible};

#[test]
#[ignore = "not a test: the program that the tests run in the cell"]
fn probe_program() {
    probe::serve();
}

#[test]
#[ignore = "not a test: the process that the tests launch the cell from"]
fn launcher() {
    stage::launcher();
}

/// Every pair of launcher and namespace cell.
const CELLS: [(u32, Kind); 4] = [
    (ROOT, Kind::Full),
    (USER, Kind::Full),
    (ROOT, Kind::NoMounts),
    (USER, Kind::NoMounts),
];

/// The probe in the cell and outside, with the launcher's process id.
fn pair(stage: &Stage) -> (Talk, Talk, String) {
    let mut inside = stage.inside();
    let said = inside.hear();
    let pid = said
        .strip_prefix("running ")
        .unwrap_or_else(|| panic!("{stage:?}: {said}"));
    let pid = pid.split(' ').next().unwrap().to_owned();
    (inside, stage.outside(), pid)
}

/// Refused inside with exactly this errno; done outside.
fn refused(stage: &Stage, attempts: &[(String, &str)]) {
    let (mut inside, mut outside, _) = pair(stage);
    for (attempt, errno) in attempts {
        assert_eq!(inside.ask(attempt), *errno, "{attempt} in {stage:?}");
        assert_eq!(
            outside.ask(attempt),
            "ok",
            "the control of {attempt} in {stage:?}"
        );
    }
    inside.end();
    outside.end();
}

fn each(check: impl Fn(&Stage)) {
    if possible() {
        network();
        for (uid, kind) in CELLS {
            check(&Stage::new(uid, kind));
        }
    }
}

#[test]
fn tcp_and_udp_reach_neither_the_outside_nor_the_neighbour_nor_the_launchers_other_ports() {
    each(|stage| {
        for host in [OUTSIDE, NEIGHBOUR, "127.0.0.1"] {
            // Landlock allows one port.
            let attempts = [
                (format!("tcp {host}:7"), "EACCES"),
                (format!("udp {host}:7"), "EACCES"),
                (format!("fastopen {host}:7"), "EPERM"),
                (format!("namespace-then-tcp {host}:7"), "EACCES"),
            ];
            // A network namespace of its own gives nothing outside the cell either.
            refused(stage, &attempts[..3]);
            let (mut inside, outside, _) = pair(stage);
            assert_eq!(inside.ask(&attempts[3].0), attempts[3].1);
            inside.end();
            outside.end();
        }
    });
}

#[test]
fn on_the_gateways_own_port_only_the_gateway_is_reached() {
    each(|stage| {
        let (mut inside, outside, _) = pair(stage);
        assert_eq!(inside.ask("tcp 127.0.0.1:1080"), "ok");
        assert_eq!(inside.ask("tcp 127.0.0.77:1080"), "ok");
        // No route: the namespace holds where Landlock would let pass.
        assert_eq!(inside.ask(&format!("tcp {OUTSIDE}:1080")), "ENETUNREACH");
        assert_eq!(inside.ask(&format!("tcp {NEIGHBOUR}:1080")), "ENETUNREACH");
        assert_eq!(inside.ask("tcp [2001:db8::1]:1080"), "ENETUNREACH");
        assert_eq!(inside.ask("interfaces"), "ok lo");
        inside.end();
        outside.end();
    });
}

#[test]
fn there_are_no_sockets_but_tcp_and_unix() {
    let socket =
        |family: i32, kind: i32, protocol: i32| format!("socket {family} {kind} {protocol}");
    each(|stage| {
        let mut attempts = vec![
            (socket(libc::AF_INET, libc::SOCK_DGRAM, 0), "EACCES"),
            (socket(libc::AF_INET6, libc::SOCK_DGRAM, 0), "EACCES"),
            (socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), "EAFNOSUPPORT"),
            (socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), "EAFNOSUPPORT"),
            (
                socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
                "EPROTONOSUPPORT",
            ),
            ("fastopen-connect".to_owned(), "EPERM"),
            ("io_uring".to_owned(), "EPERM"),
        ];
        if stage.uid == ROOT {
            attempts.push((
                socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
                "EPROTONOSUPPORT",
            ));
            attempts.push((
                socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6),
                "EPROTONOSUPPORT",
            ));
            attempts.push((socket(libc::AF_PACKET, libc::SOCK_RAW, 0), "EAFNOSUPPORT"));
        }
        refused(stage, &attempts);
        // Kernels without SCTP, and users without capabilities, cannot be their own control.
        let (mut inside, outside, _) = pair(stage);
        for (family, kind, protocol, errno) in [
            (
                libc::AF_INET,
                libc::SOCK_STREAM,
                libc::IPPROTO_SCTP,
                "EPROTONOSUPPORT",
            ),
            (
                libc::AF_INET,
                libc::SOCK_SEQPACKET,
                libc::IPPROTO_SCTP,
                "EPROTONOSUPPORT",
            ),
            (
                libc::AF_INET,
                libc::SOCK_RAW,
                libc::IPPROTO_RAW,
                "EPROTONOSUPPORT",
            ),
            (libc::AF_PACKET, libc::SOCK_DGRAM, 0, "EAFNOSUPPORT"),
            (libc::AF_ALG, libc::SOCK_SEQPACKET, 0, "EAFNOSUPPORT"),
        ] {
            assert_eq!(
                inside.ask(&socket(family, kind, protocol)),
                errno,
                "{family} {kind} {protocol}"
            );
        }
        assert_eq!(
            inside.ask(&socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP)),
            "ok"
        );
        inside.end();
        outside.end();
    });
}

#[test]
fn unix_sockets_of_others_are_not_reached_by_name_or_by_path() {
    each(|stage| {
        let path = stage.path("socket");
        let _by_path = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(stage.uid), Some(stage.uid)).unwrap();
        let _by_name =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name("onioncell-test").unwrap())
                .unwrap();
        refused(
            stage,
            &[("abstract onioncell-test".to_owned(), "ECONNREFUSED")],
        );
        // Without mounts only a newer Landlock could; `Plan::not_covered` says so.
        if stage.kind == Kind::Full {
            refused(stage, &[(format!("unix {}", path.display()), "ENOENT")]);
        }
    });
}

#[test]
fn with_a_window_the_displays_socket_is_reached_and_the_one_beside_it_is_not() {
    each(|stage| {
        let (mine, other) = (stage.path("X7"), stage.path("X8"));
        let _displays = [&mine, &other].map(|path| {
            let listener = UnixListener::bind(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            listener
        });
        let (mut inside, outside, _) = pair(stage);
        assert_eq!(inside.ask(&format!("unix {}", mine.display())), "ok");
        inside.end();
        outside.end();
        if stage.kind == Kind::Full {
            refused(stage, &[(format!("unix {}", other.display()), "ENOENT")]);
        }
    });
}

#[test]
fn the_launcher_is_out_of_reach() {
    each(|stage| {
        let (mut inside, mut outside, launcher) = pair(stage);
        let (hidden, unsignalled) = match stage.kind {
            // It has no number in the cell's PID namespace.
            Kind::Full => ("ENOENT", "ESRCH"),
            Kind::NoMounts | Kind::Container => ("EACCES", "EPERM"),
        };
        assert_eq!(inside.ask(&format!("setns {launcher}")), hidden);
        assert_eq!(inside.ask("setns-own"), "EPERM");
        assert_eq!(inside.ask(&format!("memory {launcher}")), hidden);
        assert_eq!(inside.ask(&format!("environ {launcher}")), hidden);
        assert_eq!(inside.ask(&format!("ptrace {launcher}")), "EPERM");
        assert_eq!(inside.ask(&format!("signal {launcher}")), unsignalled);
        // The control: another process of the same user, because the launcher has made itself nobody's.
        let mut other = stage.outside();
        other.ask("descriptors");
        let target = other.process.id();
        for attempt in ["memory", "environ", "signal", "ptrace"] {
            assert_eq!(
                outside.ask(&format!("{attempt} {target}")),
                "ok",
                "{attempt} in {stage:?}"
            );
        }
        if stage.uid == ROOT {
            assert_eq!(outside.ask(&format!("setns {target}")), "ok");
        }
        // Of the traced process only its end is wanted now.
        outside.end();
        other.end();
        inside.end();
    });
}

#[test]
fn home_tor_state_and_workspace_cannot_be_read() {
    each(|stage| {
        let errno = if stage.kind == Kind::Full {
            "ENOENT"
        } else {
            "EACCES"
        };
        let read = |name: &str| (format!("read {}", stage.path(name).display()), errno);
        let list = |name: &str| (format!("list {}", stage.path(name).display()), errno);
        refused(
            stage,
            &[
                read("w/home/.secret"),
                read("w/tor/state"),
                read("w/workspace/file"),
            ],
        );
        refused(
            stage,
            &[
                list("w/home"),
                list("w/workspace"),
                list("w"),
                ("list /home".to_owned(), errno),
            ],
        );
        refused(
            stage,
            &[
                ("list /sys/class/net".to_owned(), errno),
                ("list /var/lib".to_owned(), errno),
            ],
        );
    });
}

#[test]
fn nothing_is_writable_but_profile_and_temp() {
    each(|stage| {
        let (mut inside, mut outside, _) = pair(stage);
        let (profile, temp) = match stage.kind {
            Kind::Full => ("/run/onioncell/profile".into(), "/run/onioncell/tmp".into()),
            Kind::NoMounts | Kind::Container => (stage.path("w/profile"), stage.path("w/tmp")),
        };
        assert_eq!(inside.ask(&format!("write {}/a", profile.display())), "ok");
        assert_eq!(inside.ask(&format!("write {}/a", temp.display())), "ok");
        assert!(stage.path("w/profile/a").exists() && stage.path("w/tmp/a").exists());
        for path in [
            "/tmp/a",
            "/var/tmp/a",
            "/etc/a",
            "/usr/a",
            "/run/a",
            "/dev/a",
            "/a",
        ] {
            let answer = inside.ask(&format!("write {path}"));
            assert!(
                ["EACCES", "ENOENT", "EROFS"].contains(&&*answer),
                "{path}: {answer} in {stage:?}"
            );
            assert!(!std::path::Path::new(path).exists());
        }
        let control = stage.path("w/workspace/new");
        let attempt = format!("write {}", control.display());
        assert_ne!(inside.ask(&attempt), "ok");
        assert_eq!(outside.ask(&attempt), "ok");
        assert_eq!(inside.ask("mount"), "EPERM");
        inside.end();
        outside.end();
    });
}

#[test]
fn nothing_is_inherited_and_nothing_can_be_gained() {
    each(|stage| {
        let (mut inside, outside, _) = pair(stage);
        assert_eq!(inside.ask("descriptors"), "ok 0 1 2 3 4");
        let names = inside.ask("environment");
        for name in names.strip_prefix("ok ").unwrap().split(' ') {
            assert!(
                name.starts_with("XDG_")
                    || name.starts_with("DBUS_")
                    || ["HOME", "TMPDIR", "LANG", "LANGUAGE", "TZ"].contains(&name),
                "{name}"
            );
        }
        let uid = if stage.uid == ROOT {
            cell_uid()
        } else {
            stage.uid
        };
        assert_eq!(
            inside.ask("status Uid"),
            format!("ok {uid} {uid} {uid} {uid}")
        );
        assert_eq!(inside.ask("status CapEff"), "ok 0000000000000000");
        assert_eq!(inside.ask("status CapPrm"), "ok 0000000000000000");
        assert_eq!(inside.ask("status NoNewPrivs"), "ok 1");
        assert_eq!(inside.ask("status Seccomp"), "ok 2");
        inside.end();
        outside.end();
    });
}

fn cell_uid() -> u32 {
    onioncell::cell::CELL_IDS.uid
}

#[test]
fn in_a_container_without_a_network_the_other_ports_and_sockets_stay_closed() {
    if !possible() {
        return;
    }
    no_network();
    for uid in [ROOT, USER] {
        let stage = Stage::new(uid, Kind::Container);
        let _by_name =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name("onioncell-test").unwrap())
                .unwrap();
        refused(
            &stage,
            &[
                ("tcp 127.0.0.1:7".to_owned(), "EACCES"),
                ("udp 127.0.0.1:7".to_owned(), "EACCES"),
                ("abstract onioncell-test".to_owned(), "EPERM"),
                (
                    format!("read {}", stage.path("w/home/.secret").display()),
                    "EACCES",
                ),
            ],
        );
        let (mut inside, outside, launcher) = pair(&stage);
        assert_eq!(inside.ask("tcp 127.0.0.9:1080"), "ok");
        assert_eq!(inside.ask(&format!("signal {launcher}")), "EPERM");
        inside.end();
        outside.end();
    }
}

/// Waits until nobody holds the lock that a process in the cell took.
fn wait_until_gone(stage: &Stage) {
    File::open(stage.path("w/tmp/lock"))
        .unwrap()
        .lock()
        .unwrap();
}

fn with_a_hidden_process(stage: &Stage) -> Talk {
    let mut inside = stage.inside();
    assert!(inside.hear().starts_with("running "));
    assert_eq!(
        inside.ask(&format!("hide {}/lock", temp_inside(stage))),
        "ok"
    );
    let lock = File::open(stage.path("w/tmp/lock")).unwrap();
    assert!(
        lock.try_lock().is_err(),
        "the hidden process holds it: the detector works"
    );
    inside
}

fn temp_inside(stage: &Stage) -> String {
    match stage.kind {
        Kind::Full => "/run/onioncell/tmp".to_owned(),
        Kind::NoMounts | Kind::Container => stage.path("w/tmp").display().to_string(),
    }
}

#[test]
fn a_killed_launcher_takes_every_process_of_the_cell_with_it() {
    each(|stage| {
        let mut inside = with_a_hidden_process(stage);
        inside.process.kill().unwrap();
        inside.process.wait().unwrap();
        wait_until_gone(stage);
    });
}

#[test]
fn a_killed_supervisor_takes_the_program_with_it() {
    each(|stage| {
        let mut inside = stage.inside();
        let said = inside.hear();
        let supervisor: i32 = said.split(' ').nth(2).unwrap().parse().unwrap();
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(supervisor),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        assert_eq!(inside.hear(), "exit Exit { code: None, signal: None }");
        inside.end();
    });
}

#[test]
fn the_end_of_the_program_is_reported_when_nothing_of_it_is_left() {
    each(|stage| {
        let mut inside = with_a_hidden_process(stage);
        assert_eq!(
            inside.ask("die"),
            "exit Exit { code: None, signal: Some(9) }"
        );
        assert!(
            File::open(stage.path("w/tmp/lock"))
                .unwrap()
                .try_lock()
                .is_ok()
        );
        inside.end();
        let mut inside = stage.inside();
        inside.hear();
        assert_eq!(
            inside.ask("exit 7"),
            "exit Exit { code: Some(7), signal: None }"
        );
        inside.end();
    });
}

fn first_word(mut talk: Talk) -> String {
    let said = talk.hear();
    talk.end();
    said
}

#[test]
fn a_program_that_cannot_be_executed_is_named_with_its_reason() {
    each(|stage| {
        let missing = first_word(stage.launch("missing"));
        assert!(
            missing.starts_with("refused cell: execute ") && missing.ends_with("(ENOENT)"),
            "{missing}"
        );
        std::fs::write(stage.path("bin/text"), "not a program").unwrap();
        let text = first_word(stage.launch("text"));
        assert!(
            text.starts_with("refused cell: execute ") && text.ends_with("(EACCES)"),
            "{text}"
        );
    });
}

#[test]
fn a_profile_that_cannot_be_written_is_named_with_its_reason() {
    each(|stage| {
        std::os::unix::fs::chown(stage.path("w/profile"), Some(1), Some(1)).unwrap();
        let said = first_word(stage.inside());
        assert!(
            said.starts_with("refused cell: write to ") && said.ends_with("(EACCES)"),
            "{said}"
        );
    });
}

#[test]
fn chromium_in_the_cell_keeps_its_own_sandbox() {
    if !possible() {
        return;
    }
    no_network();
    for (uid, kind) in CELLS
        .into_iter()
        .chain([(ROOT, Kind::Container), (USER, Kind::Container)])
    {
        let stage = Stage::new(uid, kind);
        let mut browser = stage.chromium();
        let said = browser.hear();
        assert!(said.starts_with("running "), "{said}");
        let text = sandbox_report(&mut browser);
        println!("{uid} {kind:?}: {said}; {text}");
        assert!(
            text.contains("You are adequately sandboxed."),
            "{uid} {kind:?}: {text}"
        );
        browser.end();
    }
}

/// What chrome://sandbox says.
fn sandbox_report(browser: &mut Talk) -> String {
    let target = call(
        browser,
        1,
        r#""method":"Target.createTarget","params":{"url":"chrome://sandbox"}"#,
    );
    let target = target["targetId"].as_str().unwrap().to_owned();
    let session = call(
        browser,
        2,
        &format!(
            r#""method":"Target.attachToTarget","params":{{"targetId":"{target}","flatten":true}}"#
        ),
    );
    let session = session["sessionId"].as_str().unwrap().to_owned();
    let script = "new Promise(done => { const look = () => { const e = document.querySelector('#evaluation'); \
                  e && e.textContent ? done(document.body.innerText) : setTimeout(look, 20) }; look() })";
    let value = call(
        browser,
        3,
        &format!(
            r#""sessionId":"{session}","method":"Runtime.evaluate","params":{{"expression":"{script}","awaitPromise":true,"returnByValue":true}}"#
        ),
    );
    value["result"]["value"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn call(browser: &mut Talk, id: u32, message: &str) -> serde_json::Value {
    browser.say(&format!(r#"{{"id":{id},{message}}}"#));
    loop {
        let reply: serde_json::Value = serde_json::from_str(&browser.hear()).unwrap();
        if reply["id"] == id {
            return reply["result"].clone();
        }
    }
}
