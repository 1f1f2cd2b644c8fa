//! What a cell is, as plain data. [`Plan::for_chromium`] builds it from its inputs alone; `cell-init` carries it out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::probe::Capabilities;

/// Where the profile and the private temporary directory appear when the cell has a file system of its own.
const INSIDE: &str = "/run/onioncell";

/// Programs and libraries. What a system does not have is left out.
const PROGRAMS: &[&str] = &["/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"];

/// Of /etc, what linking, fonts and certificates need. Not machine-id, hosts or resolv.conf: they
/// tell one machine from another.
const ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/mime.types",
    "/etc/pki",
    "/etc/ssl",
];

/// Of /etc, what is written afresh in a file system of the cell's own, and read as it is elsewhere.
const ETC_ACCOUNTS: &[&str] = &["/etc/group", "/etc/nsswitch.conf", "/etc/passwd"];

/// Where Chromium and Chrome look for managed policies (components/policy, `kPolicyPath`).
const POLICIES: &[&str] = &["/etc/chromium/policies", "/etc/opt/chrome/policies"];

/// Other things that are read. Of /sys only the processors: /sys/devices also has the network cards' addresses.
const READABLE: &[&str] = &["/sys/devices/system/cpu", "/var/cache/fontconfig"];

const DEVICES: &[&str] = &["/dev/full", "/dev/random", "/dev/urandom", "/dev/zero"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// User and network namespace of the cell's own.
    Namespace,
    /// The container has no interface but `lo`: no namespace is made.
    Container,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// An X display for a visible window: the only socket besides the gateway's that a cell may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Display {
    /// As in $DISPLAY (":0").
    pub name: String,
    /// Under /tmp/.X11-unix.
    pub socket: PathBuf,
    pub xauthority: Option<PathBuf>,
}

/// What may be done beneath a path (landlock(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Execute,
    Read,
    Write,
    /// Chromium writes uid_map, setgroups and oom_score_adj of its own processes.
    Proc,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub path: PathBuf,
    pub access: Access,
    /// May be missing on this system.
    pub optional: bool,
}

/// One thing in the cell's own file system, which holds nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fixture {
    /// Read-only, where the outside has it; left out where it has not.
    Show {
        path: PathBuf,
    },
    /// The same under another name.
    Bind {
        source: PathBuf,
        target: PathBuf,
        writable: bool,
    },
    File {
        path: PathBuf,
        text: String,
    },
    /// Memory of the cell's own.
    Memory {
        path: PathBuf,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub isolation: Isolation,
    /// Whom to become first; set when the launcher is root.
    pub become_user: Option<Ids>,
    pub port: u16,
    pub program: PathBuf,
    /// Without the program's name.
    pub argv: Vec<String>,
    /// All of it: nothing is inherited.
    pub env: Vec<(String, String)>,
    /// The profile and the private temporary directory, as the program sees them.
    pub profile: PathBuf,
    pub temp: PathBuf,
    pub grants: Vec<Grant>,
    /// A file system (mount namespace) and processes (PID namespace) of its own; none where they cannot be had.
    pub fixtures: Vec<Fixture>,
    pub pid_namespace: bool,
    /// The machine's name is hidden.
    pub own_hostname: bool,
    pub chromium_sandbox: bool,
    pub display: Option<Display>,
}

/// What [`Plan::for_chromium`] is given.
#[derive(Debug, Clone)]
pub struct Chromium<'a> {
    /// Absolute, without symlinks.
    pub program: &'a Path,
    pub switches: &'a [String],
    /// Absolute; existing; owned by the user that the cell runs as (see [`super::give`]).
    pub profile: &'a Path,
    pub temp: &'a Path,
    pub port: u16,
    /// A directory with `managed/…json`, shown to Chromium as its policy directory.
    pub policies: Option<&'a Path>,
    pub display: Option<Display>,
    pub chromium_sandbox: bool,
}

