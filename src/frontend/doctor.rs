//! `onioncell doctor`: what this system gives, what is missing, and how to get it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nix::sys::statvfs::statvfs;
use serde::Serialize;

use super::progress::TorProgress;
use crate::browser::profile::Profile;
use crate::browser::switches::Switches;
use crate::browser::{OpError, managed};
use crate::cell::{self, Capabilities, Isolation};
use crate::config::{Config, EgressChoice, Flags};
use crate::protocol::error::{Code, Failure};
use crate::protocol::render::Format;
use crate::run;
use crate::run::launch::{Launch, Program, isolation};

#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Leave the network alone: do not try to reach Tor
    #[arg(long, env = "ONIONCELL_OFFLINE")]
    offline: bool,
}

/// Less than this on a disk that the browser writes to is worth a word.
const ENOUGH_DISK: u64 = 500 * 1024 * 1024;
/// Tor is asked for no longer than this, whatever a real run would wait.
const TOR_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// It works, with less than a better equipped system would give.
    Warn,
    /// onioncell cannot do its work here.
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip)]
    exit_status: u8,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            detail: detail.into(),
            hint: None,
            exit_status: 0,
        }
    }

    fn warn(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            hint: Some(hint.into()),
            ..Self::ok(name, detail)
        }
    }

    fn fail(name: &'static str, failure: Failure) -> Self {
        Self {
            status: Status::Fail,
            hint: failure.hint,
            exit_status: failure.code.exit_status(),
            ..Self::ok(name, failure.message)
        }
    }
}

pub(super) async fn run(
    flags: Flags,
    format: Format,
    options: DoctorOptions,
) -> Result<(String, u8), Failure> {
    let config = flags.validate()?;
    let mut checks = Vec::new();
    match cell::probe() {
        Ok(can) => {
            isolation_checks(&config, &can, &mut checks);
            chromium_checks(&config, &can, &mut checks).await;
        }
        Err(error) => checks.push(Check::fail("isolation", isolation(error))),
    }
    checks.push(fonts());
    checks.push(disk(&config.workspace));
    if options.offline {
        checks.push(Check::warn(
            "tor",
            "not tried (--offline)",
            "leave --offline out",
        ));
    } else {
        checks.extend(way_out(config).await);
    }
    let status = checks.iter().map(|check| check.exit_status).max();
    Ok((render(format, &checks), status.unwrap_or_default()))
}

fn isolation_checks(config: &Config, can: &Capabilities, checks: &mut Vec<Check>) {
    let over_unix = matches!(config.egress, EgressChoice::Unix(_));
    let chosen = cell::choose(config.isolation, can, over_unix);
    let in_container = matches!(chosen, Ok(Isolation::Container));
    checks.push(match chosen {
        Ok(kind) => Check::ok("isolation", format!("{kind:?}").to_lowercase()),
        Err(error) => Check::fail("isolation", isolation(error)),
    });
    checks.push(match &can.namespaces {
        Ok(()) => Check::ok("user namespaces", "user and network namespaces can be made"),
        Err(refused) => Check::warn(
            "user namespaces",
            refused.to_string(),
            "needed unless the container has no network (--isolation container)",
        ),
    });
    checks.push(match &can.mounts {
        _ if in_container => Check::warn(
            "file system",
            "Chromium sees what Landlock lets it see of the container's",
            "--isolation namespace gives it one of its own, where namespaces can be had",
        ),
        Ok(()) => Check::ok("file system", "Chromium sees only the files it is given"),
        Err(refused) => Check::warn(
            "file system",
            format!("Chromium sees what Landlock lets it see: {refused}"),
            "a container's seccomp profile refuses mounts; Landlock confines all the same",
        ),
    });
    checks.push(match can.landlock_abi {
        // ABI 6 scopes signals and abstract sockets (landlock(7)).
        6.. => Check::ok("landlock", format!("ABI {}", can.landlock_abi)),
        1..6 => Check::warn(
            "landlock",
            format!(
                "ABI {}: no scopes for signals and abstract sockets",
                can.landlock_abi
            ),
            "Linux 6.12 or newer has them",
        ),
        _ => Check::fail(
            "landlock",
            Failure::new(Code::IsolationUnavailable, "this kernel has no Landlock")
                .hint("boot with lsm=landlock,… on Linux 5.13 or newer"),
        ),
    });
    if can.seccomp {
        checks.push(Check::ok("seccomp", "filters can be installed"));
    } else {
        let failure = Failure::new(Code::IsolationUnavailable, "no seccomp filters")
            .hint("use a kernel with CONFIG_SECCOMP_FILTER");
        checks.push(Check::fail("seccomp", failure));
    }
}

