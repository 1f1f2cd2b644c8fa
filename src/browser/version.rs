//! Which Chromium this is: its version goes into the User-Agent before it starts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where distributions put the browser itself, as opposed to a wrapper script. Debian's wrapper
/// sources files that add an API key and switches.
const CANDIDATES: &[&str] = &[
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
];

#[derive(Debug, thiserror::Error)]
pub enum ChromiumError {
    #[error("no Chromium found (looked for {})", CANDIDATES.join(", "))]
    Missing,
    #[error("cannot run Chromium at {path}: {source}")]
    Run {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} --product-version printed {printed:?}, not a version: is it Chromium?")]
    NotChromium { path: PathBuf, printed: String },
}

/// The browser's program: the one the operator named, or the distribution's.
pub fn find(named: Option<&Path>) -> Result<PathBuf, ChromiumError> {
    match named {
        Some(path) => Ok(path.to_owned()),
        None => CANDIDATES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or(ChromiumError::Missing),
    }
}

/// The full version, as "156.0.8078.79".
///
/// Asking takes Chromium 50 ms, so the answer is kept in `cache` with what identifies the file.
pub fn of(program: &Path, cache: &Path) -> Result<String, ChromiumError> {
    let run_error = |source| ChromiumError::Run {
        path: program.to_owned(),
        source,
    };
    let file = std::fs::metadata(program).map_err(run_error)?;
    let identity = format!(
        "{} {} {} {} {}",
        program.display(),
        file.dev(),
        file.ino(),
        file.size(),
        file.mtime(),
    );
    if let Ok(kept) = std::fs::read_to_string(cache)
        && let Some(version) = kept.strip_prefix(&identity)
        && let Some(version) = parse(version)
    {
        return Ok(version);
    }
    let output = Command::new(program)
        .arg("--product-version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(run_error)?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = parse(&printed).ok_or_else(|| ChromiumError::NotChromium {
        path: program.to_owned(),
        printed: printed.chars().take(200).collect(),
    })?;
    // Without the cache the next run asks again; nothing is lost.
    if let Err(error) = std::fs::write(cache, format!("{identity} {version}\n")) {
        tracing::debug!(%error, "Chromium's version not kept");
    }
    Ok(version)
}

/// The first number of a version.
pub fn major(version: &str) -> u32 {
    let number = version.split('.').next().unwrap_or_default();
    number.parse().unwrap_or_default()
}

fn parse(text: &str) -> Option<String> {
    let text = text.trim();
    let parts: Vec<_> = text.split('.').collect();
    let numeric = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (parts.len() == 4 && parts.iter().all(numeric)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_version_is_a_version() {
        assert_eq!(parse("156.0.8078.79\n").as_deref(), Some("156.0.8078.79"));
        for text in ["", "156", "a.b.c.d", "1.2.3.", "Chromium 156.0.8078.79"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(major("156.0.8078.79"), 156);
    }

    #[test]
    fn a_program_that_is_not_chromium_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("cache");
        let error = of(Path::new("/bin/echo"), &cache).unwrap_err().to_string();
        assert!(
            error.starts_with("/bin/echo --product-version printed"),
            "{error}"
        );
        let error = of(Path::new("/nonexistent"), &cache)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("cannot run Chromium at /nonexistent"),
            "{error}"
        );
    }

    #[test]
    fn the_answer_is_kept_until_the_program_changes() {
        let directory = tempfile::tempdir().unwrap();
        let (program, cache) = (directory.path().join("c"), directory.path().join("cache"));
        let write = |version: &str| {
            std::fs::write(&program, format!("#!/bin/sh\necho {version}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("1.2.3.4");
        assert_eq!(of(&program, &cache).unwrap(), "1.2.3.4");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(of(&program, &cache).unwrap(), "1.2.3.4", "not asked again");
        write("10.20.30.40");
        assert_eq!(of(&program, &cache).unwrap(), "10.20.30.40");
    }
}
