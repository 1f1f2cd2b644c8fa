//! The cell's network: `lo`, and on it the gateway's listener.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::sethostname;

use super::error::{Failure, On};

/// netdevice(7): sets IFF_UP on `lo`, which gives it 127.0.0.0/8 and ::1.
pub(super) fn raise_loopback() -> Result<(), Failure> {
    let any = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .on("create", "socket")?;
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives across the call.
    let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(result).on("bring up", "lo").map(drop)
}

/// Every loopback address, because each session has one of its own. In a container the
/// container's only interface is `lo`, so "every address" is the same there.
pub(super) fn listen(port: u16) -> Result<TcpListener, Failure> {
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    TcpListener::bind(address).on("bind the gateway's listener to", address)
}

/// The machine's name is nobody's business. In a UTS namespace of its own.
pub(super) fn forget_hostname() -> Result<(), Failure> {
    sethostname("localhost").on("set", "host name")
}

/// The interfaces of this network namespace that are up, other than `lo`. Those that are down (the
/// kernel's own tunl0, sit0) carry nothing, and raising one needs a capability that the cell has not.
pub(super) fn interfaces() -> Result<Vec<String>, Failure> {
    let all = getifaddrs().on("list", "network interfaces")?;
    let carries = |flags: InterfaceFlags| {
        flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK)
    };
    let mut names: Vec<String> = all
        .filter(|each| carries(each.flags))
        .map(|each| each.interface_name)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
