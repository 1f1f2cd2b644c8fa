//! `--isolation container`: the browser's own network is `lo` alone, and the gateway runs elsewhere.
//! And systems where user namespaces are blocked, in the two ways in which they are.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde_json::Value;

use crate::lab::{Lab, Netns};
use crate::user::{PROGRAM, Ran, Running, User, assert_only_tor, shared_lab};

/// No refusal may take longer.
const BOUND: Duration = Duration::from_secs(20);

/// A container started with `--network none`: a network namespace with nothing but `lo`.
fn without_network() -> Netns {
    let ns = Netns::new("island").unwrap();
    ns.ip("link set lo up\n").unwrap();
    ns
}

/// One browser: a network, a workspace of its own, and what is added to its command line.
struct Browser<'a> {
    network: &'a Netns,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    blocked: Option<Blocked>,
}

/// How user namespaces are refused.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    /// As Docker's default profile does.
    BySeccomp,
    /// user.max_user_namespaces = 0
    BySysctl,
}

impl<'a> Browser<'a> {
    fn new(network: &'a Netns, arguments: &[&str]) -> Self {
        Self {
            network,
            directory: tempfile::tempdir().unwrap(),
            arguments: arguments.iter().map(|&a| a.to_owned()).collect(),
            blocked: None,
        }
    }

    fn blocked(mut self, how: Blocked) -> Self {
        self.blocked = Some(how);
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.network.command(PROGRAM);
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("ONIONCELL_WORKSPACE", self.directory.path())
            .arg("--json")
            .args(&self.arguments)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match self.blocked {
            None => {}
            // SAFETY: the closure makes system calls only, on a filter made before the fork.
            Some(Blocked::BySeccomp) => unsafe {
                let filters = no_namespaces();
                command.pre_exec(move || {
                    let applied = filters
                        .iter()
                        .try_for_each(|filter| seccompiler::apply_filter(filter));
                    applied.map_err(|_| std::io::ErrorKind::PermissionDenied.into())
                });
            },
            Some(Blocked::BySysctl) => no_more_namespaces(&mut command),
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Running::from(self.command(arguments)).finish()
    }

    /// Exit status, code, message and hint of a run that is refused, soon.
    fn refused(&self, arguments: &[&str]) -> (i32, String, String, String) {
        let began = Instant::now();
        let ran = self.run(arguments);
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        let (code, message) = ran.error();
        let hint = ran.json()["error"]["hint"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        (ran.status, code, message, hint)
    }

    /// `doctor`'s word on one thing.
    fn doctor(&self, name: &str) -> Value {
        let report = self.run(&["doctor", "--offline"]).json();
        let checks = report["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|check| check["name"] == name)
            .unwrap()
            .clone()
    }
}

/// A gateway in the lab's home, and the user whose it is.
struct Elsewhere<'a> {
    user: User<'a>,
    socket: PathBuf,
    _running: Running,
}

impl<'a> Elsewhere<'a> {
    fn start(lab: &'a Lab, policy: &[&str]) -> Self {
        let user = User::new(lab);
        let socket = user.path("gateway.sock");
        let listen = format!("unix:{}", socket.display());
        let mut running = user.start(&[policy, &["gateway", "--listen", &listen]].concat());
        let stderr = running.child().stderr.take().unwrap();
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        assert!(
            lines.any(|line| line.contains("ready")),
            "the gateway did not come up"
        );
        // Read on, or it would be stopped by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            user,
            socket,
            _running: running,
        }
    }

    fn flag(&self) -> String {
        format!("--gateway=unix:{}", self.socket.display())
    }
}

#[test]
fn a_browser_whose_network_is_lo_alone_reads_pages_through_a_gateway_elsewhere() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("island.site.example");
    let gateway = Elsewhere::start(lab, &["--allow", "island.site.example"]);
    let network = without_network();
    let mark = lab.capture().mark();
    for isolation in ["container", "auto", "namespace"] {
        let browser = Browser::new(
            &network,
            &[
                "--isolation",
                isolation,
                &gateway.flag(),
                "--allow",
                "island.site.example",
            ],
        );
        let before = site.hits().len();
        let reply = browser.run(&["navigate", &site.url("/")]).ok();
        assert_eq!(reply["http_status"], 200, "{isolation}");
        assert!(site.hits().len() > before, "{isolation}");
        // A second run on the same profile.
        browser.run(&["navigate", &site.url("/")]).ok();
    }
    assert_only_tor(lab, mark);
}

