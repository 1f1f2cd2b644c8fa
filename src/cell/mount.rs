//! A file system of the cell's own: an empty root, and in it only the plan's fixtures. What is not
//! shown cannot be opened, and a socket that is not shown cannot be connected to by its path name.

use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, pivot_root};

use super::error::{Failure, On};
use super::plan::Fixture;

/// Where the new root is put together. Every system has it, and no fixture holds it: a recursive bind
/// mount of a directory above would show the new root in it.
const WORKBENCH: &str = "/sys";

/// Makes the fixtures the root directory. In a mount namespace of its own, with CAP_SYS_ADMIN over it.
pub(super) fn furnish(fixtures: &[Fixture]) -> Result<(), Failure> {
    let workbench = Path::new(WORKBENCH);
    // 1. Nothing done here is seen outside (mount_namespaces(7), shared subtrees).
    none_mount("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    // 2. Hold the sources, before an empty root covers one of them.
    let held = fixtures.iter().map(hold).collect::<Result<Vec<_>, _>>()?;
    // 3. An empty root, and everything in its place.
    tmpfs(workbench, "mode=0755,size=1m", MsFlags::MS_NOEXEC)?;
    for (fixture, source) in fixtures.iter().zip(held) {
        place(fixture, source, workbench)?;
    }
    // 4. Turn to it, and let the old one go (pivot_root(2), "pivot_root(".", ".")").
    chdir(workbench).on("enter", workbench.display())?;
    pivot_root(".", ".").on("make root", workbench.display())?;
    umount2(".", MntFlags::MNT_DETACH).on("unmount", "old root")?;
    chdir("/").on("enter", "/")?;
    limit(Path::new("/"), libc::MOUNT_ATTR_RDONLY, 0)
}

/// The /proc of the PID namespace that the caller is in (pid_namespaces(7)).
pub(super) fn proc() -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).on("mount", "/proc")
}

/// A directory of memory.
pub(super) fn tmpfs(target: &Path, options: &str, more: MsFlags) -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | more;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options))
        .on("mount tmpfs on", target.display())
}

/// The source of a bind mount; `None` for what needs none, or is not there and may be missing.
fn hold(fixture: &Fixture) -> Result<Option<OwnedFd>, Failure> {
    let (path, optional) = match fixture {
        Fixture::Show { path } => (path, true),
        Fixture::Bind { source, .. } => (source, false),
        Fixture::File { .. } | Fixture::Memory { .. } => return Ok(None),
    };
    match open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::ENOENT) if optional => Ok(None),
        Err(errno) => Err(Failure::new("open", path.display(), errno)),
    }
}

fn place(fixture: &Fixture, source: Option<OwnedFd>, root: &Path) -> Result<(), Failure> {
    match (fixture, source) {
        (Fixture::Show { path }, Some(source)) => bind(&source, &beneath(root, path), false),
        (
            Fixture::Bind {
                target, writable, ..
            },
            Some(source),
        ) => bind(&source, &beneath(root, target), *writable),
        (Fixture::File { path, text }, _) => {
            let path = beneath(root, path);
            parents(&path)?;
            fs::write(&path, text).on("write", path.display())
        }
        (Fixture::Memory { path }, _) => {
            let path = beneath(root, path);
            directory(&path)?;
            tmpfs(&path, "mode=1777", MsFlags::MS_NOEXEC)
        }
        (Fixture::Show { .. } | Fixture::Bind { .. }, None) => Ok(()),
    }
}

fn bind(source: &OwnedFd, target: &Path, writable: bool) -> Result<(), Failure> {
    let held = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    if fs::metadata(&held).on("stat", target.display())?.is_dir() {
        directory(target)?;
    } else {
        parents(target)?;
        File::create(target).on("create", target.display())?;
    }
    // Recursive, because a namespace of an unprivileged user may not look beneath inherited mounts.
    mount(
        Some(&held),
        target,
        None::<&str>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&str>,
    )
    .on("bind mount", target.display())?;
    let limits = if writable {
        libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC
    } else {
        libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_RDONLY
    };
    limit(target, limits, libc::AT_RECURSIVE)
}

/// mount_setattr(2); with AT_RECURSIVE for all mounts beneath it as well.
fn limit(target: &Path, attributes: u64, flags: libc::c_int) -> Result<(), Failure> {
    let path = std::ffi::CString::new(target.as_os_str().as_encoded_bytes())
        .map_err(|_| Failure::new("restrict mount", target.display(), Errno::EINVAL))?;
    let request = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path and request live across the call, which reads them, the latter with its given size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result)
        .on("restrict mount", target.display())
        .map(drop)
}

fn none_mount(target: &str, flags: MsFlags) -> Result<(), Failure> {
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>).on("change mount", target)
}

/// `/usr` in the new root. Plans hold absolute paths only.
fn beneath(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn parents(path: &Path) -> Result<(), Failure> {
    path.parent().map_or(Ok(()), directory)
}

fn directory(path: &Path) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .on("create directory", path.display())
}