impl Plan {
    /// Adds the three switches that depend on the cell: where the profile is, whether shared memory
    /// is the cell's own, and whether Chromium's sandbox is off.
    #[must_use]
    pub fn for_chromium(inputs: &Chromium<'_>, isolation: Isolation, can: &Capabilities) -> Self {
        let own_files = isolation == Isolation::Namespace && can.mounts.is_ok();
        let (profile, temp) = if own_files {
            (
                Path::new(INSIDE).join("profile"),
                Path::new(INSIDE).join("tmp"),
            )
        } else {
            (inputs.profile.to_owned(), inputs.temp.to_owned())
        };
        let mut argv = inputs.switches.to_vec();
        argv.push(format!("--user-data-dir={}", profile.display()));
        if !own_files {
            argv.push("--disable-dev-shm-usage".to_owned());
        }
        if !inputs.chromium_sandbox {
            argv.push("--no-sandbox".to_owned());
        }
        Self {
            isolation,
            become_user: can.launcher_is_root.then_some(super::user::CELL_IDS),
            port: inputs.port,
            program: inputs.program.to_owned(),
            argv,
            env: environment(&profile, &temp, inputs.display.as_ref()),
            grants: grants(inputs, &profile, &temp, own_files),
            fixtures: if own_files {
                fixtures(inputs, &profile, &temp)
            } else {
                Vec::new()
            },
            pid_namespace: own_files && can.pid_namespace.is_ok(),
            // An X server's cookies are filed under the host's name (Xau(3)).
            own_hostname: isolation == Isolation::Namespace
                && can.hostname.is_ok()
                && inputs.display.is_none(),
            profile,
            temp,
            chromium_sandbox: inputs.chromium_sandbox,
            display: inputs.display.clone(),
        }
    }

    /// Whether Chromium sees only the files it was given, and no socket by path name.
    #[must_use]
    pub fn own_files(&self) -> bool {
        !self.fixtures.is_empty()
    }

    /// What this cell does not close that a better equipped system would. Said by `doctor` and in the log.
    #[must_use]
    pub fn not_covered(&self, can: &Capabilities) -> Vec<&'static str> {
        let mut gaps = Vec::new();
        if !self.own_files() {
            gaps.push("no mount namespace: managed policies apply only if installed in /etc/chromium/policies");
            if can.landlock_abi < 9 {
                gaps.push("no mount namespace, and Landlock before ABI 9: unix sockets by path name can be reached");
            }
        }
        if self.isolation == Isolation::Container && can.landlock_abi < 4 {
            gaps.push("Landlock before ABI 4: other TCP ports on this container's loopback can be reached");
        }
        if !self.pid_namespace && can.landlock_abi < 6 {
            gaps.push("Landlock before ABI 6 and no PID namespace: processes of the same user can be signalled");
        }
        if !self.own_hostname && self.display.is_none() {
            gaps.push("no host name of its own: Chromium can read this machine's");
        }
        if !self.chromium_sandbox {
            gaps.push("Chromium's own sandbox is off: pages run with all that the cell allows");
        }
        gaps
    }
}

