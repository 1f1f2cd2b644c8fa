//! Where cookies and logins live between runs, and who may use them now.
//!
//! Only the `chromium` directory inside is given to the cell; what the launcher itself keeps lies
//! beside it, where no compromised browser could put a symlink in its way.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile {path} is in use by another onioncell (waited {waited:?})")]
    InUse { path: PathBuf, waited: Duration },
    #[error("cannot {operation} {path}: {source}")]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

/// A profile that this process alone uses.
#[derive(Debug)]
pub struct Profile {
    directory: PathBuf,
    _lock: Flock<File>,
    /// Removed when the profile is dropped, for `--ephemeral`.
    _temporary: Option<tempfile::TempDir>,
}

/// How long a second process waits for the first one.
const PATIENCE: Duration = Duration::from_secs(10);

impl Profile {
    /// A profile that stays.
    pub fn persistent(directory: &Path) -> Result<Self, ProfileError> {
        Self::open(directory, None)
    }

    /// A profile that is gone at exit.
    pub fn ephemeral() -> Result<Self, ProfileError> {
        let temporary = tempfile::Builder::new()
            .prefix("onioncell-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|source| ProfileError::Io {
                operation: "make a temporary profile in",
                path: std::env::temp_dir(),
                source,
            })?;
        let directory = temporary.path().to_owned();
        Self::open(&directory, Some(temporary))
    }

    fn open(directory: &Path, temporary: Option<tempfile::TempDir>) -> Result<Self, ProfileError> {
        let chromium = directory.join("chromium");
        for path in [directory, &chromium, &directory.join("tmp")] {
            make_private(path)?;
        }
        let lock = lock(&directory.join("lock"))?;
        remove_singleton(&chromium)?;
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
            _temporary: temporary,
        })
    }

    /// Chromium's user data directory.
    pub fn user_data(&self) -> PathBuf {
        self.directory.join("chromium")
    }

    /// Chromium's temporary directory: on the same disk as the profile, private to the run.
    pub fn temp(&self) -> PathBuf {
        self.directory.join("tmp")
    }

    /// The managed policies of the run; the launcher's, and read-only in the cell.
    pub fn policies(&self) -> PathBuf {
        self.directory.join("policies")
    }

    /// The page that the last successful navigation ended on.
    pub fn last_url(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.directory.join(".last_url")).ok()?;
        let url = text.trim();
        (!url.is_empty()).then(|| url.to_owned())
    }

    /// Keeps the page for the next run. An empty address never overwrites it.
    pub fn set_last_url(&self, url: &str) -> Result<(), ProfileError> {
        if url.is_empty() {
            return Ok(());
        }
        // Renamed into place: a kill in the middle leaves the old one.
        let path = self.directory.join(".last_url");
        let fresh = self.directory.join(".last_url.new");
        let written = std::fs::write(&fresh, url).and_then(|()| std::fs::rename(&fresh, &path));
        written.map_err(|source| ProfileError::Io {
            operation: "write",
            path,
            source,
        })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // What Chromium left in its private temp concerns no later run.
        if let Err(error) = std::fs::remove_dir_all(self.temp()) {
            tracing::debug!(%error, "private temp not removed");
        }
    }
}

fn make_private(path: &Path) -> Result<(), ProfileError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| ProfileError::Io {
        operation: "make",
        path: path.to_owned(),
        source,
    })
}

/// flock(2) ends with its process, however that ends: no stale lock can be left behind.
fn lock(path: &Path) -> Result<Flock<File>, ProfileError> {
    let failed = |source: std::io::Error| ProfileError::Io {
        operation: "lock",
        path: path.to_owned(),
        source,
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let started = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((returned, nix::errno::Errno::EWOULDBLOCK)) => file = returned,
            Err((_, errno)) => return Err(failed(errno.into())),
        }
        if started.elapsed() >= PATIENCE {
            return Err(ProfileError::InUse {
                path: path.parent().unwrap_or(path).to_owned(),
                waited: PATIENCE,
            });
        }
        // flock(2) has no time-out and no event; a blocking one could not be given up.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A killed Chromium leaves its own lock, which names a host and a pid: in a container both may
/// mean somebody else, and Chromium would refuse. The lock above has settled the question.
fn remove_singleton(user_data: &Path) -> Result<(), ProfileError> {
    for name in ["SingletonLock", "SingletonCookie", "SingletonSocket"] {
        let path = user_data.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => {
                return Err(ProfileError::Io {
                    operation: "remove",
                    path,
                    source,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_ephemeral_profile_leaves_nothing() {
        let profile = Profile::ephemeral().unwrap();
        let directory = profile.directory.clone();
        assert!(directory.join("chromium").exists());
        let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may look");
        drop(profile);
        assert!(!directory.exists());
    }

    #[test]
    fn a_killed_chromium_s_lock_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join("chromium/SingletonLock");
        std::fs::create_dir(directory.path().join("chromium")).unwrap();
        std::os::unix::fs::symlink("other-host-1", &lock).unwrap();
        let _profile = Profile::persistent(directory.path()).unwrap();
        assert!(lock.symlink_metadata().is_err());
    }

    #[test]
    fn an_empty_address_never_overwrites_the_last_one() {
        let directory = tempfile::tempdir().unwrap();
        let profile = Profile::persistent(directory.path()).unwrap();
        assert_eq!(profile.last_url(), None);
        profile.set_last_url("http://a.com/").unwrap();
        profile.set_last_url("").unwrap();
        assert_eq!(profile.last_url().as_deref(), Some("http://a.com/"));
    }
}
