//! Runs the program in the lab's home, the way a user would.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use crate::lab::capture::Mark;
use crate::lab::{self, Lab, Options};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_onioncell");

static LAB: LazyLock<Option<Lab>> =
    LazyLock::new(|| lab::required().then(|| Lab::start(Options::default())));

/// The lab that all tests share, or `None` where it cannot be had (visibly skipped).
pub fn shared_lab() -> Option<&'static Lab> {
    LAB.as_ref()
}

/// Every packet that left home since the mark went to a Tor relay.
pub fn assert_only_tor(lab: &Lab, mark: Mark) {
    let outside = lab.capture().outside_tor_since(mark);
    assert!(outside.is_empty(), "left home outside Tor: {outside:#?}");
}

/// A user at home: a workspace and a Tor state of their own.
pub struct User<'a> {
    lab: &'a Lab,
    directory: tempfile::TempDir,
}

/// What a run printed.
#[derive(Debug)]
#[expect(dead_code, reason = "stderr is for the messages of failed assertions")]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The reply, which must be one JSON object and nothing else.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The reply of a run that must have succeeded.
    pub fn ok(&self) -> Value {
        let reply = self.json();
        assert!(self.status == 0 && reply["ok"] == true, "{self:?}");
        reply
    }

    /// Code and message of a run that must have failed.
    pub fn error(&self) -> (String, String) {
        let reply = self.json();
        assert!(self.status != 0 && reply["ok"] == false, "{self:?}");
        let text = |key: &str| reply["error"][key].as_str().unwrap().to_owned();
        (text("code"), text("message"))
    }
}

impl<'a> User<'a> {
    pub fn new(lab: &'a Lab) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("workspace")).unwrap();
        Self { lab, directory }
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn ledger(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("ledger")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// `onioncell` over the lab's Tor, JSON replies, with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare(Path::new(PROGRAM));
        command
            .arg("--json")
            .arg("--tor-network")
            .arg(self.lab.tor_network_toml())
            .arg("--tor-state")
            .arg(self.path("tor"))
            .arg("--ledger")
            .arg(self.path("ledger"))
            .args(arguments);
        command
    }

    /// A program in the lab's home, with nothing of the tester's environment.
    pub fn bare(&self, program: &Path) -> Command {
        let mut command = self.lab.home().command(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("ONIONCELL_WORKSPACE", self.workspace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.command(arguments).output().unwrap())
    }

    pub fn start(&self, arguments: &[&str]) -> Running {
        Running(Some(self.command(arguments).spawn().unwrap()))
    }
}

/// A run that goes on while the test does something. Killed when dropped.
pub struct Running(Option<Child>);

impl Running {
    pub fn from(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.as_ref().unwrap().id()).unwrap()
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// What it printed, once it has ended.
    pub fn finish(mut self) -> Ran {
        Ran::new(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