fn environment(profile: &Path, temp: &Path, display: Option<&Display>) -> Vec<(String, String)> {
    let inside = |name: &str| profile.join(name).display().to_string();
    let mut env = vec![
        ("HOME", profile.display().to_string()),
        ("TMPDIR", temp.display().to_string()),
        ("XDG_RUNTIME_DIR", temp.display().to_string()),
        ("XDG_CONFIG_HOME", inside(".config")),
        ("XDG_CACHE_HOME", inside(".cache")),
        ("XDG_DATA_HOME", inside(".local/share")),
        // The same for everyone: what a page can tell of the machine starts here.
        ("LANG", "en_US.UTF-8".to_owned()),
        ("LANGUAGE", "en_US".to_owned()),
        ("TZ", "UTC".to_owned()),
        // Without an address GLib would start a bus of its own (g_dbus_address_get_for_bus_sync).
        ("DBUS_SESSION_BUS_ADDRESS", "disabled:".to_owned()),
        ("DBUS_SYSTEM_BUS_ADDRESS", "disabled:".to_owned()),
    ];
    if let Some(Display {
        name, xauthority, ..
    }) = display
    {
        env.push(("DISPLAY", name.clone()));
        let authority = xauthority.iter();
        env.extend(authority.map(|path| ("XAUTHORITY", path.display().to_string())));
    }
    env.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn grants(inputs: &Chromium<'_>, profile: &Path, temp: &Path, own_files: bool) -> Vec<Grant> {
    let grant = |access, optional| {
        move |path: &Path| Grant {
            path: path.to_owned(),
            access,
            optional,
        }
    };
    let paths = |list: &'static [&'static str]| list.iter().map(Path::new);
    let mut grants: Vec<Grant> = Vec::new();
    grants.extend(paths(PROGRAMS).map(grant(Access::Execute, true)));
    grants.extend(own_directory(inputs.program).map(grant(Access::Execute, false)));
    grants.extend(
        paths(ETC)
            .chain(paths(ETC_ACCOUNTS))
            .chain(paths(POLICIES))
            .map(grant(Access::Read, true)),
    );
    grants.extend(
        paths(READABLE)
            .chain(paths(DEVICES))
            .map(grant(Access::Read, true)),
    );
    grants.extend([Path::new("/dev/null"), profile, temp].map(grant(Access::Write, false)));
    if own_files {
        grants.push(grant(Access::Write, false)(Path::new("/dev/shm")));
    }
    grants.push(grant(Access::Proc, false)(Path::new("/proc")));
    if let Some(Display {
        socket, xauthority, ..
    }) = &inputs.display
    {
        grants.push(grant(Access::Write, false)(socket));
        grants.extend(xauthority.as_deref().map(grant(Access::Read, false)));
    }
    grants
}

fn fixtures(inputs: &Chromium<'_>, profile: &Path, temp: &Path) -> Vec<Fixture> {
    let show = |path: &Path| Fixture::Show {
        path: path.to_owned(),
    };
    let bind = |source: &Path, target: &Path, writable| Fixture::Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        writable,
    };
    let file = |path: &str, text: &str| Fixture::File {
        path: path.into(),
        text: text.to_owned(),
    };
    let mut fixtures: Vec<Fixture> = Vec::new();
    for list in [PROGRAMS, ETC, READABLE, DEVICES, &["/dev/null"]] {
        fixtures.extend(list.iter().map(|path| show(Path::new(path))));
    }
    fixtures.extend(own_directory(inputs.program).map(show));
    fixtures.extend([
        file("/etc/passwd", ""),
        file("/etc/group", ""),
        file(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n",
        ),
        Fixture::Memory {
            path: "/dev/shm".into(),
        },
        // Writable for uid_map and oom_score_adj; a PID namespace covers it with its own.
        bind(Path::new("/proc"), Path::new("/proc"), true),
        bind(inputs.profile, profile, true),
        bind(inputs.temp, temp, true),
    ]);
    if let Some(policies) = inputs.policies {
        fixtures.extend(
            POLICIES
                .iter()
                .map(|path| bind(policies, Path::new(path), false)),
        );
    }
    if let Some(Display {
        socket, xauthority, ..
    }) = &inputs.display
    {
        fixtures.push(show(socket));
        fixtures.extend(xauthority.as_deref().map(show));
    }
    fixtures
}

