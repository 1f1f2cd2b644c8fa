//! `cell-init`: carries out a plan, becomes the supervisor, and its child becomes the program.
//!
//! It is this program, executed anew with one thread, so that it may fork and enter namespaces.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, Pid, chdir, execve, fork, getpid, getppid, pipe2, setsid};

use super::error::{Failure, On, WRITE_TO};
use super::plan::{Fixture, Ids, Isolation, Plan};
use super::wire::{self, Event, Request};
use super::{fd, landlock, mount, net, probe, seccomp, supervise, user};

/// The first argument that makes this program `cell-init`.
pub const INIT_COMMAND: &str = "cell-init";

/// Runs `cell-init` to its end. The control socket is standard input.
pub fn init() -> ! {
    let Err(status) = serve();
    supervise::leave(status)
}

fn serve() -> Result<Infallible, i32> {
    const NO_LAUNCHER: i32 = 2;
    let ready = || {
        let null = fd::null()?;
        let control = fd::take(libc::STDIN_FILENO, &null)?;
        let request = wire::receive::<Request>(&control)?;
        Ok::<_, Failure>((null, control, request))
    };
    let (null, control, request) = ready().map_err(|_| NO_LAUNCHER)?;
    let (failure, exec) = match request {
        None => return Err(NO_LAUNCHER),
        Some((Request::Probe, _)) => {
            let found = Event::Capabilities(Box::new(probe::explore()));
            return Err(wire::send(&control, &found, &[]).map_or(1, |()| 0));
        }
        Some((Request::Run(plan), fds)) => {
            let Err(refused) = run(&plan, &control, fds, &null);
            refused
        }
    };
    // A launcher that has gone needs no answer.
    let _ = wire::send(&control, &Event::Failed { failure, exec }, &[]);
    Err(1)
}

/// The sequence. On the way in everything is an error to report; on success it does not return.
fn run(
    plan: &Plan,
    control: &OwnedFd,
    fds: Vec<OwnedFd>,
    null: &std::fs::File,
) -> Result<Infallible, (Failure, bool)> {
    let step = |failure| (failure, false);
    // 1. What is handed to the program, out of the way until then.
    let pipes = Pipes::receive(fds, null).map_err(step)?;
    let launcher = fd::pidfd(getppid().as_raw()).map_err(step)?;
    setsid()
        .on("leave", "the launcher's session")
        .map_err(step)?;
    prctl::set_child_subreaper(true)
        .on("set", "PR_SET_CHILD_SUBREAPER")
        .map_err(step)?;

    // 2. Another user, files, network and processes of its own.
    settle(&Place::of(plan)).map_err(step)?;
    if plan.isolation == Isolation::Namespace {
        net::raise_loopback().map_err(step)?;
    }
    if plan.own_hostname {
        net::forget_hostname().map_err(step)?;
    }

    // 3. The one socket that leads out, made inside, served from outside.
    let listener = net::listen(plan.port).map_err(step)?;
    wire::send(control, &Event::Listening, &[listener.as_fd()]).map_err(step)?;
    drop(listener);

    // 4. The program, in a child; exec closes the pipe on which it would say why not.
    let (said, says) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)
        .on("create", "pipe")
        .map_err(step)?;
    let (said, says) = (
        fd::raise(said).map_err(step)?,
        fd::raise(says).map_err(step)?,
    );
    let child = supervise::offspring(plan.pid_namespace, |ready| {
        let Err(refused) = ready
            .map_err(step)
            .and_then(|()| become_program(plan, &pipes));
        supervise::say(&says, &refused);
    })
    .map_err(step)?;

    // 5. From here on this process only watches.
    drop((says, pipes));
    for number in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        fd::place(null, number).map_err(step)?;
    }
    fd::close_all_but(&[control.as_raw_fd(), launcher.as_raw_fd(), said.as_raw_fd()])
        .map_err(step)?;
    user::drop_capabilities().map_err(step)?;
    prctl::set_dumpable(false)
        .on("clear", "PR_SET_DUMPABLE")
        .map_err(step)?;
    supervise::watch(control, &launcher, said, child)
}

/// The part of a plan that changes where this process is.
pub(super) struct Place<'a> {
    pub(super) isolation: Isolation,
    pub(super) become_user: Option<Ids>,
    pub(super) fixtures: &'a [Fixture],
    pub(super) pid_namespace: bool,
    pub(super) ipc_namespace: bool,
}

impl<'a> Place<'a> {
    fn of(plan: &'a Plan) -> Self {
        Self {
            isolation: plan.isolation,
            become_user: plan.become_user,
            fixtures: &plan.fixtures,
            pid_namespace: plan.pid_namespace,
            // An X server shares memory with its clients by System V IPC.
            ipc_namespace: plan.display.is_none(),
        }
    }
}