/// Starts Chromium in a cell for real, with nothing behind its only socket.
async fn chromium_checks(config: &Config, can: &Capabilities, checks: &mut Vec<Check>) {
    let program = match Program::find(config.chromium.as_deref(), &config.cache) {
        Ok(program) => program,
        Err(failure) => return checks.push(Check::fail("chromium", failure)),
    };
    let named = format!("{} at {}", program.version, program.path.display());
    checks.push(Check::ok("chromium", named));
    let over_unix = matches!(config.egress, EgressChoice::Unix(_));
    let started = async {
        let kind = cell::choose(config.isolation, can, over_unix).map_err(isolation)?;
        let sandbox = cell::chromium_sandbox(can, !config.chromium_sandbox).map_err(isolation)?;
        let profile = Profile::ephemeral()
            .map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;
        let launch = Launch {
            can,
            isolation: kind,
            chromium_sandbox: sandbox,
            program: &program,
            profile: &profile,
            display: None,
            trusted: &[],
            switches: Switches::Ours,
        };
        let launched = launch.run().await?;
        let report = launched.session.sandbox_report().await;
        let report = report.map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;
        let policies = policies(launched.session.policies_in_force().await);
        launched.supervisor.kill();
        Ok((launched.gaps, report, policies))
    };
    match started.await {
        Err(failure) => checks.push(Check::fail("sandbox", failure)),
        Ok((gaps, report, policies)) => {
            checks.push(if report.adequate {
                Check::ok("sandbox", report.verdict)
            } else {
                Check::warn(
                    "sandbox",
                    report.verdict,
                    "pages run with all that the cell allows; allow user namespaces",
                )
            });
            checks.push(policies);
            for gap in gaps {
                checks.push(Check::warn(
                    "cell",
                    gap,
                    "see README, \"What it does not stop\"",
                ));
            }
        }
    }
}

/// Whether Chromium obeys every managed policy, by its own word.
fn policies(in_force: Result<Vec<String>, OpError>) -> Check {
    let wanted = managed::policies();
    let hint = format!(
        "onioncell policy chromium > {}/{}",
        managed::DIRECTORY,
        managed::FILE
    );
    match in_force {
        Err(error) => Check::warn("policies", error.to_string(), hint),
        Ok(names) => {
            let missing: Vec<&str> = wanted
                .keys()
                .filter(|name| !names.contains(name))
                .map(String::as_str)
                .collect();
            let obeyed = wanted.len() - missing.len();
            let detail = format!("{obeyed} of {} managed policies in force", wanted.len());
            if missing.is_empty() {
                Check::ok("policies", detail)
            } else {
                let detail = format!("{detail}; missing: {}", missing.join(", "));
                Check::warn("policies", detail, hint)
            }
        }
    }
}

fn fonts() -> Check {
    let count = count_fonts(Path::new("/usr/share/fonts"), 6);
    match count {
        0 => Check::warn(
            "fonts",
            "none in /usr/share/fonts: pages show boxes instead of letters",
            "apt-get install fonts-liberation fonts-noto-cjk fonts-noto-color-emoji",
        ),
        _ => Check::ok("fonts", format!("{count} files in /usr/share/fonts")),
    }
}

fn count_fonts(directory: &Path, depth: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => count_fonts(&entry.path(), depth - 1),
            Ok(_) => {
                let path = entry.path();
                let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
                usize::from(["ttf", "otf", "ttc", "pfb"].iter().any(|e| extension == *e))
            }
            Err(_) => 0,
        })
        .sum()
}

fn disk(workspace: &Path) -> Check {
    match statvfs(workspace) {
        Err(errno) => Check::warn(
            "disk",
            format!("cannot ask about {}: {errno}", workspace.display()),
            "name a workspace with --workspace DIR",
        ),
        Ok(disk) => {
            let free = disk.blocks_available().saturating_mul(disk.fragment_size());
            let detail = format!("{} MB free in {}", free / 1_000_000, workspace.display());
            if free < ENOUGH_DISK {
                Check::warn("disk", detail, "a profile takes some 100 MB; make room")
            } else {
                Check::ok("disk", detail)
            }
        }
    }
}

/// Reaches for Tor as a run would. Its first complaint about a wrong clock comes from the relays.
async fn way_out(config: Config) -> Vec<Check> {
    let mut choice = config.egress;
    let EgressChoice::Tor(tor) = &mut choice else {
        return vec![Check::warn(
            "tor",
            format!("not used: {choice:?}"),
            "--egress tor uses it",
        )];
    };
    tor.bootstrap_timeout = tor.bootstrap_timeout.min(TOR_PATIENCE);
    let progress = TorProgress::new();
    let policy = Arc::new(config.policy);
    match run::connect(choice, policy, progress.reporter()).await {
        Ok(_) => vec![
            Check::ok("tor", "reachable, ready for traffic"),
            Check::ok("clock", "agrees with the Tor network's"),
        ],
        Err(failure) if failure.message.contains("clock") => {
            let skewed = Failure::new(Code::TorUnavailable, failure.message)
                .hint("set the clock (timedatectl set-ntp true)");
            vec![Check::fail("clock", skewed)]
        }
        Err(failure) => vec![Check::fail("tor", failure)],
    }
}

fn render(format: Format, checks: &[Check]) -> String {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        checks: &'a [Check],
    }
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if format != Format::Human {
        let report = serde_json::to_string(&Report { ok, checks });
        return report.unwrap_or_default() + "\n";
    }
    let mut text = String::new();
    for check in checks {
        let mark = match check.status {
            Status::Ok => " ok ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}  {:<16} {}", check.name, check.detail);
        if let Some(hint) = &check.hint {
            let _ = writeln!(text, "      {:<16} -> {hint}", "");
        }
    }
    let _ = writeln!(text, "\n{}", if ok { "ready" } else { "not ready" });
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_failure_makes_the_system_not_ready() {
        let failure = Failure::new(Code::TorUnavailable, "no network").hint("plug it in");
        let checks = [Check::ok("disk", "much"), Check::fail("tor", failure)];
        let text = render(Format::Human, &checks);
        assert!(
            text.contains("FAIL  tor") && text.ends_with("not ready\n"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&render(Format::Json, &checks)).unwrap();
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][1]["hint"], "plug it in");
        assert_eq!(checks[1].exit_status, 4);
    }
}
