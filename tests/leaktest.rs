//! `onioncell leaktest`, as anybody runs it: with a real Chromium, with and without privileges, and
//! where it cannot run.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use serde_json::Value;

const NOBODY: u32 = 65_534;
const ISOLATION_UNAVAILABLE: i32 = 5;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_onioncell"))
}

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
    let leaked: Vec<_> = vectors
        .iter()
        .filter(|vector| vector["verdict"] != "contained")
        .collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
    assert!(vectors.len() >= 45, "{}", vectors.len());
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
}

#[test]
fn every_vector_is_contained_and_the_control_leaks() {
    let output = program()
        .args(["--format", "json", "leaktest"])
        .output()
        .unwrap();
    assert_contained_beside_a_leaking_control(&output);
}

#[test]
fn the_leak_test_needs_no_privileges() {
    if !nix::unistd::geteuid().is_root() {
        // Then the other test ran without them.
        return;
    }
    // The build directory may be closed to others.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("onioncell");
    std::fs::copy(env!("CARGO_BIN_EXE_onioncell"), &copy).unwrap();
    for path in [directory.path(), copy.as_path()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(&copy)
        .args(["--format", "json", "leaktest"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .gid(NOBODY)
        .uid(NOBODY)
        .output()
        .unwrap();
    assert_contained_beside_a_leaking_control(&output);
}

#[test]
fn without_namespaces_it_names_the_option_and_exits_5() {
    // user_namespaces(7): limits written in a namespace hold in that namespace.
    let script =
        "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" --format human leaktest";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_onioncell"))
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
