//! The stage of the escape tests: a launcher process (root or not) with a cell, and around it a
//! network with an outside and a neighbour, all in network namespaces of the test's own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use nix::sched::{CloneFlags, unshare};
use onioncell::cell::{self, CELL_IDS, Capabilities, Chromium, Display, Isolation, Plan};
use tempfile::TempDir;

pub(crate) const OUTSIDE: &str = "198.51.100.2";
pub(crate) const NEIGHBOUR: &str = "203.0.113.2";
const BINARY: &str = env!("CARGO_BIN_EXE_onioncell");
const CHROMIUM: &str = "/usr/lib/chromium/chromium";

/// How the test's cell is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All that this kernel has.
    Full,
    /// As where mounting is refused (Docker).
    NoMounts,
    /// `--network none`: no namespaces.
    Container,
}

/// Who launches.
pub(crate) const ROOT: u32 = 0;
pub(crate) const USER: u32 = 1000;

/// Skips, visibly, where the test cannot be had; in CI that is a failure.
pub(crate) fn possible() -> bool {
    let missing = if !nix::unistd::geteuid().is_root() {
        Some("needs root, to make networks and to become both users")
    } else if !Path::new(CHROMIUM).exists() {
        Some("needs Chromium")
    } else {
        None
    };
    if let Some(reason) = missing {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
        eprintln!("SKIPPED: {reason}");
    }
    missing.is_none()
}

/// Moves this test's thread into a network of its own, with hosts that answer on TCP and UDP port 7.
pub(crate) fn network() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link set lo up");
    for (link, ours, host) in [
        ("out", "198.51.100.1/24", OUTSIDE),
        ("near", "203.0.113.1/24", NEIGHBOUR),
    ] {
        ip(&format!("link add {link} type veth peer name peer-{link}"));
        ip(&format!("addr add {ours} dev {link}"));
        ip(&format!("link set {link} up"));
        echo_host(host, &format!("peer-{link}"));
    }
    // The launcher's own other ports.
    echo("127.0.0.1");
}

/// A network with nothing but `lo`, as in a container started with `--network none`.
pub(crate) fn no_network() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link set lo up");
    echo("127.0.0.1");
}

fn echo_host(address: &'static str, link: &str) {
    let (says, heard) = mpsc::channel();
    let (ready, go) = mpsc::channel();
    let device = link.to_owned();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        says.send(nix::unistd::gettid()).unwrap();
        go.recv().unwrap();
        ip("link set lo up");
        ip(&format!("addr add {address}/24 dev {device}"));
        ip(&format!("link set {device} up"));
        echo(address);
        says.send(nix::unistd::gettid()).unwrap();
        // The namespace lives as long as its sockets' threads.
    });
    let thread = heard.recv().unwrap();
    ip(&format!("link set {link} netns {thread}"));
    ready.send(()).unwrap();
    heard.recv().unwrap();
}

fn echo(address: &str) {
    let tcp = TcpListener::bind((address, 7)).unwrap();
    let udp = UdpSocket::bind((address, 7)).unwrap();
    std::thread::spawn(move || tcp.incoming().for_each(drop));
    std::thread::spawn(move || {
        while let Ok((_, from)) = udp.recv_from(&mut [0; 64]) {
            let _ = udp.send_to(b"echo", from);
        }
    });
}

