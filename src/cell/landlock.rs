//! Landlock (landlock(7)): which files, which port, and no signals or abstract sockets to the outside.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::errno::Errno;

use super::error::Failure;
use super::plan::{Access, Grant};

/// What this kernel has; 0 for nothing (landlock_create_ruleset(2), LANDLOCK_CREATE_RULESET_VERSION).
pub(super) fn abi() -> i32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call takes no attributes: a null pointer and size 0.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    i32::try_from(abi).unwrap_or(0).max(0)
}

/// Restricts this process to the grants and to connecting to one port. Everything that the kernel
/// can enforce is asked for as a hard requirement: partly enforced is refused.
pub(super) fn restrict(grants: &[Grant], port: u16) -> Result<(), Failure> {
    let abi = ABI::from(abi());
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(refused("handle files"))?;
    // ABI 4: TCP by port. ABI 6: scopes. Before that, the namespaces do it.
    if !AccessNet::from_all(abi).is_empty() {
        ruleset = ruleset
            .handle_access(AccessNet::from_all(abi))
            .map_err(refused("handle TCP"))?;
    }
    if !Scope::from_all(abi).is_empty() {
        ruleset = ruleset
            .scope(Scope::from_all(abi))
            .map_err(refused("scope sockets and signals"))?;
    }
    let mut ruleset = ruleset.create().map_err(refused("create the ruleset"))?;
    for grant in grants {
        let parent = match PathFd::new(&grant.path) {
            Ok(parent) => parent,
            Err(PathFdError::OpenCall { .. }) if grant.optional => continue,
            Err(error) => {
                return Err(Failure::new(
                    "open for Landlock",
                    error,
                    Errno::UnknownErrno,
                ));
            }
        };
        let rule = PathBeneath::new(parent, rights(grant, abi));
        ruleset = ruleset
            .add_rule(rule)
            .map_err(refused(&grant.path.display().to_string()))?;
    }
    if AccessNet::from_all(abi).contains(AccessNet::ConnectTcp) {
        let rule = NetPort::new(port, AccessNet::ConnectTcp);
        ruleset = ruleset
            .add_rule(rule)
            .map_err(refused("allow the gateway's port"))?;
    }
    let status = ruleset
        .restrict_self()
        .map_err(refused("restrict the cell"))?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        partly => Err(Failure::new(
            "Landlock:",
            format!("{partly:?}"),
            Errno::UnknownErrno,
        )),
    }
}

fn rights(grant: &Grant, abi: ABI) -> BitFlags<AccessFs> {
    let known = AccessFs::from_all(abi);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let wanted = match grant.access {
        Access::Execute => read | AccessFs::Execute,
        Access::Read => read,
        // Devices are not made, and none that is writable takes an ioctl.
        Access::Write => {
            known
                & !(AccessFs::Execute
                    | AccessFs::MakeChar
                    | AccessFs::MakeBlock
                    | AccessFs::IoctlDev)
        }
        Access::Proc => read | AccessFs::WriteFile | AccessFs::Truncate,
    };
    let wanted = wanted & known;
    // The kernel refuses rights to list or make for what is not a directory.
    if grant.path.is_dir() {
        wanted
    } else {
        wanted & AccessFs::from_file(abi)
    }
}

fn refused<E: std::fmt::Display>(step: &str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::new("Landlock:", format!("{step}: {error}"), Errno::UnknownErrno)
}
