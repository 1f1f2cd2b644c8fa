//! What the caller reads when something is wrong, and what is left behind: nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::user::{PROGRAM, User, shared_lab};

/// Runs without a lab: nothing here gets as far as the network.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .env_clear()
        .env("HOME", home.path())
        .env("ONIONCELL_WORKSPACE", home.path())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

fn error(arguments: &[&str]) -> (i32, String, String) {
    let (status, stdout, stderr) = run(&[&["--json"], arguments].concat());
    let reply: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    let text = |key: &str| reply["error"][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(reply["ok"], false);
    (status, text("code"), text("message"))
}

#[test]
fn unknown_flags_and_ops_are_refused_with_what_is_valid() {
    for arguments in [
        &["--no-such-flag", "doctor"][..],
        &["fly"],
        &["navigate"],
        &[],
    ] {
        let (status, _, stderr) = run(arguments);
        assert_eq!(status, 2, "{arguments:?}");
        assert!(stderr.contains("Usage"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_bad_policy_refuses_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    let path = file.to_str().unwrap();
    let go = ["--policy", path, "navigate", "http://a.com/"];
    assert!(error(&go).2.contains(path), "missing file");
    for text in [
        "default_action = ",
        "defualt_action = \"deny\"",
        "allowed_origins = [\"*\"]",
        "\u{0}",
    ] {
        std::fs::write(&file, text).unwrap();
        let (status, code, message) = error(&go);
        assert_eq!((status, code.as_str()), (2, "usage"), "{text}");
        assert!(message.contains(path), "{text}: {message}");
    }
    assert_eq!(
        error(&["--allow", "*.com", "navigate", "http://a.com/"]).0,
        2
    );
}

#[test]
fn a_bad_network_file_refuses_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("network.toml");
    let path = file.to_str().unwrap();
    let go = [
        "--allow",
        "a.com",
        "--tor-network",
        path,
        "navigate",
        "http://a.com/",
    ];
    for text in [
        None,
        Some("tor_network = "),
        Some("[no_such_section]\nx = 1\n"),
    ] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let (status, _, message) = error(&go);
        assert!(
            status == 2 && message.contains(path),
            "{text:?}: {status} {message}"
        );
    }
}

#[test]
fn direct_needs_its_flag_and_says_so() {
    let (status, _, message) = error(&[
        "--egress",
        "direct",
        "--allow",
        "a.com",
        "navigate",
        "http://a.com/",
    ]);
    assert!(status == 2 && message.contains("no Tor"), "{message}");
}

#[test]
fn a_missing_or_false_chromium_is_named() {
    for program in ["/nonexistent/chromium", "/bin/true", "/etc/passwd"] {
        let (status, code, message) = error(&[
            "--chromium",
            program,
            "--allow",
            "a.com",
            "--egress",
            "socks5://127.0.0.1:9",
            "navigate",
            "http://a.com/",
        ]);
        assert_eq!((status, code.as_str()), (1, "op_failed"), "{message}");
        assert!(message.contains(program), "{message}");
    }
}

#[test]
fn a_chromium_that_crashes_at_its_start_is_reported_with_its_last_words() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("chromium");
    let script = "#!/bin/sh\n[ \"$1\" = --product-version ] && echo 156.0.0.0 && exit\necho 'no luck today' >&2\nexit 7\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let began = Instant::now();
    let (status, code, message) = error(&[
        "--chromium",
        program.to_str().unwrap(),
        "--egress",
        "socks5://127.0.0.1:9",
        "--allow",
        "a.com",
        "navigate",
        "http://a.com/",
    ]);
    assert_eq!((status, code.as_str()), (1, "crashed"), "{message}");
    assert!(
        message.contains("no luck today") && message.contains("exit status 7"),
        "{message}"
    );
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_missing_workspace_is_named() {
    let (status, _, message) = error(&[
        "--workspace",
        "/no/such/dir",
        "--allow",
        "a.com",
        "navigate",
        "http://a.com/",
    ]);
    assert!(status == 2 && message.contains("/no/such/dir"), "{message}");
}

#[test]
fn a_path_outside_the_workspace_is_refused_before_anything_starts() {
    let began = Instant::now();
    let (status, code, message) = error(&[
        "--allow",
        "a.com",
        "screenshot",
        "--url",
        "http://a.com/",
        "--path",
        "../x.png",
    ]);
    assert_eq!((status, code.as_str()), (3, "path_denied"));
    assert_eq!(message, "path denied: ../x.png is outside the workspace");
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn an_op_without_a_page_says_how_to_name_one() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    let (_, message) = user.run(&["--allow", "a.com", "extract_text"]).error();
    assert_eq!(
        message,
        "extract_text needs a URL: pass `url=...` or call `operation=\"navigate\"` first"
    );
}

#[test]
fn no_network_at_all_is_tor_unavailable_within_bounded_time() {
    if !crate::lab::required() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = Command::new("unshare")
        .args([
            "--net",
            PROGRAM,
            "--json",
            "--tor-timeout",
            "3",
            "--allow",
            "a.com",
            "navigate",
            "http://a.com/",
        ])
        .env("HOME", home.path())
        .env("ONIONCELL_WORKSPACE", home.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_state_directory_that_others_can_write_is_refused() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    let state = user.path("tor");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
    let ran = user.run(&[
        "--allow",
        "site.example",
        "navigate",
        "http://site.example/",
    ]);
    let (_, message) = ran.error();
    assert!(message.contains(state.to_str().unwrap()), "{message}");
}

#[test]
fn a_full_disk_is_an_error_and_not_a_hang() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    // A file system of one megabyte, in a mount namespace that ends with the run.
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs {0} && exec {PROGRAM} --json --tor-network {1} --tor-state {2} \
         --workspace {0} --allow site.example navigate http://site.example/",
        user.workspace().display(),
        lab.tor_network_toml().display(),
        user.path("tor").display(),
    );
    let mut command = user.bare(std::path::Path::new("unshare"));
    let began = Instant::now();
    let output = command
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap();
    let reply: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(began.elapsed() < Duration::from_secs(60));
    // Chromium may get by with very little; what it must not do is hang or lose the reply.
    assert_eq!(reply["ok"].as_bool().unwrap(), output.status.success());
}

#[test]
fn nothing_is_left_behind_by_an_ephemeral_run() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    let temp = user.path("tmp");
    std::fs::create_dir(&temp).unwrap();
    let mut command = user.command(&[
        "--ephemeral",
        "--allow",
        "site.example",
        "navigate",
        "http://site.example/",
    ]);
    let output = command.env("TMPDIR", &temp).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let left = |path| std::fs::read_dir(path).unwrap().count();
    assert_eq!((left(&temp), left(&user.workspace())), (0, 0));
}
