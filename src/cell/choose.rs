//! Which isolation, if any. Where none can be had nothing starts, and the one option to add is named.

use serde::{Deserialize, Serialize};

use super::error::{CellError, Failure};
use super::plan::Isolation;
use super::probe::Capabilities;

/// What Docker's default profile withholds from an unprivileged user, and a cell with a file system
/// of its own takes. Without those after chroot a cell does without such a file system.
const CONTAINER_REMEDY: &str = "start the container with --security-opt seccomp=FILE, where FILE is Docker's default profile \
     plus clone, unshare, chroot, mount, umount2, pivot_root, mount_setattr and sethostname; \
     or, wider, with --security-opt seccomp=unconfined";

/// `--isolation`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requested {
    #[default]
    Auto,
    Namespace,
    Container,
}

/// The isolation for this run. `Auto` prefers a namespace: it also keeps Chromium from the container's other ports.
pub fn choose(
    requested: Requested,
    can: &Capabilities,
    gateway_is_unix: bool,
) -> Result<Isolation, CellError> {
    lockable(can)?;
    match requested {
        Requested::Namespace => namespace(can),
        Requested::Container => container(can, gateway_is_unix),
        Requested::Auto => {
            namespace(can).or_else(|refused| container(can, gateway_is_unix).map_err(|_| refused))
        }
    }
}

/// Whether Chromium's own sandbox is on: always, unless it is turned off by its flag.
pub fn chromium_sandbox(can: &Capabilities, dangerously_off: bool) -> Result<bool, CellError> {
    match &can.chromium_sandbox {
        _ if dangerously_off => Ok(false),
        Ok(()) => Ok(true),
        Err(refused) => Err(unavailable(
            format!("Chromium's own sandbox cannot be had here: {refused}"),
            format!(
                "{}; or start without it: --dangerously-no-chromium-sandbox",
                remedy(refused, can)
            ),
        )),
    }
}

/// What holds in every cell, whatever its network.
fn lockable(can: &Capabilities) -> Result<(), CellError> {
    if can.landlock_abi < 1 {
        return Err(unavailable(
            "this kernel has no Landlock".to_owned(),
            "use Linux 5.13 or newer with Landlock among its security modules (boot option lsm=landlock,…)".to_owned(),
        ));
    }
    if !can.seccomp {
        return Err(unavailable(
            "this kernel has no seccomp filters".to_owned(),
            "use a kernel with CONFIG_SECCOMP_FILTER".to_owned(),
        ));
    }
    Ok(())
}

fn namespace(can: &Capabilities) -> Result<Isolation, CellError> {
    match &can.namespaces {
        Ok(()) => Ok(Isolation::Namespace),
        Err(refused) => Err(unavailable(
            format!("no user and network namespace for the cell: {refused}"),
            remedy(refused, can),
        )),
    }
}

fn container(can: &Capabilities, gateway_is_unix: bool) -> Result<Isolation, CellError> {
    if !can.interfaces.is_empty() {
        return Err(unavailable(
            format!(
                "this network namespace has other interfaces than lo: {}",
                can.interfaces.join(", ")
            ),
            "start the container with --network none".to_owned(),
        ));
    }
    if !gateway_is_unix {
        return Err(unavailable(
            "a container without a network has no way to Tor".to_owned(),
            "--gateway unix:PATH names the socket of a gateway that runs elsewhere".to_owned(),
        ));
    }
    Ok(Isolation::Container)
}

/// The one thing to change so that `refused` is not.
fn remedy(refused: &Failure, can: &Capabilities) -> String {
    let limits = &can.limits;
    if limits.max_user_namespaces == Some(0) {
        return "sysctl user.max_user_namespaces=15000".to_owned();
    }
    if limits.unprivileged_userns_clone == Some(0) {
        return "sysctl kernel.unprivileged_userns_clone=1".to_owned();
    }
    if can.container.is_some() || limits.seccomp_filtered {
        return CONTAINER_REMEDY.to_owned();
    }
    if limits.apparmor_restrict_unprivileged_userns == Some(1) {
        return "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for onioncell with `userns,`"
            .to_owned();
    }
    format!("let this user make user namespaces ({refused})")
}

fn unavailable(problem: String, remedy: String) -> CellError {
    CellError::Unavailable { problem, remedy }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn refused() -> Failure {
        Failure::new("unshare", "user namespace", Errno::EPERM)
    }

    fn blocked() -> Capabilities {
        let mut can = Capabilities::everything().without_mounts();
        can.namespaces = Err(refused());
        can.chromium_sandbox = Err(refused());
        can
    }

    fn hint(result: Result<impl std::fmt::Debug, CellError>) -> String {
        result.unwrap_err().hint().unwrap().to_owned()
    }

    #[test]
    fn auto_takes_a_namespace_where_there_is_one() {
        let can = Capabilities::everything();
        assert_eq!(
            choose(Requested::Auto, &can, false).unwrap(),
            Isolation::Namespace
        );
    }

    #[test]
    fn auto_takes_the_container_only_if_lo_is_all_it_has_and_the_gateway_is_elsewhere() {
        let mut can = blocked();
        assert!(choose(Requested::Auto, &can, true).is_err());
        can.interfaces.clear();
        assert_eq!(
            choose(Requested::Auto, &can, true).unwrap(),
            Isolation::Container
        );
        assert!(choose(Requested::Auto, &can, false).is_err());
    }

    #[test]
    fn a_container_with_a_network_is_never_taken_for_a_cell() {
        let can = Capabilities::everything();
        assert!(hint(choose(Requested::Container, &can, true)).contains("--network none"));
    }

    #[test]
    fn the_setting_that_is_in_the_way_is_named() {
        let mut can = blocked();
        can.container = Some("docker".to_owned());
        assert!(
            hint(choose(Requested::Namespace, &can, false)).contains("--security-opt seccomp=")
        );
        can.limits.max_user_namespaces = Some(0);
        assert_eq!(
            hint(choose(Requested::Auto, &can, false)),
            "sysctl user.max_user_namespaces=15000"
        );
        can.limits.max_user_namespaces = None;
        can.limits.unprivileged_userns_clone = Some(0);
        assert_eq!(
            hint(choose(Requested::Auto, &can, false)),
            "sysctl kernel.unprivileged_userns_clone=1"
        );
        can.limits.unprivileged_userns_clone = None;
        can.container = None;
        can.limits.apparmor_restrict_unprivileged_userns = Some(1);
        assert!(
            hint(choose(Requested::Auto, &can, false))
                .contains("apparmor_restrict_unprivileged_userns=0")
        );
    }

    #[test]
    fn without_landlock_or_seccomp_nothing_starts() {
        let mut can = Capabilities::everything();
        can.landlock_abi = 0;
        assert!(choose(Requested::Auto, &can, false).is_err());
        let mut can = Capabilities::everything();
        can.seccomp = false;
        assert!(choose(Requested::Auto, &can, false).is_err());
    }

    #[test]
    fn chromiums_sandbox_goes_off_only_by_its_flag() {
        assert!(chromium_sandbox(&Capabilities::everything(), false).unwrap());
        assert!(!chromium_sandbox(&blocked(), true).unwrap());
        assert!(
            hint(chromium_sandbox(&blocked(), false)).contains("--dangerously-no-chromium-sandbox")
        );
    }
}