/// The directory of a program that is not among the system's (`--chromium /opt/…/chrome`).
fn own_directory(program: &Path) -> Option<&Path> {
    let shown = PROGRAMS.iter().any(|path| program.starts_with(path));
    if shown { None } else { program.parent() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(isolation: Isolation, can: &Capabilities) -> Plan {
        let inputs = Chromium {
            program: Path::new("/usr/lib/chromium/chromium"),
            switches: &["--headless=new".to_owned()],
            profile: Path::new("/root/w/.browser_profile"),
            temp: Path::new("/tmp/cell-1"),
            port: 1080,
            policies: Some(Path::new("/tmp/cell-policies")),
            display: None,
            chromium_sandbox: true,
        };
        Plan::for_chromium(&inputs, isolation, can)
    }

    fn path_of(fixture: &Fixture) -> &Path {
        match fixture {
            Fixture::Show { path } | Fixture::File { path, .. } | Fixture::Memory { path } => path,
            Fixture::Bind { target, .. } => target,
        }
    }

    #[test]
    fn with_a_file_system_of_its_own_the_cell_never_sees_where_the_profile_is() {
        let plan = plan(Isolation::Namespace, &Capabilities::everything());
        let names_of_host = |text: &str| text.contains("/root/w") || text.contains("/tmp/cell-1");
        assert!(plan.own_files() && plan.pid_namespace);
        assert!(!plan.argv.iter().any(|arg| names_of_host(arg)));
        assert!(!plan.env.iter().any(|(_, value)| names_of_host(value)));
        assert!(
            plan.argv
                .contains(&"--user-data-dir=/run/onioncell/profile".to_owned())
        );
        assert!(!plan.argv.contains(&"--disable-dev-shm-usage".to_owned()));
        assert_eq!(plan.not_covered(&Capabilities::everything()), [""; 0]);
    }

    #[test]
    fn only_profile_temp_shared_memory_and_null_are_writable() {
        let plan = plan(Isolation::Namespace, &Capabilities::everything());
        let writable: Vec<_> = plan
            .grants
            .iter()
            .filter(|g| g.access == Access::Write)
            .map(|g| &*g.path)
            .collect();
        assert_eq!(
            writable,
            [
                "/dev/null",
                "/run/onioncell/profile",
                "/run/onioncell/tmp",
                "/dev/shm"
            ]
            .map(Path::new)
        );
    }

    #[test]
    fn home_run_and_the_machines_identity_are_not_among_the_fixtures() {
        let plan = plan(Isolation::Namespace, &Capabilities::everything());
        for hidden in [
            "/home",
            "/root",
            "/tmp",
            "/var/lib",
            "/etc/machine-id",
            "/etc/hosts",
            "/sys/class",
            "/dev/dri",
        ] {
            assert!(
                !plan.fixtures.iter().any(|f| path_of(f).starts_with(hidden)),
                "{hidden}"
            );
            assert!(
                !plan
                    .fixtures
                    .iter()
                    .any(|f| Path::new(hidden).starts_with(path_of(f))),
                "{hidden}"
            );
        }
    }

    #[test]
    fn without_mounts_the_paths_are_the_hosts_and_shared_memory_is_not_used() {
        let can = Capabilities::everything().without_mounts();
        let plan = plan(Isolation::Namespace, &can);
        assert!(!plan.own_files() && !plan.pid_namespace);
        assert_eq!(plan.profile, Path::new("/root/w/.browser_profile"));
        assert!(plan.argv.contains(&"--disable-dev-shm-usage".to_owned()));
        assert!(!plan.grants.iter().any(|g| g.path == Path::new("/dev/shm")));
        assert_eq!(plan.not_covered(&can).len(), 3);
    }

    #[test]
    fn container_isolation_makes_no_namespaces() {
        let plan = plan(Isolation::Container, &Capabilities::everything());
        assert!(!plan.own_files() && !plan.pid_namespace);
    }

    #[test]
    fn the_sandbox_is_turned_off_only_by_its_own_input() {
        let on = plan(Isolation::Container, &Capabilities::everything());
        assert!(!on.argv.contains(&"--no-sandbox".to_owned()));
    }

    #[test]
    fn a_program_outside_the_system_directories_brings_its_own() {
        assert_eq!(
            own_directory(Path::new("/opt/google/chrome/chrome")),
            Some(Path::new("/opt/google/chrome"))
        );
        assert_eq!(own_directory(Path::new("/usr/lib/chromium/chromium")), None);
        assert_eq!(
            own_directory(Path::new("/usrx/chrome")),
            Some(Path::new("/usrx"))
        );
    }
}
