//! Who Chromium is: an unprivileged user, mapped to itself in a namespace of its own, without capabilities.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid};

use super::error::{Failure, On};
use super::plan::Ids;

/// The user that a cell started by root runs as. In a range that neither Debian nor systemd
/// allocates (systemd's UIDS-GIDS: 60706–61183 unused), so it owns nothing but what is given to it.
pub const CELL_IDS: Ids = Ids {
    uid: 61_080,
    gid: 61_080,
};

/// Gives a directory tree to the cell's user. Not for use while a cell runs in it.
pub fn give(path: &Path, ids: Ids) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    // A file with a second name may be known elsewhere under the other.
    let shared = meta.is_file() && meta.nlink() > 1;
    if !shared && (meta.uid() != ids.uid || meta.gid() != ids.gid) {
        lchown(path, Some(ids.uid), Some(ids.gid))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), ids)?;
        }
    }
    Ok(())
}

/// From root to the cell's user, for good.
pub(super) fn become_user(ids: Ids) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    setgroups(&[]).on("give up", "supplementary groups")?;
    setresgid(gid, gid, gid).on("become group", gid)?;
    setresuid(uid, uid, uid).on("become user", uid)?;
    // Changing user made /proc/self root's (prctl(2), PR_SET_DUMPABLE); the maps below are written there.
    prctl::set_dumpable(true).on("set", "PR_SET_DUMPABLE")
}

/// Enters new namespaces, a user namespace first of all.
pub(super) fn enter(namespaces: CloneFlags) -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWUSER | namespaces).on("unshare", "user namespace")
}

/// Maps user and group to themselves (user_namespaces(7)): to 0, Chromium would refuse to run.
pub(super) fn map_to_self(ids: Ids) -> Result<(), Failure> {
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("{0} {0} 1", ids.uid))?;
    write("/proc/self/gid_map", &format!("{0} {0} 1", ids.gid))
}

pub(super) fn current() -> Ids {
    Ids {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
    }
}

/// capset(2) to nothing. Exec would do as much for a user that is not 0; this holds for the supervisor too.
pub(super) fn drop_capabilities() -> Result<(), Failure> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let none = [0_u32; 6];
    // SAFETY: version 3 reads a header of 8 bytes and two sets of three words; both live across the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    Errno::result(result).on("drop", "capabilities").map(drop)
}

fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).on("write", path)
}
