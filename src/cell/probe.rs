//! What this system can give a cell, found out by doing it in a throw-away process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::CloneFlags;
use nix::unistd::{chroot, geteuid, pipe2};
use serde::{Deserialize, Serialize};

use super::error::{CellError, Failure, On};
use super::init::{Place, child, settle};
use super::launch::Supervisor;
use super::plan::{Fixture, Isolation};
use super::wire::{Event, Request};
use super::{landlock, mount, net, user};

/// Yes, or which step was refused and why.
pub type Answer = Result<(), Failure>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub launcher_is_root: bool,
    /// A user and network namespace, with `lo` up.
    pub namespaces: Answer,
    /// Another user namespace and chroot, which Chromium's own sandbox needs.
    pub chromium_sandbox: Answer,
    /// A file system of the cell's own.
    pub mounts: Answer,
    /// A PID namespace with its own /proc, which Docker refuses.
    pub pid_namespace: Answer,
    /// A host name of its own, which Docker refuses.
    pub hostname: Answer,
    /// 0 for none.
    pub landlock_abi: i32,
    pub seccomp: bool,
    /// Interfaces that are up in the launcher's network namespace, other than `lo`.
    pub interfaces: Vec<String>,
    /// The container that this runs in, where one can be recognised.
    pub container: Option<String>,
    pub limits: Limits,
}

/// Settings of the kernel that restrict user namespaces; `None` where it has no such setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// user.max_user_namespaces
    pub max_user_namespaces: Option<u64>,
    /// kernel.unprivileged_userns_clone (Debian's patch)
    pub unprivileged_userns_clone: Option<u64>,
    /// kernel.apparmor_restrict_unprivileged_userns (Ubuntu's patch)
    pub apparmor_restrict_unprivileged_userns: Option<u64>,
    /// A seccomp filter was already on this process: the container runtime's.
    pub seccomp_filtered: bool,
}

/// Asks in a throw-away process.
pub fn probe() -> Result<Capabilities, CellError> {
    probe_with(Path::new("/proc/self/exe"))
}

/// The same, with `cell-init` found in another binary than the running one (tests).
pub fn probe_with(binary: &Path) -> Result<Capabilities, CellError> {
    let supervisor = Supervisor::start(binary, Stdio::null())?;
    supervisor.send(&Request::Probe, &[])?;
    match supervisor.next()? {
        (Event::Capabilities(found), _) => Ok(*found),
        (other, _) => Err(CellError::Silent(format!("{other:?}"))),
    }
}

/// In `cell-init`: every trial in a child of its own, because none can be undone.
pub(super) fn explore() -> Capabilities {
    let ids = geteuid().is_root().then_some(user::CELL_IDS);
    let shown = [
        Fixture::Show {
            path: "/usr".into(),
        },
        Fixture::Bind {
            source: "/proc".into(),
            target: "/proc".into(),
            writable: true,
        },
    ];
    let place = |fixtures, pid_namespace| Place {
        isolation: Isolation::Namespace,
        become_user: ids,
        fixtures,
        pid_namespace,
        ipc_namespace: true,
    };
    let namespaces = trial(|| settle(&place(&[], false)).and_then(|()| net::raise_loopback()));
    let nested = || {
        // In a container the first of the two is not made; it is refused for the same reasons.
        settle(&place(&[], false))?;
        let ids = user::current();
        user::enter(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET)?;
        user::map_to_self(ids)?;
        chroot("/proc/self/fdinfo").on("chroot to", "/proc/self/fdinfo")
    };
    let own_processes = || {
        settle(&place(&shown, true))?;
        in_child(mount::proc)
    };
    Capabilities {
        launcher_is_root: ids.is_some(),
        chromium_sandbox: trial(nested),
        mounts: trial(|| settle(&place(&shown, false))),
        pid_namespace: trial(own_processes),
        hostname: trial(|| settle(&place(&[], false)).and_then(|()| net::forget_hostname())),
        namespaces,
        landlock_abi: landlock::abi(),
        seccomp: fs::exists("/proc/sys/kernel/seccomp/actions_avail").unwrap_or(false),
        // Not knowing must not count as "none".
        interfaces: net::interfaces()
            .unwrap_or_else(|refused| vec![format!("unknown ({refused})")]),
        container: container(),
        limits: Limits::read(),
    }
}

fn trial(attempt: impl FnOnce() -> Answer) -> Answer {
    in_child(attempt)
}

/// Runs in a forked child and brings its answer back.
fn in_child(attempt: impl FnOnce() -> Answer) -> Answer {
    let (answer, says) = pipe2(OFlag::O_CLOEXEC).on("create", "pipe")?;
    let pid = child(|| {
        let result = attempt();
        tell(&says, &result)
    })?;
    drop(says);
    let mut bytes = Vec::new();
    let read = File::from(answer).read_to_end(&mut bytes);
    nix::sys::wait::waitpid(pid, None).on("wait for", "a trial")?;
    read.on("read", "a trial's answer")?;
    let lost = |_| Err(Failure::new("hear of", "a trial", Errno::UnknownErrno));
    serde_json::from_slice(&bytes).unwrap_or_else(lost)
}

fn tell(says: &OwnedFd, answer: &Answer) -> i32 {
    let Ok(bytes) = serde_json::to_vec(answer) else {
        return 1;
    };
    let file = says.try_clone().map(File::from);
    file.and_then(|mut file| file.write_all(&bytes))
        .map_or(1, |()| 0)
}

/// The marks that container runtimes leave (systemd's src/basic/virt.c knows the same).
fn container() -> Option<String> {
    let exists = |path: &str| fs::exists(path).unwrap_or(false);
    let named = || {
        fs::read_to_string("/run/systemd/container")
            .ok()
            .map(|name| name.trim().to_owned())
    };
    if exists("/.dockerenv") {
        Some("docker".to_owned())
    } else if exists("/run/.containerenv") {
        Some("podman".to_owned())
    } else if exists("/var/run/secrets/kubernetes.io") {
        Some("kubernetes".to_owned())
    } else {
        named()
    }
}

impl Limits {
    fn read() -> Self {
        let number = |path: &str| {
            fs::read_to_string(path)
                .ok()
                .and_then(|text| text.trim().parse().ok())
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restrict_unprivileged_userns: number(
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            ),
            seccomp_filtered: status
                .lines()
                .any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
        }
    }
}

impl Capabilities {
    /// A system that has it all; for tests of what is decided from it.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            launcher_is_root: false,
            namespaces: Ok(()),
            chromium_sandbox: Ok(()),
            mounts: Ok(()),
            pid_namespace: Ok(()),
            hostname: Ok(()),
            landlock_abi: 7,
            seccomp: true,
            interfaces: vec!["eth0".to_owned()],
            container: None,
            limits: Limits::default(),
        }
    }

    /// The same system, where mounting and naming are refused (Docker's default profile).
    #[must_use]
    pub fn without_mounts(mut self) -> Self {
        let refused = Failure::new("unshare", "mount namespace", Errno::EPERM);
        self.mounts = Err(refused.clone());
        self.pid_namespace = Err(refused);
        self.hostname = Err(Failure::new("set", "host name", Errno::EPERM));
        self
    }
}
