//! seccomp(2): the kinds of socket there are in a cell, and the calls nobody in it needs.
//!
//! A static filter in front of Chromium's own, which it leaves room for: clone, unshare and chroot of
//! its sandbox stay. Deny lists are weak where a kernel adds calls; the namespaces and Landlock are
//! what holds, and this is what they do not see (io_uring, fast open, datagrams on `lo`).
//!
//! socket(AF_UNIX) stays: Chromium ends itself without one (chrome/browser/process_singleton_posix.cc).

use std::collections::BTreeMap;

use libc::{EACCES, EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT};
use nix::errno::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use super::error::Failure;

/// One condition on an argument: the arguments here are all `int`, of which the kernel reads 32 bits.
#[derive(Debug, Clone, Copy)]
enum When {
    Is(u8, i32),
    Not(u8, i32),
    /// The bits of a mask have this value.
    Bits(u8, i32, i32),
}
use When::{Bits, Is, Not};

/// A call that is refused, when all of `when` hold.
struct Rule {
    call: libc::c_long,
    when: &'static [When],
    errno: i32,
    #[allow(
        dead_code,
        reason = "the reason stands beside each rule, for the reader"
    )]
    why: &'static str,
}

const fn deny(call: libc::c_long, why: &'static str) -> Rule {
    Rule {
        call,
        when: &[],
        errno: EPERM,
        why,
    }
}

const fn deny_if(call: libc::c_long, when: &'static [When], errno: i32, why: &'static str) -> Rule {
    Rule {
        call,
        when,
        errno,
        why,
    }
}

/// `type & 0xf` is not SOCK_STREAM (1): bit 0 clear, or any other bit set. One rule each.
macro_rules! not_a_stream {
    ($family:expr) => {
        [
            deny_if(
                libc::SYS_socket,
                &[Is(0, $family), Bits(1, 1, 0)],
                EACCES,
                "UDP, SEQPACKET, DCCP: what leaks",
            ),
            deny_if(
                libc::SYS_socket,
                &[Is(0, $family), Bits(1, 2, 2)],
                EACCES,
                "raw sockets",
            ),
            deny_if(
                libc::SYS_socket,
                &[Is(0, $family), Bits(1, 4, 4)],
                EACCES,
                "reliable datagrams and newer kinds",
            ),
            deny_if(
                libc::SYS_socket,
                &[Is(0, $family), Bits(1, 8, 8)],
                EACCES,
                "packet sockets of old",
            ),
        ]
    };
}

const IPV4: [Rule; 4] = not_a_stream!(libc::AF_INET);
const IPV6: [Rule; 4] = not_a_stream!(libc::AF_INET6);

const SOCKETS: &[Rule] = &[
    deny_if(
        libc::SYS_socket,
        &[
            Not(0, libc::AF_UNIX),
            Not(0, libc::AF_INET),
            Not(0, libc::AF_INET6),
        ],
        EAFNOSUPPORT,
        "netlink, packet, vsock, …; without netlink Chromium takes itself to be online",
    ),
    deny_if(
        libc::SYS_socket,
        &[Not(0, libc::AF_UNIX), Not(2, 0), Not(2, libc::IPPROTO_TCP)],
        EPROTONOSUPPORT,
        "SCTP and MPTCP, which Landlock's TCP rules do not see",
    ),
    deny_if(
        libc::SYS_sendto,
        &[FASTOPEN_3],
        EPERM,
        "connects without connect(2), unseen by Landlock",
    ),
    deny_if(
        libc::SYS_sendmsg,
        &[FASTOPEN_2],
        EPERM,
        "connects without connect(2), unseen by Landlock",
    ),
    deny_if(
        libc::SYS_sendmmsg,
        &[FASTOPEN_3],
        EPERM,
        "connects without connect(2), unseen by Landlock",
    ),
    deny_if(
        libc::SYS_setsockopt,
        &[Is(1, libc::IPPROTO_TCP), Is(2, libc::TCP_FASTOPEN_CONNECT)],
        EPERM,
        "defers connect(2) to the first write",
    ),
    deny_if(
        libc::SYS_setsockopt,
        &[Is(1, libc::IPPROTO_TCP), Is(2, libc::TCP_ULP)],
        EPERM,
        "loads kernel protocol modules into a socket",
    ),
];
const FASTOPEN_2: When = Bits(2, libc::MSG_FASTOPEN, libc::MSG_FASTOPEN);
const FASTOPEN_3: When = Bits(3, libc::MSG_FASTOPEN, libc::MSG_FASTOPEN);