fn ip(arguments: &str) {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// A launcher with its directories: `home` stands for what must not be read.
#[derive(Debug)]
pub(crate) struct Stage {
    root: TempDir,
    pub(crate) uid: u32,
    pub(crate) kind: Kind,
}

impl Stage {
    pub(crate) fn new(uid: u32, kind: Kind) -> Self {
        let root = TempDir::new().unwrap();
        let stage = Self { root, uid, kind };
        // Beneath a directory that only the launcher can enter; without mounts the cell's user must get through.
        let closed = uid != ROOT || kind == Kind::Full;
        for (name, mode) in [
            ("", 0o755),
            ("bin", 0o755),
            ("w", if closed { 0o700 } else { 0o711 }),
        ] {
            stage.directory(name, uid, mode);
        }
        let cell = if uid == ROOT { CELL_IDS.uid } else { uid };
        for (name, owner) in [
            ("w/profile", cell),
            ("w/tmp", cell),
            ("w/workspace", uid),
            ("w/tor", uid),
            ("w/home", uid),
        ] {
            stage.directory(name, owner, 0o700);
        }
        for name in ["w/workspace/file", "w/tor/state", "w/home/.secret"] {
            fs::write(stage.path(name), "secret").unwrap();
            chown(stage.path(name), Some(uid), Some(uid)).unwrap();
        }
        for (name, from) in [
            ("bin/probe", std::env::current_exe().unwrap()),
            ("bin/onioncell", BINARY.into()),
        ] {
            if fs::hard_link(&from, stage.path(name)).is_err() {
                fs::copy(&from, stage.path(name)).unwrap();
            }
        }
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.root.path().to_owned()
        } else {
            self.root.path().join(name)
        }
    }

    fn directory(&self, name: &str, uid: u32, mode: u32) {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// This test binary, as this stage's user, doing one thing.
    fn run(&self, role: &str) -> Command {
        let mut command = Command::new("setpriv");
        if self.uid != ROOT {
            command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]);
        }
        command.arg(self.path("bin/probe")).args([
            "--exact",
            role,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// The probe, outside a cell: the control.
    pub(crate) fn outside(&self) -> Talk {
        Talk::start(self.run("escape::probe_program").env("PROBE_OUTSIDE", "1"))
    }

    /// The probe in a cell, below a launcher.
    pub(crate) fn inside(&self) -> Talk {
        self.launch("probe")
    }

    pub(crate) fn chromium(&self) -> Talk {
        self.launch(CHROMIUM)
    }

    pub(crate) fn launch(&self, program: &str) -> Talk {
        let mut command = self.run("escape::launcher");
        command
            .env("STAGE", self.root.path())
            .env("KIND", format!("{:?}", self.kind))
            .env("PROGRAM", program);
        Talk::start(&mut command)
    }
}

/// A conversation in lines, those of the other side marked with `@` among libtest's.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) process: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    fn start(command: &mut Command) -> Self {
        let mut process = command.spawn().unwrap();
        let (to, from) = (
            process.stdin.take(),
            BufReader::new(process.stdout.take().unwrap()).lines(),
        );
        Self { process, to, from }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        loop {
            let line = self.from.next().expect("the other side has gone").unwrap();
            if let Some(said) = line.split_once('@') {
                return said.1.to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    pub(crate) fn end(mut self) {
        drop(self.to.take());
        // Hears it out: libtest, in the other process, ends badly on a closed pipe.
        self.from.by_ref().for_each(drop);
        self.process.wait().unwrap();
    }
}

/// The launcher's process: starts the cell, and passes lines between its standard input and output
/// and the program's debugging pipe. Says `running PID SUPERVISOR MICROSECONDS` or `refused …` first, `exit …` last.
pub(crate) fn launcher() {
    let stage = PathBuf::from(std::env::var_os("STAGE").unwrap());
    let kind = std::env::var("KIND").unwrap();
    let program = std::env::var("PROGRAM").unwrap();
    let binary = stage.join("bin/onioncell");
    let can = cell::probe_with(&binary).unwrap();
    let plan = plan(&stage, &kind, &program, &can);
    let terminator = if program == CHROMIUM { 0 } else { b'\n' };

    let start = Instant::now();
    let cell = match cell::spawn_with(&binary, &plan) {
        Ok(cell) => cell,
        Err(error) => return println!("\n@refused {error}"),
    };
    let took = start.elapsed().as_micros();
    println!(
        "\n@running {} {} {took}",
        std::process::id(),
        cell.supervisor.pid()
    );
    // Read, so that it never fills up; shown on demand, because Chromium says much.
    let mut stderr = File::from(cell.stderr);
    std::thread::spawn(move || {
        let shown = std::env::var_os("SHOW_STDERR").is_some();
        let mut to: Box<dyn Write> = if shown {
            Box::new(std::io::stderr())
        } else {
            Box::new(std::io::sink())
        };
        let _ = std::io::copy(&mut stderr, &mut to);
    });
    let mut commands = File::from(cell.cdp_write);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let mut line = line.unwrap().into_bytes();
            line.push(terminator);
            let _ = commands.write_all(&line);
        }
    });
    // A gateway that takes connections and says nothing.
    let listener = cell.listener;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    for reply in BufReader::new(File::from(cell.cdp_read)).split(terminator) {
        println!("\n@{}", String::from_utf8(reply.unwrap()).unwrap());
    }
    println!("\n@exit {:?}", cell.supervisor.wait());
}

/// A cell on a stage with a display has a window there.
fn display(stage: &Path) -> Option<Display> {
    let socket = stage.join("X7");
    socket.exists().then(|| Display {
        name: ":7".to_owned(),
        socket,
        xauthority: None,
    })
}

fn plan(stage: &Path, kind: &str, program: &str, can: &Capabilities) -> Plan {
    let switches = [
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-startup-window",
        "--no-first-run",
        "--disable-breakpad",
    ];
    let switches: Vec<String> = switches.iter().map(|&s| s.to_owned()).collect();
    let program = stage.join("bin").join(program);
    let inputs = Chromium {
        program: &program,
        switches: &switches,
        profile: &stage.join("w/profile"),
        temp: &stage.join("w/tmp"),
        port: 1080,
        policies: None,
        display: display(stage),
        chromium_sandbox: true,
    };
    let (isolation, can) = match kind {
        "Full" => {
            assert_eq!(
                (&can.mounts, &can.pid_namespace),
                (&Ok(()), &Ok(())),
                "what this test is about"
            );
            (Isolation::Namespace, can.clone())
        }
        "NoMounts" => (Isolation::Namespace, can.clone().without_mounts()),
        _ => (Isolation::Container, can.clone().without_mounts()),
    };
    let mut plan = Plan::for_chromium(&inputs, isolation, &can);
    if !program.ends_with("chromium") {
        let arguments = [
            "--exact",
            "escape::probe_program",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ];
        plan.argv = arguments.map(str::to_owned).to_vec();
    }
    plan
}