#[test]
fn a_container_with_a_network_or_without_a_gateway_is_refused_with_what_to_do() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("refused.site.example");
    let go = [
        "--allow",
        "refused.site.example",
        "navigate",
        &site.url("/"),
    ];
    let nowhere = "--gateway=unix:/nonexistent/gateway.sock";

    let connected = Browser::new(lab.home(), &["--isolation", "container", nowhere]);
    let (status, code, message, hint) = connected.refused(&go);
    assert_eq!((status, code.as_str()), (5, "isolation_unavailable"));
    assert!(message.contains("eth0, eth1"), "{message}");
    assert!(hint.contains("--network none"), "{hint}");

    let network = without_network();
    let alone = Browser::new(&network, &["--isolation", "container"]);
    let (status, code, _, hint) = alone.refused(&go);
    assert_eq!((status, code.as_str()), (5, "isolation_unavailable"));
    assert!(hint.contains("--gateway unix:PATH"), "{hint}");
    assert!(site.hits().is_empty());
}

#[test]
fn auto_takes_what_there_is_and_nothing_less() {
    let Some(lab) = shared_lab() else { return };
    let network = without_network();
    let flags = [
        "--gateway=unix:/nonexistent/gateway.sock",
        "--dangerously-no-chromium-sandbox",
    ];
    let chosen = |network: &Netns, blocked| {
        let browser = Browser {
            blocked,
            ..Browser::new(network, &flags)
        };
        let check = browser.doctor("isolation");
        (
            check["status"].clone(),
            check["detail"].as_str().unwrap().to_owned(),
        )
    };
    let yes = |kind: &str| (Value::from("ok"), kind.to_owned());
    assert_eq!(chosen(lab.home(), None), yes("namespace"));
    assert_eq!(chosen(&network, None), yes("namespace"));
    for how in [Blocked::BySeccomp, Blocked::BySysctl] {
        assert_eq!(chosen(&network, Some(how)), yes("container"), "{how:?}");
        assert_eq!(chosen(lab.home(), Some(how)).0, "fail", "{how:?}");
    }
}

#[test]
fn two_browsers_on_one_gateway_are_two_sessions() {
    let Some(lab) = shared_lab() else { return };
    let (page, part) = (lab.site("two.site.example"), lab.site("part.site.example"));
    let html = format!("<script src='{}'></script>two", part.url("/part.js"));
    lab.web().page("two.site.example", "/", &html);
    let gateway = Elsewhere::start(lab, &["--allow", "*.site.example"]);
    let network = without_network();
    let sessions = |ledger: &[Value]| -> Vec<String> {
        ledger
            .iter()
            .map(|row| row["session"].as_str().unwrap().to_owned())
            .collect()
    };
    for _ in 0..2 {
        let flags = [
            "--isolation",
            "container",
            &gateway.flag(),
            "--allow",
            "*.site.example",
        ];
        Browser::new(&network, &flags)
            .run(&["navigate", &page.url("/")])
            .ok();
    }
    let seen = sessions(&gateway.user.ledger());
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    // The control: the connections of one browser are one session.
    assert!(seen.len() >= 4, "{seen:?}");
    assert_eq!(distinct.len(), 2, "{seen:?}");
}

#[test]
fn the_gateways_policy_holds_whatever_the_browser_would_allow() {
    let Some(lab) = shared_lab() else { return };
    let (open, closed) = (
        lab.site("mild.site.example"),
        lab.site("strict.site.example"),
    );
    let gateway = Elsewhere::start(lab, &["--allow", "mild.site.example"]);
    let network = without_network();
    let browser = Browser::new(
        &network,
        &[
            "--isolation",
            "container",
            &gateway.flag(),
            "--allow-public-web",
        ],
    );
    let (code, message) = browser.run(&["navigate", &closed.url("/")]).error();
    assert_eq!(code, "policy_denied", "{message}");
    assert!(closed.hits().is_empty());
    // The control: the same browser, what the gateway allows.
    browser.run(&["navigate", &open.url("/")]).ok();
    assert!(!open.hits().is_empty());
}

#[test]
fn a_gateway_port_that_is_taken_is_named() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("taken.site.example");
    let gateway = Elsewhere::start(lab, &["--allow", "taken.site.example"]);
    let network = without_network();
    let flags = [
        "--isolation",
        "container",
        &gateway.flag(),
        "--allow",
        "taken.site.example",
    ];
    let browser = Browser::new(&network, &flags);
    let listener = network.enter(|| TcpListener::bind("127.0.0.1:1080").unwrap());
    let (status, _, message, hint) = browser.refused(&["navigate", &site.url("/")]);
    assert_eq!(status, 5, "{message}");
    assert!(
        message.contains("0.0.0.0:1080: Address already in use"),
        "{message}"
    );
    assert!(hint.contains("a container of its own"), "{hint}");
    assert!(site.hits().is_empty());
    // The control: free again, it starts.
    drop(listener);
    browser.run(&["navigate", &site.url("/")]).ok();
}

