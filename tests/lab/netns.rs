//! Network namespaces without names: a file descriptor of this process keeps each one alive, so the kernel removes them
//! with the process, however it ends (network_namespaces(7)).

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// A host of the lab: a network namespace, and for programs that run in it a resolver of its own.
#[derive(Debug)]
pub struct Netns {
    name: &'static str,
    ns: Arc<File>,
    resolv_conf: Option<CString>,
}

impl Netns {
    pub fn new(name: &'static str) -> Result<Self> {
        let ns = thread::spawn(|| -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })
        .join()
        .map_err(|_| anyhow::anyhow!("the thread that makes the namespace of {name} panicked"))?
        .with_context(|| format!("cannot make a network namespace for {name}"))?;
        Ok(Self {
            name,
            ns: Arc::new(ns),
            resolv_conf: None,
        })
    }

    /// Commands in this namespace read `path` as their /etc/resolv.conf.
    pub fn set_resolv_conf(&mut self, path: &Path) -> Result<()> {
        self.resolv_conf = Some(CString::new(path.as_os_str().as_bytes())?);
        Ok(())
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// For `nsenter --net=PATH`, as long as the lab's process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.ns.as_raw_fd()).into()
    }

    /// Identifies the namespace in /proc/PID/ns/net.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.ns.metadata()?.ino())
    }

    /// Runs `f` on a thread inside the namespace. Sockets that it makes stay there, and so do threads that it starts.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                if let Err(error) = setns(self.ns.as_fd(), CloneFlags::CLONE_NEWNET) {
                    panic!(
                        "cannot enter the network namespace of {}: {error}",
                        self.name
                    );
                }
                f()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that runs in the namespace; everything else (user, directory, environment) is the caller's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let ns = Arc::clone(&self.ns);
        let resolv_conf = self.resolv_conf.clone();
        let mut command = Command::new(program);
        let enter = move || {
            setns(ns.as_fd(), CloneFlags::CLONE_NEWNET)?;
            if let Some(file) = &resolv_conf {
                bind_resolv_conf(file)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only, on memory prepared before the fork.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Carries out `ip` commands in the namespace, one a line, and stops at the first that fails (ip(8), -batch).
    pub fn ip(&self, script: &str) -> Result<()> {
        let mut ip = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run ip")?;
        let Some(mut stdin) = ip.stdin.take() else {
            bail!("ip has no standard input")
        };
        stdin.write_all(script.as_bytes())?;
        drop(stdin);
        let output = ip.wait_with_output()?;
        ensure!(
            output.status.success(),
            "ip in {}: {}\n{script}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Sets kernel parameters below /proc/sys/net, which shows each thread its own namespace's values.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (name, value) in settings {
                std::fs::write(format!("/proc/sys/net/{name}"), value)
                    .with_context(|| format!("sysctl net/{name}={value} in {}", self.name))?;
            }
            Ok(())
        })
    }
}

/// Gives the calling process a mount namespace of its own in which `file` is /etc/resolv.conf.
fn bind_resolv_conf(file: &CString) -> io::Result<()> {
    use nix::mount::{MsFlags, mount};
    const NOTHING: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(
        NOTHING,
        "/",
        NOTHING,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        NOTHING,
    )?;
    mount(
        Some(file.as_c_str()),
        "/etc/resolv.conf",
        NOTHING,
        MsFlags::MS_BIND,
        NOTHING,
    )?;
    Ok(())
}
