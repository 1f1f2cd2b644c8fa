//! `onioncell leaktest`, as anybody runs it: with a real Chromium, with and without privileges, where
//! it cannot run, and when it is ended. And the same pages over Tor, where packets could leave.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onioncell::frontend::leaktest::{Experiment, site};
use serde_json::Value;

use crate::lab::{self, Lab, Options};
use crate::outage::{all_end, tree};
use crate::user::{PROGRAM, Running, User, assert_only_tor, shared_lab};

const NOBODY: u32 = 65_534;
const ISOLATION_UNAVAILABLE: i32 = 5;

/// The report, or `None` where this system cannot run the test (visibly skipped, never in CI).
fn report(output: &Output) -> Option<Value> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(ISOLATION_UNAVAILABLE) && std::env::var_os("CI").is_none() {
        eprintln!("SKIPPED: {stdout}");
        return None;
    }
    let report = serde_json::from_str(&stdout);
    Some(report.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

fn assert_contained_beside_a_leaking_control(output: &Output) {
    let Some(report) = report(output) else { return };
    let vectors = report["vectors"].as_array().unwrap();
    let verdict = |word: &str| -> Vec<&Value> {
        let same = vectors.iter().filter(|vector| vector["verdict"] == word);
        same.collect()
    };
    let (contained, inert) = (verdict("contained"), verdict("inert"));
    assert_eq!(contained.len() + inert.len(), vectors.len(), "{report:#}");
    // A vector that does nothing anywhere proves nothing, so these are not counted.
    assert!(
        contained.len() >= 45,
        "{} of {}",
        contained.len(),
        vectors.len()
    );
    assert_eq!(report["contained"], contained.len());
    assert_eq!(report["inert"], inert.len());
    // The kernel alone: the control's switches, in the cell.
    let alone = &report["kernel_alone"];
    assert_eq!(alone["packets"], 0, "{alone:#}");
    assert!(alone["requests"].as_u64() > Some(45), "{alone:#}");
    let control = report["control"]["leaked"].as_array().unwrap();
    for name in [
        "stun-udp-ipv4",
        "stun-udp-name",
        "mdns",
        "context-direct-name",
    ] {
        assert!(
            control.iter().any(|leak| leak["name"] == name),
            "{name}: {control:#?}"
        );
    }
    assert_eq!(report["conclusion"], "contained");
    assert_eq!(output.status.code(), Some(0));
    // What it is at meanwhile is told apart from the report.
    let stderr = String::from_utf8_lossy(&output.stderr);
    for who in ["1/3 cell", "2/3 kernel alone", "3/3 control"] {
        assert!(stderr.contains(who), "{stderr}");
    }
}

/// As a user without privileges; as root it runs with the planted packet below.
#[test]
fn every_vector_is_contained_and_the_control_leaks() {
    // The build directory may be closed to others.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("onioncell");
    std::fs::copy(PROGRAM, &copy).unwrap();
    for path in [directory.path(), copy.as_path()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&copy);
    command
        .args(["--format", "json", "leaktest"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.gid(NOBODY).uid(NOBODY);
    }
    assert_contained_beside_a_leaking_control(&command.output().unwrap());
}

#[test]
fn without_namespaces_it_names_the_option_and_exits_5() {
    // user_namespaces(7): limits written in a namespace hold in that namespace.
    let script =
        "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" --format human leaktest";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(PROGRAM)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(ISOLATION_UNAVAILABLE),
        "{output:?}"
    );
    assert!(stdout.contains("--security-opt seccomp="), "{stdout}");
}

/// One packet that a test sent is the only one found: the detector sees, and there is nothing else to see.
#[test]
fn a_packet_from_the_cells_host_is_reported_as_a_leak() {
    let experiment = Experiment {
        program: PROGRAM.into(),
        chromium: None,
        chromium_sandbox_off: false,
        watch: Duration::ZERO,
        plant: true,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let report = match runtime.block_on(experiment.run()) {
        Ok(report) => report,
        Err(failure) if failure.code.exit_status() == 5 && std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED: {failure}");
            return;
        }
        Err(failure) => panic!("{failure}"),
    };
    assert_eq!(report.exit_status(), 1);
    let text = report.to_text();
    let packet = text.lines().find(|line| line.contains(":4444 on eth0"));
    assert!(packet.is_some(), "{text}");
    assert!(text.contains("\nLEAKED "), "{text}");
    assert!(
        text.contains("\nSTATUS LEAKED: 1 leaked, 0 with the kernel alone"),
        "{text}"
    );
}

/// Ends a leak test in mid-run, and looks at what is left.
fn nothing_is_left_after(end: impl FnOnce(Pid, &[Pid])) {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command
        .args(["--format", "human", "leaktest"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut running = Running::from(command);
    let stderr = BufReader::new(running.child().stderr.take().unwrap());
    let mut lines = stderr.lines().map_while(Result::ok);
    let at_work = lines
        .by_ref()
        .filter(|line| line.contains("vectors on two pages"))
        .take(3)
        .count();
    if at_work < 3 {
        let ended = running.child().wait().unwrap();
        assert_eq!(ended.code(), Some(ISOLATION_UNAVAILABLE));
        assert!(std::env::var_os("CI").is_none(), "{ended}");
        eprintln!("SKIPPED: no leak test here");
        return;
    }
    let caller = running.pid();
    let processes = tree(caller);
    // Three runs, each with a browser of several processes.
    assert!(processes.len() > 12, "{processes:?}");
    let children = format!("/proc/{caller}/task/{caller}/children");
    let runs: Vec<Pid> = std::fs::read_to_string(children)
        .unwrap()
        .split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect();
    assert_eq!(runs.len(), 3);

    end(Pid::from_raw(caller), &runs);

    let below: HashSet<i32> = processes.into_iter().filter(|pid| *pid != caller).collect();
    assert!(all_end(&below, Duration::from_secs(20)), "{below:?}");
    let ended = running.child().wait().unwrap();
    assert!(!ended.success());
    // Whoever is killed outright cannot tidy up; every other end leaves nothing.
    if ended.code().is_some() {
        let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn interrupted_it_leaves_neither_processes_nor_files() {
    nothing_is_left_after(|caller, _| kill(caller, Signal::SIGINT).unwrap());
}

#[test]
fn killed_runs_leave_neither_processes_nor_files() {
    nothing_is_left_after(|_, runs| {
        for run in runs {
            kill(*run, Signal::SIGKILL).unwrap();
        }
    });
}

#[test]
fn killed_it_leaves_no_processes() {
    nothing_is_left_after(|caller, _| kill(caller, Signal::SIGKILL).unwrap());
}

/// How long a page may take to run its vectors, over Tor.
const PAGE: Duration = Duration::from_secs(60);

/// Serves the leak test's pages under that name, and keeps a `?run` page loading until it has done
/// all that it does.
fn serve_vectors(lab: &Lab, name: &'static str) {
    lab.site(name);
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    lab.web().route(name, "*", move |request, reply| {
        let (is_done, changed) = &*done;
        match request.path.as_str() {
            site::DONE => {
                *is_done.lock().unwrap() = true;
                changed.notify_all();
            }
            site::HOLD => {
                let waiting = is_done.lock().unwrap();
                drop(changed.wait_timeout_while(waiting, PAGE, |is_done| !*is_done));
            }
            _ => {}
        }
        let path = match request.query.as_str() {
            "" => request.path.clone(),
            query => format!("{}?{query}", request.path),
        };
        let answer = site::respond(&path, name);
        let mut content_type = "";
        for (name, value) in &answer.headers {
            match *name {
                "Content-Type" => content_type = value,
                name => drop(reply.header(name, value)),
            }
        }
        reply.send(answer.status, content_type, answer.body.as_bytes())
    });
}

#[test]
fn the_same_pages_over_tor_send_nothing_but_tor() {
    let Some(lab) = shared_lab() else { return };
    let (plain, secure) = ("vectors.site.example", "vectors-tls.site.example");
    let ca = lab.ca_pem().to_str().unwrap();
    let user = User::new(lab);
    let visits = lab.neighbour().visits().len();
    let mark = lab.capture().mark();
    for (name, url) in [
        (plain, lab.site(plain).url("/plain?run")),
        (secure, lab.site(secure).https_url("/secure?run")),
    ] {
        serve_vectors(lab, name);
        let arguments = ["--trust-ca", ca, "--allow-public-web", "navigate", &url];
        user.run(&[&arguments[..], &["--timeout-ms", "90000"]].concat())
            .ok();
        let hits = lab.site(name).hits();
        assert!(hits.iter().any(|hit| hit.path == site::DONE), "{hits:#?}");
    }
    // The vectors were at work: the gateway was asked for what they aim at, and refused some of it.
    let ledger = user.ledger();
    let aimed = |part: &str| {
        ledger
            .iter()
            .any(|row| row["host"].as_str().unwrap().contains(part))
    };
    assert!(
        aimed(&format!(".{plain}")) && aimed(&format!(".{secure}")),
        "{ledger:#?}"
    );
    assert!(
        aimed("192.168.77.") && aimed("169.254.169.254"),
        "{ledger:#?}"
    );
    assert!(!lab.capture().to_tor_since(mark).is_empty());
    assert_only_tor(lab, mark);
    assert_eq!(lab.neighbour().visits().len(), visits);
}

#[test]
fn the_same_page_without_a_cell_reaches_out_and_next_door() {
    if !lab::required() {
        return;
    }
    // Not the shared lab: there it would be seen by every other test, too.
    let lab = Lab::start(Options {
        tor: false,
        onion: false,
        ..Options::default()
    });
    let name = "vectors.site.example";
    serve_vectors(&lab, name);
    let chromium: PathBuf = onioncell::browser::version::find(None).unwrap();
    let user = User::new(&lab);
    let mark = lab.capture().mark();
    let mut command = user.bare(&chromium);
    command
        .args(["--headless=new", "--no-sandbox", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", user.path("plain").display()))
        .arg(lab.site(name).url("/plain?run"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let browser = Running::from(command);
    let done = lab.web().wait_for(PAGE, |hit| hit.path == site::DONE);
    let processes = tree(browser.pid());
    drop(browser);
    assert!(
        all_end(&processes, Duration::from_secs(20)),
        "{processes:?}"
    );
    assert!(done.is_some(), "{:#?}", lab.site(name).hits());

    let outside = lab.capture().outside_tor_since(mark);
    let to = |port: u16| outside.iter().any(|packet| packet.dst_port == Some(port));
    assert!(to(3478), "no STUN in the clear: {outside:#?}");
    assert!(to(53), "no name in the clear: {outside:#?}");
    assert!(!lab.neighbour().visits().is_empty());
}