/// Calls by number, because a libc may not name them: the same on every architecture since Linux 5.1.
const IO_URING_SETUP: libc::c_long = 425;
const IO_URING_ENTER: libc::c_long = 426;
const IO_URING_REGISTER: libc::c_long = 427;
const OPEN_TREE: libc::c_long = 428;
const MOVE_MOUNT: libc::c_long = 429;
const FSOPEN: libc::c_long = 430;
const FSCONFIG: libc::c_long = 431;
const FSMOUNT: libc::c_long = 432;
const FSPICK: libc::c_long = 433;
const CLONE3: libc::c_long = 435;
const PIDFD_GETFD: libc::c_long = 438;
const MOUNT_SETATTR: libc::c_long = 442;
const OPEN_TREE_ATTR: libc::c_long = 467;

const CALLS: &[Rule] = &[
    deny(
        IO_URING_SETUP,
        "makes and connects sockets past this filter",
    ),
    deny(IO_URING_ENTER, "the same"),
    deny(IO_URING_REGISTER, "the same"),
    deny(libc::SYS_setns, "the way into another namespace"),
    deny(libc::SYS_ptrace, "the way into another process"),
    deny(libc::SYS_process_vm_readv, "the memory of another process"),
    deny(libc::SYS_process_vm_writev, "the memory of another process"),
    deny(PIDFD_GETFD, "the descriptors of another process"),
    deny(libc::SYS_open_by_handle_at, "opens past every path rule"),
    deny(libc::SYS_mount, "the file system is furnished"),
    deny(libc::SYS_umount2, "the file system is furnished"),
    deny(libc::SYS_pivot_root, "the file system is furnished"),
    deny(OPEN_TREE, "the file system is furnished"),
    deny(MOVE_MOUNT, "the file system is furnished"),
    deny(FSOPEN, "the file system is furnished"),
    deny(FSCONFIG, "the file system is furnished"),
    deny(FSMOUNT, "the file system is furnished"),
    deny(FSPICK, "the file system is furnished"),
    deny(MOUNT_SETATTR, "the file system is furnished"),
    deny(OPEN_TREE_ATTR, "the file system is furnished"),
    deny(
        libc::SYS_add_key,
        "keyrings are shared by all of a user's processes",
    ),
    deny(
        libc::SYS_request_key,
        "keyrings are shared by all of a user's processes",
    ),
    deny(
        libc::SYS_keyctl,
        "keyrings are shared by all of a user's processes",
    ),
    deny(libc::SYS_bpf, "kernel attack surface"),
    deny(
        libc::SYS_perf_event_open,
        "kernel attack surface, and a view of others",
    ),
    deny(libc::SYS_userfaultfd, "makes kernel races winnable"),
    deny(libc::SYS_fanotify_init, "a view of others' files"),
    deny(libc::SYS_syslog, "a view of the kernel's log"),
    deny(libc::SYS_acct, "for administrators"),
    deny(libc::SYS_quotactl, "for administrators"),
    deny(libc::SYS_swapon, "for administrators"),
    deny(libc::SYS_swapoff, "for administrators"),
    deny(libc::SYS_reboot, "for administrators"),
    deny(libc::SYS_kexec_load, "for administrators"),
    deny(libc::SYS_init_module, "for administrators"),
    deny(libc::SYS_finit_module, "for administrators"),
    deny(libc::SYS_delete_module, "for administrators"),
    deny(libc::SYS_settimeofday, "for administrators"),
    deny(libc::SYS_clock_settime, "for administrators"),
    // Chromium's sandbox makes user, PID and network namespaces (sandbox/linux/services/namespace_sandbox.cc).
    deny_if(
        libc::SYS_unshare,
        &[MOUNT_NAMESPACE],
        EPERM,
        "a mount namespace of one's own has nothing to mount",
    ),
    deny_if(
        libc::SYS_clone,
        &[MOUNT_NAMESPACE],
        EPERM,
        "a mount namespace of one's own has nothing to mount",
    ),
    deny_if(
        CLONE3,
        &[],
        ENOSYS,
        "its flags are behind a pointer; glibc falls back to clone",
    ),
];
const MOUNT_NAMESPACE: When = Bits(0, libc::CLONE_NEWNS, libc::CLONE_NEWNS);

