//! The only opener of the caller's files.
//!
//! Every path is resolved beneath the workspace by the kernel (openat2(2)), so that no check of ours
//! can be raced by a symlink.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("path denied: {path} is outside the workspace")]
    Outside { path: String },
    #[error("path denied: {path}: {reason}")]
    Denied { path: String, reason: &'static str },
    #[error("cannot {operation} {path}: {source}")]
    Io {
        operation: &'static str,
        path: String,
        source: std::io::Error,
    },
}

impl WorkspaceError {
    /// Whether the path itself was refused, as opposed to the system failing.
    pub fn is_denial(&self) -> bool {
        !matches!(self, WorkspaceError::Io { .. })
    }
}

/// The directory that holds the caller's files.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    path: PathBuf,
}

/// A path inside the workspace, relative to it. Made only by [`Workspace::resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspacePath(PathBuf);

impl WorkspacePath {
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

impl Workspace {
    pub fn open(path: &Path) -> Result<Self, WorkspaceError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(path, flags, Mode::empty())
            .map_err(|errno| io("open the workspace", path, errno))?;
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the caller wrote, as a path beneath the workspace: relative, or absolute within it.
    pub fn resolve(&self, text: &str) -> Result<WorkspacePath, WorkspaceError> {
        let outside = || WorkspaceError::Outside {
            path: text.to_owned(),
        };
        let denied = |reason| WorkspaceError::Denied {
            path: text.to_owned(),
            reason,
        };
        if text.is_empty() || text.contains('\0') {
            return Err(denied("a path must be neither empty nor contain NUL"));
        }
        let path = Path::new(text);
        let relative = if path.is_absolute() {
            path.strip_prefix(&self.path).map_err(|_| outside())?
        } else {
            path
        };
        let mut clean = PathBuf::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) if name.as_encoded_bytes().starts_with(b".") => {
                    return Err(denied("names that begin with a dot are not for callers"));
                }
                Component::Normal(name) => clean.push(name),
                Component::CurDir => {}
                _ => return Err(outside()),
            }
        }
        if clean.as_os_str().is_empty() || text.ends_with('/') {
            return Err(denied("it names a directory"));
        }
        Ok(WorkspacePath(clean))
    }

    /// Opens a regular file for writing, emptied; missing directories are made.
    pub fn create(&self, path: &WorkspacePath) -> Result<File, WorkspaceError> {
        self.make_parents(path)?;
        let flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_CLOEXEC
            | OFlag::O_NOCTTY
            // A FIFO must refuse and not wait for its other end.
            | OFlag::O_NONBLOCK;
        let fd = self
            .open_beneath(path.as_path(), flags, Mode::from_bits_truncate(0o644))
            .map_err(|errno| refusal("write", path.as_path(), errno))?;
        let kind = fstat(fd.as_fd()).map_err(|errno| io("inspect", path.as_path(), errno))?;
        if SFlag::from_bits_truncate(kind.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(WorkspaceError::Denied {
                path: path.as_path().display().to_string(),
                reason: "it is not a regular file",
            });
        }
        let file = File::from(fd);
        // Only now: a device or FIFO must not be touched before it was looked at.
        file.set_len(0).map_err(|source| WorkspaceError::Io {
            operation: "empty",
            path: path.as_path().display().to_string(),
            source,
        })?;
        Ok(file)
    }

    fn make_parents(&self, path: &WorkspacePath) -> Result<(), WorkspaceError> {
        let Some(parent) = path.as_path().parent() else {
            return Ok(());
        };
        let mut made = PathBuf::new();
        for name in parent.components() {
            let above = if made.as_os_str().is_empty() {
                Path::new(".")
            } else {
                made.as_path()
            };
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let directory = self
                .open_beneath(above, flags, Mode::empty())
                .map_err(|errno| refusal("open", above, errno))?;
            made.push(name);
            match mkdirat(directory, name.as_os_str(), Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(refusal("make", &made, errno)),
            }
        }
        Ok(())
    }

    fn open_beneath(&self, path: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new().flags(flags).resolve(BENEATH);
        // openat2 refuses a mode where nothing can be created.
        let how = if flags.contains(OFlag::O_CREAT) {
            how.mode(mode)
        } else {
            how
        };
        openat2(&self.root, path, how)
    }
}

/// What the kernel's refusal means: EXDEV and ELOOP are the resolve flags at work.
fn refusal(operation: &'static str, path: &Path, errno: Errno) -> WorkspaceError {
    match errno {
        Errno::EXDEV => WorkspaceError::Outside {
            path: path.display().to_string(),
        },
        Errno::ELOOP => WorkspaceError::Denied {
            path: path.display().to_string(),
            reason: "symbolic links are not followed",
        },
        Errno::ENXIO => WorkspaceError::Denied {
            path: path.display().to_string(),
            reason: "it is not a regular file",
        },
        errno => io(operation, path, errno),
    }
}

fn io(operation: &'static str, path: &Path, errno: Errno) -> WorkspaceError {
    WorkspaceError::Io {
        operation,
        path: path.display().to_string(),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("workspace");
        std::fs::create_dir(&inner).unwrap();
        std::fs::create_dir(outer.path().join("workspace-evil")).unwrap();
        let workspace = Workspace::open(&inner).unwrap();
        (outer, workspace)
    }

    fn try_write(workspace: &Workspace, path: &str) -> Result<(), WorkspaceError> {
        let path = workspace.resolve(path)?;
        workspace.create(&path)?.write_all(b"x").unwrap();
        Ok(())
    }

    #[test]
    fn a_path_that_leaves_the_workspace_is_refused() {
        let (outer, workspace) = workspace();
        let evil = outer.path().join("workspace-evil/x");
        for path in ["../x", "a/../../x", "/etc/x", "..", evil.to_str().unwrap()] {
            let error = try_write(&workspace, path).unwrap_err();
            assert!(error.is_denial(), "{path}: {error}");
            let text = format!("path denied: {path} is outside the workspace");
            assert_eq!(error.to_string(), text);
        }
        assert!(!evil.exists());
    }

    #[test]
    fn dots_nul_and_directories_are_refused() {
        let (_outer, workspace) = workspace();
        for path in ["", ".hidden", "a/.b/c", "a\0b", ".", "a/"] {
            assert!(
                try_write(&workspace, path).unwrap_err().is_denial(),
                "{path:?}"
            );
        }
    }

    #[test]
    fn a_symlink_is_refused_wherever_it_stands() {
        let (outer, workspace) = workspace();
        symlink(outer.path(), workspace.path().join("up")).unwrap();
        symlink(outer.path().join("target"), workspace.path().join("leaf")).unwrap();
        for path in ["up/x", "up/new/x", "leaf"] {
            assert!(
                try_write(&workspace, path).unwrap_err().is_denial(),
                "{path}"
            );
        }
        assert!(!outer.path().join("x").exists() && !outer.path().join("target").exists());
    }

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let (_outer, workspace) = workspace();
        let fifo = workspace.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
        assert!(try_write(&workspace, "fifo").unwrap_err().is_denial());
    }

    #[test]
    fn a_path_inside_is_written_relative_or_absolute() {
        let (_outer, workspace) = workspace();
        try_write(&workspace, "a/b/c.png").unwrap();
        let absolute = workspace.path().join("d.png");
        try_write(&workspace, absolute.to_str().unwrap()).unwrap();
        assert!(workspace.path().join("a/b/c.png").exists() && absolute.exists());
    }
}
