//! The program that runs in Chromium's place and tries what must not work. Each attempt is a line
//! of words; the answer is `ok`, perhaps with what was found, or the name of the errno.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork, pause, setsid};

const PATIENCE: Duration = Duration::from_secs(2);

/// Answers attempts until there are no more: on Chromium's debugging pipe, or outside a cell on standard input.
pub(crate) fn serve() {
    if std::env::var_os("PROBE_OUTSIDE").is_some() {
        answer_all(io::stdin().lock(), io::stdout(), "\n@");
    } else {
        // SAFETY: the cell gives its program 3 and 4, and nothing else in this process uses them.
        let (read, write) = unsafe { (File::from_raw_fd(3), File::from_raw_fd(4)) };
        answer_all(BufReader::new(read), write, "");
    }
}

fn answer_all(from: impl BufRead, mut to: impl Write, mark: &str) {
    for line in from.lines() {
        let words: Vec<String> = line
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match attempt(&words) {
            Ok(found) if found.is_empty() => "ok".to_owned(),
            Ok(found) => format!("ok {found}"),
            Err(e) => e
                .raw_os_error()
                .map_or_else(|| e.to_string(), |n| format!("{:?}", Errno::from_raw(n))),
        };
        writeln!(to, "{mark}{answer}").unwrap();
        to.flush().unwrap();
    }
}

fn attempt(words: &[&str]) -> io::Result<String> {
    let nothing = |()| String::new();
    match words {
        ["tcp", to] => {
            TcpStream::connect_timeout(&to.parse().unwrap(), PATIENCE).map(|_| String::new())
        }
        ["udp", to] => udp(to.parse().unwrap()).map(nothing),
        ["socket", family, kind, protocol] => {
            socket(number(family), number(kind), number(protocol)).map(|_| String::new())
        }
        ["fastopen", to] => fastopen(to.parse().unwrap()).map(nothing),
        ["fastopen-connect"] => fastopen_connect().map(nothing),
        ["io_uring"] => io_uring().map(nothing),
        ["unix", path] => UnixStream::connect(path).map(|_| String::new()),
        ["abstract", name] => {
            UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?).map(|_| String::new())
        }
        ["setns", pid] => Ok(setns(
            File::open(format!("/proc/{pid}/ns/net"))?,
            CloneFlags::CLONE_NEWNET,
        )
        .map(nothing)?),
        ["setns-own"] => {
            Ok(setns(File::open("/proc/self/ns/net")?, CloneFlags::CLONE_NEWNET).map(nothing)?)
        }
        ["ptrace", pid] => Ok(ptrace::seize(process(pid), ptrace::Options::empty()).map(nothing)?),
        ["memory", pid] => OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map(|_| String::new()),
        ["environ", pid] => fs::read(format!("/proc/{pid}/environ")).map(|_| String::new()),
        ["signal", pid] => Ok(kill(process(pid), Signal::SIGCONT).map(nothing)?),
        ["read", path] => read(path).map(nothing),
        ["write", path] => File::create(path).map(|_| String::new()),
        ["list", path] => fs::read_dir(path).map(|_| String::new()),
        ["mount"] => mount().map(nothing),
        ["namespace-then-tcp", to] => namespace_then_tcp(to.parse().unwrap()).map(nothing),
        ["environment"] => Ok(std::env::vars()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
            .join(" ")),
        ["descriptors"] => descriptors(),
        ["status", field] => status(field),
        ["interfaces"] => fs::read_to_string("/proc/self/net/dev").map(|text| interfaces(&text)),
        ["hide", lock] => hide(lock).map(nothing),
        ["exit", code] => std::process::exit(number(code)),
        ["die"] => Ok(kill(Pid::this(), Signal::SIGKILL).map(nothing)?),
        other => panic!("no such attempt: {other:?}"),
    }
}

fn number(word: &str) -> i32 {
    word.parse().unwrap()
}

fn process(word: &str) -> Pid {
    Pid::from_raw(number(word))
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<File> {
    // SAFETY: socket(2) takes three integers; the descriptor it returns is new and owned by the File.
    let fd = Errno::result(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: see above.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn udp(to: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(b"hello", to)?;
    socket.recv(&mut [0; 16]).map(drop)
}

/// sendto(2) with MSG_FASTOPEN connects without connect(2).
fn fastopen(to: SocketAddr) -> io::Result<()> {
    let SocketAddr::V4(to) = to else {
        panic!("IPv4 only")
    };
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*to.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the buffer and the address live across the call and have the sizes given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            b"hello".as_ptr().cast(),
            5,
            libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_in>() as u32,
        )
    };
    Ok(Errno::result(sent).map(drop)?)
}

fn fastopen_connect() -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let on: i32 = 1;
    // SAFETY: the option is an int, which lives across the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_CONNECT,
            (&raw const on).cast(),
            4,
        )
    };
    Ok(Errno::result(set).map(drop)?)
}

fn io_uring() -> io::Result<()> {
    let mut parameters = [0_u8; 120];
    // SAFETY: io_uring_setup(2) fills in a structure of 120 bytes, which lives across the call.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    Ok(Errno::result(ring).map(drop)?)
}

fn read(path: &str) -> io::Result<()> {
    File::open(path)?.read(&mut [0; 16]).map(drop)
}

fn mount() -> io::Result<()> {
    let target = CString::new("/usr")?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    // SAFETY: the strings live across the call; the data may be null.
    let mounted = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    Ok(Errno::result(mounted).map(drop)?)
}

/// What Chromium's sandbox may do as well: it must lead nowhere. In a child, because it cannot be undone.
fn namespace_then_tcp(to: SocketAddr) -> io::Result<()> {
    // SAFETY: this process has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let entered = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
                .map_err(io::Error::from);
            let tried = entered.and_then(|()| TcpStream::connect_timeout(&to, PATIENCE).map(drop));
            let errno = tried.err().map_or(0, |e| e.raw_os_error().unwrap_or(255));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(errno) }
        }
        ForkResult::Parent { child } => match nix::sys::wait::waitpid(child, None)? {
            nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
            nix::sys::wait::WaitStatus::Exited(_, errno) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            other => panic!("{other:?}"),
        },
    }
}

fn descriptors() -> io::Result<String> {
    let mut numbers: Vec<i32> = Vec::new();
    for number in 0..4096 {
        // SAFETY: F_GETFD only asks whether the number is open.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
            numbers.push(number);
        }
    }
    Ok(numbers
        .iter()
        .map(i32::to_string)
        .collect::<Vec<_>>()
        .join(" "))
}

fn status(field: &str) -> io::Result<String> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}

fn interfaces(text: &str) -> String {
    text.lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Leaves a process behind that nothing ties to this one, and which holds a lock as long as it lives.
fn hide(lock: &str) -> io::Result<()> {
    let file = File::create(lock)?;
    file.lock()?;
    // SAFETY: this process has one thread.
    if let ForkResult::Child = unsafe { fork() }? {
        let _ = setsid();
        // SAFETY: as above.
        if let Ok(ForkResult::Child) = unsafe { fork() } {
            loop {
                pause();
            }
        }
        // SAFETY: ends the child at once; the lock stays with the grandchild's descriptor.
        unsafe { libc::_exit(0) }
    }
    // The lock belongs to the open file, which the grandchild shares: closing ours does not release it.
    std::mem::drop(file);
    Ok(())
}