/// Takes its place. Root furnishes before it becomes somebody else, because the profile may lie
/// where only root can look; others furnish in the user namespace that lets them.
pub(super) fn settle(place: &Place<'_>) -> Result<(), Failure> {
    umask(Mode::from_bits_truncate(0o022));
    let furnished = !place.fixtures.is_empty();
    if let Some(ids) = place.become_user {
        if furnished {
            unshare(CloneFlags::CLONE_NEWNS).on("unshare", "mount namespace")?;
            mount::furnish(place.fixtures)?;
        }
        user::become_user(ids)?;
    }
    if place.isolation == Isolation::Namespace {
        let mut namespaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
        namespaces.set(CloneFlags::CLONE_NEWNS, furnished);
        namespaces.set(CloneFlags::CLONE_NEWPID, place.pid_namespace);
        namespaces.set(CloneFlags::CLONE_NEWIPC, place.ipc_namespace);
        let ids = user::current();
        user::enter(namespaces)?;
        user::map_to_self(ids)?;
        if furnished && place.become_user.is_none() {
            mount::furnish(place.fixtures)?;
        }
    }
    umask(Mode::from_bits_truncate(0o077));
    Ok(())
}

/// The rest of the way, in the child: returns only why it could not go on, and whether exec itself failed.
fn become_program(plan: &Plan, pipes: &Pipes) -> Result<Infallible, (Failure, bool)> {
    let step = |failure| (failure, false);
    setrlimit(Resource::RLIMIT_CORE, 0, 0)
        .on("forbid", "core dumps")
        .map_err(step)?;
    for directory in [&plan.profile, &plan.temp] {
        writable(directory).map_err(step)?;
    }
    chdir(&plan.temp)
        .on("enter", plan.temp.display())
        .map_err(step)?;
    let program = CString::new(plan.program.as_os_str().as_bytes());
    let argv = strings(
        std::iter::once(plan.program.display().to_string()).chain(plan.argv.iter().cloned()),
    );
    let env = strings(
        plan.env
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    let (Ok(program), Ok(argv), Ok(env)) = (program, argv, env) else {
        return Err(step(Failure::new(
            "pass",
            "an argument with a NUL byte",
            nix::errno::Errno::EINVAL,
        )));
    };
    fd::hand_over(&pipes.stderr, &pipes.cdp_read, &pipes.cdp_write).map_err(step)?;
    user::drop_capabilities().map_err(step)?;
    prctl::set_no_new_privs()
        .on("set", "PR_SET_NO_NEW_PRIVS")
        .map_err(step)?;
    landlock::restrict(&plan.grants, plan.port).map_err(step)?;
    seccomp::filter().map_err(step)?;
    execve(&program, &argv, &env)
        .on("execute", plan.program.display())
        .map_err(|failure| (failure, true))
}

/// Said here, with its name, rather than by Chromium in a dialog.
fn writable(directory: &Path) -> Result<(), Failure> {
    use nix::unistd::{AccessFlags, access};
    access(
        directory,
        AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
    )
    .on(
        WRITE_TO,
        format!("{} as user {}", directory.display(), user::current().uid),
    )
}

fn strings(items: impl Iterator<Item = String>) -> Result<Vec<CString>, std::ffi::NulError> {
    items.map(CString::new).collect()
}

/// What the program gets besides /dev/null.
struct Pipes {
    stderr: OwnedFd,
    cdp_read: OwnedFd,
    cdp_write: OwnedFd,
}

impl Pipes {
    fn receive(fds: Vec<OwnedFd>, null: &std::fs::File) -> Result<Self, Failure> {
        let Ok([cdp_read, cdp_write]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Failure::new(
                "receive",
                "the debugging pipe",
                nix::errno::Errno::EBADMSG,
            ));
        };
        Ok(Self {
            stderr: fd::take(libc::STDERR_FILENO, null)?,
            cdp_read: fd::raise(cdp_read)?,
            cdp_write: fd::raise(cdp_write)?,
        })
    }
}

/// fork(2), for a process with one thread; the child leaves by `_exit` or exec, never by returning.
/// It dies with its parent, also if that ends before the child could ask for it.
pub(super) fn child(life: impl FnOnce() -> i32) -> Result<Pid, Failure> {
    let parent = fd::pidfd(getpid().as_raw())?;
    // SAFETY: cell-init has one thread, so the child may do all that its parent could.
    match unsafe { fork() }.on("fork", "the cell")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let bound = prctl::set_pdeathsig(Some(Signal::SIGKILL));
            let mut ended = [PollFd::new(parent.as_fd(), PollFlags::POLLIN)];
            let alone = poll(&mut ended, PollTimeout::ZERO) != Ok(0);
            supervise::leave(if bound.is_err() || alone { 1 } else { life() })
        }
    }
}
