//! The lab's directory: removed when the lab ends, or by the next lab if the process was killed.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

const PREFIX: &str = "onioncell-lab-";

/// Exists as long as its lock is held: a directory that can be locked belongs to a dead lab (flock(2)).
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Scratch {
    pub fn new() -> Result<Self> {
        let parent = std::env::temp_dir();
        remove_stale(&parent);
        loop {
            let dir = tempfile::Builder::new()
                .prefix(PREFIX)
                .tempdir_in(&parent)?;
            let path = dir.keep();
            // What a program that runs as another user has to read is in here; keys are in closed directories below.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            let Some(lock) = open_and_lock(&path) else {
                continue;
            };
            // Another lab may have taken it for stale in the moment before it was locked.
            if fs::metadata(&path)
                .is_ok_and(|now| lock.metadata().is_ok_and(|then| now.ino() == then.ino()))
            {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory for its owner only, as tor demands.
    pub fn private_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("lab: cannot remove {}: {error}", self.path.display());
        }
    }
}

fn open_and_lock(path: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(path).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Some(_lock) = open_and_lock(&entry.path()) {
            // A failure means that somebody else removes it, or owns it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
