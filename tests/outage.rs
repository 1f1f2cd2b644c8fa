//! Everything that goes away in mid-load: requests fail, and not one packet takes another way.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::{self, Lab, Options};
use crate::user::{PROGRAM, Running, User, assert_only_tor, shared_lab};

/// Longer than any of these may take; a hang fails instead of blocking the suite.
const BOUND: Duration = Duration::from_secs(45);

/// Every process below `pid`, itself included.
pub fn tree(pid: i32) -> HashSet<i32> {
    let mut found = HashSet::from([pid]);
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            for child in children.unwrap_or_default().split_whitespace() {
                let child = child.parse().unwrap();
                if found.insert(child) {
                    next.push(child);
                }
            }
        }
    }
    found
}

/// Waits for processes to end by their pidfds; false if one is still there at the deadline.
pub fn all_end(pids: &HashSet<i32>, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    pids.iter().all(|&pid| {
        // SAFETY: pidfd_open(2) takes a pid and flags and returns a descriptor that we own.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return true;
        }
        let mut poll = libc::pollfd {
            fd: i32::try_from(fd).unwrap(),
            events: libc::POLLIN,
            revents: 0,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        // SAFETY: one valid pollfd; the descriptor is closed right after.
        unsafe {
            let ready = libc::poll(&raw mut poll, 1, i32::try_from(left.as_millis()).unwrap());
            libc::close(poll.fd);
            ready == 1
        }
    })
}

#[test]
fn tor_stopped_in_mid_load_fails_the_page_and_nothing_goes_round_it() {
    if !lab::required() {
        return;
    }
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    let site = lab.site("endless.site.example");
    let user = User::new(&lab);
    let mark = lab.capture().mark();
    let arguments = [
        "--allow",
        "endless.site.example",
        "navigate",
        &site.url("/endless"),
    ];
    let running = user.start(&[&arguments[..], &["--timeout-ms", "20000"]].concat());
    let loading = lab.web().wait_for(BOUND, |hit| hit.path == "/endless");
    assert!(loading.is_some(), "the page was never asked for");

    let began = Instant::now();
    lab.stop_tor_network();
    let (code, message) = running.finish().error();
    assert!(
        matches!(code.as_str(), "op_failed" | "timeout"),
        "{code}: {message}"
    );
    assert!(began.elapsed() < BOUND);
    assert_only_tor(&lab, mark);

    // And a new run fails too, with its own exit status.
    let again = user.run(&[
        "--tor-timeout",
        "5",
        "--allow",
        "endless.site.example",
        "navigate",
        &site.url("/"),
    ]);
    assert_eq!(again.error().0, "tor_unavailable");
    assert_eq!(again.status, 4);
    assert_only_tor(&lab, mark);
}

#[test]
fn a_gateway_killed_in_mid_load_takes_the_connection_with_it() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("severed.site.example");
    let user = User::new(lab);
    let socket = user.path("gateway.sock");
    let listen = format!("unix:{}", socket.display());
    let mark = lab.capture().mark();
    let mut gateway = user.start(&[
        "--allow",
        "severed.site.example",
        "gateway",
        "--listen",
        &listen,
    ]);
    let stderr = gateway.child().stderr.take().unwrap();
    let ready = BufReader::new(stderr)
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("ready"));
    assert!(ready, "the gateway did not come up");

    let mut browser = user.bare(Path::new(PROGRAM));
    browser.args([
        "--json",
        "--gateway",
        &listen,
        "--allow",
        "severed.site.example",
        "navigate",
    ]);
    browser
        .arg(site.url("/endless"))
        .args(["--timeout-ms", "20000"]);
    let browser = Running::from(browser);
    let loading = lab
        .web()
        .wait_for(BOUND, |hit| hit.host == "severed.site.example");
    assert!(loading.is_some(), "the page was never asked for");

    gateway.child().kill().unwrap();
    let began = Instant::now();
    let (code, _) = browser.finish().error();
    assert!(matches!(code.as_str(), "op_failed" | "timeout"), "{code}");
    assert!(began.elapsed() < BOUND);
    assert_only_tor(lab, mark);
}

#[test]
fn a_killed_launcher_takes_the_whole_browser_with_it() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("orphan.site.example");
    let user = User::new(lab);
    let mark = lab.capture().mark();
    let mut running = user.start(&[
        "--allow",
        "orphan.site.example",
        "navigate",
        &site.url("/endless"),
    ]);
    let loading = lab
        .web()
        .wait_for(BOUND, |hit| hit.host == "orphan.site.example");
    assert!(loading.is_some(), "the page was never asked for");
    let processes = tree(running.pid());
    // The control: Chromium is there, with its helpers.
    assert!(processes.len() > 5, "{processes:?}");

    running.child().kill().unwrap();
    running.child().wait().unwrap();
    assert!(
        all_end(&processes, Duration::from_secs(10)),
        "some of {processes:?} live on"
    );
    assert_only_tor(lab, mark);

    // The profile it left can be opened.
    user.run(&["--allow", "orphan.site.example", "navigate", &site.url("/")])
        .ok();
}

#[test]
fn a_profile_whose_runs_were_killed_five_times_opens_again_at_once() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("killed.site.example");
    let user = User::new(lab);
    let go = ["--allow", "killed.site.example", "navigate"];
    let lock = user
        .workspace()
        .join(".browser_profile/chromium/SingletonLock");
    for run in 0..5 {
        let path = format!("/endless/{run}");
        let mut running = user.start(&[&go[..], &[&site.url(&path)]].concat());
        // Asked for: so this run has opened the profile that the last one left.
        let loading = lab.web().wait_for(BOUND, |hit| {
            hit.host == "killed.site.example" && hit.path == path
        });
        assert!(
            loading.is_some(),
            "run {run} did not get as far as its page"
        );
        running.child().kill().unwrap();
        // Nobody waits for what it leaves: the next one starts at once.
        running.child().wait().unwrap();
        // The control: Chromium's own lock is still there, in the name of a process that is not.
        assert!(lock.symlink_metadata().is_ok(), "run {run}");
    }
    user.run(&[&go[..], &[&site.url("/")]].concat()).ok();
}

#[test]
fn sigterm_ends_the_run_in_order() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("term.site.example");
    let user = User::new(lab);
    let running = user.start(&[
        "--allow",
        "term.site.example",
        "navigate",
        &site.url("/endless"),
    ]);
    lab.web()
        .wait_for(BOUND, |hit| hit.host == "term.site.example")
        .unwrap();
    let processes = tree(running.pid());
    // SAFETY: signals a child of ours.
    unsafe { libc::kill(running.pid(), libc::SIGTERM) };
    let (_, message) = running.finish().error();
    assert_eq!(message, "navigate ended by SIGTERM");
    assert!(
        all_end(&processes, Duration::from_secs(5)),
        "some of {processes:?} live on"
    );
}