/// Puts the filters in place. Needs NO_NEW_PRIVS.
pub(super) fn filter() -> Result<(), Failure> {
    for program in programs()? {
        seccompiler::apply_filter(&program).map_err(refused)?;
    }
    Ok(())
}

/// One program per errno, because a filter of seccompiler has one answer.
fn programs() -> Result<Vec<BpfProgram>, Failure> {
    let mut by_errno: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    for rule in IPV4.iter().chain(&IPV6).chain(SOCKETS).chain(CALLS) {
        let chain = by_errno
            .entry(rule.errno)
            .or_default()
            .entry(rule.call)
            .or_default();
        // To seccompiler an empty chain means "always".
        if !rule.when.is_empty() {
            let conditions = rule
                .when
                .iter()
                .map(|when| when.condition())
                .collect::<Result<_, _>>();
            chain.push(SeccompRule::new(conditions.map_err(refused)?).map_err(refused)?);
        }
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(refused)?;
    let mut programs: Vec<BpfProgram> = Vec::new();
    programs.extend(no_x32());
    for (errno, rules) in by_errno {
        let answer = SeccompAction::Errno(errno.unsigned_abs());
        let filter =
            SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).map_err(refused)?;
        programs.push(filter.try_into().map_err(refused)?);
    }
    Ok(programs)
}

/// The x32 ABI has the numbers of x86-64 with bit 30 set, and the same architecture: no rule above
/// would match them.
fn no_x32() -> Option<BpfProgram> {
    const X32_BIT: u32 = 0x4000_0000;
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    cfg!(target_arch = "x86_64").then(|| {
        vec![
            step(LOAD_NUMBER, 0, 0, 0),
            step(JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | EPERM.unsigned_abs()),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]
    })
}

impl When {
    fn condition(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        let bits = |value: i32| u64::from(value.cast_unsigned());
        match self {
            Is(argument, value) => {
                SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, bits(value))
            }
            Not(argument, value) => {
                SeccompCondition::new(argument, Dword, SeccompCmpOp::Ne, bits(value))
            }
            Bits(argument, mask, value) => SeccompCondition::new(
                argument,
                Dword,
                SeccompCmpOp::MaskedEq(bits(mask)),
                bits(value),
            ),
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new("seccomp:", error, Errno::UnknownErrno)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_compile_to_a_filter_of_moderate_size() {
        let instructions: usize = programs().unwrap().iter().map(Vec::len).sum();
        assert!((100..600).contains(&instructions), "{instructions}");
    }

    #[test]
    fn an_unconditional_rule_never_shares_its_answer_with_a_conditional_one_for_the_same_call() {
        // An empty chain means "always" only while nothing else is in it.
        for rule in CALLS.iter().filter(|rule| rule.when.is_empty()) {
            let others = CALLS
                .iter()
                .chain(SOCKETS)
                .filter(|other| other.call == rule.call)
                .count();
            assert_eq!(others, 1, "call {}", rule.call);
        }
    }
}