#[test]
fn without_user_namespaces_nothing_starts_and_the_setting_is_named() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("blocked.site.example");
    let go = [
        "--allow",
        "blocked.site.example",
        "navigate",
        &site.url("/"),
    ];
    for (how, setting) in [
        (Blocked::BySeccomp, "--security-opt seccomp="),
        (Blocked::BySysctl, "sysctl user.max_user_namespaces="),
    ] {
        // Chromium's sandbox is not what is missing: its flag changes nothing.
        for flags in [&[][..], &["--dangerously-no-chromium-sandbox"]] {
            let browser = Browser::new(lab.home(), flags).blocked(how);
            let (status, code, message, hint) = browser.refused(&go);
            assert_eq!(
                (status, code.as_str()),
                (5, "isolation_unavailable"),
                "{message}"
            );
            assert!(message.contains("user namespace"), "{message}");
            assert!(hint.contains(setting), "{hint}");
        }
    }
    assert!(site.hits().is_empty());
}

#[test]
fn a_container_without_user_namespaces_starts_only_with_the_flag_that_says_so() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("bare.site.example");
    let gateway = Elsewhere::start(lab, &["--allow", "bare.site.example"]);
    let network = without_network();
    let flags = [
        "--isolation",
        "container",
        &gateway.flag(),
        "--allow",
        "bare.site.example",
    ];
    let go = ["navigate", &site.url("/")];
    for how in [Blocked::BySeccomp, Blocked::BySysctl] {
        let browser = Browser::new(&network, &flags).blocked(how);
        let (status, code, message, hint) = browser.refused(&go);
        assert_eq!(
            (status, code.as_str()),
            (5, "isolation_unavailable"),
            "{message}"
        );
        assert!(message.contains("Chromium's own sandbox"), "{message}");
        assert!(hint.contains("--dangerously-no-chromium-sandbox"), "{hint}");
        assert!(site.hits().is_empty());
    }
    for how in [Blocked::BySeccomp, Blocked::BySysctl] {
        let without = [&flags[..], &["--dangerously-no-chromium-sandbox"]].concat();
        let browser = Browser::new(&network, &without).blocked(how);
        browser.run(&go).ok();
    }
    assert!(!site.hits().is_empty());
}

#[test]
fn chromium_obeys_every_managed_policy_and_doctor_would_see_if_not() {
    let Some(lab) = shared_lab() else { return };
    let check = Browser::new(lab.home(), &[]).doctor("policies");
    assert_eq!(check["status"], "ok", "{check}");
    // The control: without a mount namespace Chromium reads the system's directory, which has none.
    assert!(!Path::new("/etc/chromium/policies/managed/onioncell.json").exists());
    let network = without_network();
    let flags = ["--isolation", "container", "--gateway=unix:/nonexistent"];
    let check = Browser::new(&network, &flags).doctor("policies");
    assert_eq!(check["status"], "warn", "{check}");
    let detail = check["detail"].as_str().unwrap();
    assert!(detail.starts_with("0 of"), "{detail}");
}

/// unshare(2), and clone(2) for a namespace, give EPERM; clone3(2), whose flags a filter cannot see,
/// is not there: what Docker's default profile does to them.
fn no_namespaces() -> [BpfProgram; 2] {
    let filter = |rules: Vec<(i64, Vec<SeccompRule>)>, errno: i32| {
        let refuse = SeccompAction::Errno(errno.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(
            rules.into_iter().collect(),
            SeccompAction::Allow,
            refuse,
            arch,
        );
        BpfProgram::try_from(filter.unwrap()).unwrap()
    };
    let with = |flag: i32| {
        let flag = u64::from(flag.unsigned_abs());
        let masked = SeccompCmpOp::MaskedEq(flag);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, masked, flag);
        SeccompRule::new(vec![condition.unwrap()]).unwrap()
    };
    let namespaces = [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWPID];
    let clone = (libc::SYS_clone, namespaces.map(with).to_vec());
    [
        filter(vec![(libc::SYS_unshare, vec![]), clone], libc::EPERM),
        filter(vec![(libc::SYS_clone3, vec![])], libc::ENOSYS),
    ]
}

/// Starts the command in a user namespace with every user of this one, in which no further one can be made.
fn no_more_namespaces(command: &mut Command) {
    let (asks, mut asked) = UnixStream::pair().unwrap();
    // The maps must be written from outside, while the command waits before its exec.
    std::thread::spawn(move || {
        let mut pid = [0; 4];
        asked.read_exact(&mut pid).unwrap();
        let process = format!("/proc/{}", i32::from_ne_bytes(pid));
        std::fs::write(format!("{process}/uid_map"), "0 0 65536").unwrap();
        std::fs::write(format!("{process}/gid_map"), "0 0 65536").unwrap();
        asked.write_all(b"!").unwrap();
    });
    let enter = move || {
        unshare(CloneFlags::CLONE_NEWUSER)?;
        (&asks).write_all(&std::process::id().to_ne_bytes())?;
        (&asks).read_exact(&mut [0])?;
        let limit = open(
            "/proc/sys/user/max_user_namespaces",
            OFlag::O_WRONLY,
            Mode::empty(),
        )?;
        nix::unistd::write(limit, b"0")?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(enter) };
}
