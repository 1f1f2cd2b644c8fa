//! A host of its own for the test: a network namespace with a public-looking link that leads
//! nowhere, so that every packet a real host would send is sent, seen, and lost.
//!
//! Both ends of the link are in the namespace: nothing can leave the machine from here, whatever is
//! tried.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::{fs, io};

use futures::TryStreamExt as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::aim::{HOST_LAN, HOST_V4, HOST_V6, RESOLVER};

const LINK: &str = "eth0";
const FAR_END: &str = "far0";
/// Chromium refuses to run as root, and a single mapped user cannot become another.
const STAND_IN: u32 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot make a {what} namespace: {source}")]
    Unshare {
        what: &'static str,
        source: nix::Error,
    },
    #[error("cannot write {path}: {source}")]
    Map {
        path: &'static str,
        source: io::Error,
    },
    #[error("cannot {what}: {source}")]
    Link {
        what: &'static str,
        source: rtnetlink::Error,
    },
    #[error("cannot speak to the kernel's routing: {0}")]
    Netlink(#[source] io::Error),
    #[error("the interface {0} that was just made is not there")]
    Missing(&'static str),
}

impl HostError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            HostError::Unshare { .. } | HostError::Map { .. } => {
                "user and network namespaces are needed: in a container add \
                 --security-opt seccomp=FILE with the profile that `onioncell policy seccomp` prints; \
                 on a host set kernel.unprivileged_userns_clone=1 or \
                 kernel.apparmor_restrict_unprivileged_userns=0"
            }
            _ => {
                "the kernel must let a user namespace configure its own network: on a host with \
                 AppArmor set kernel.apparmor_restrict_unprivileged_userns=0"
            }
        }
    }
}

/// What could not be had; the test is weaker by it, and says so.
pub type Note = String;

/// Moves this process into namespaces of its own. It must have one thread only (unshare(2)).
pub fn enter() -> Result<(), HostError> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    let network = CloneFlags::CLONE_NEWNET;
    if uid.is_root() && unshare(network).is_ok() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWUSER | network).map_err(|source| HostError::Unshare {
        what: "user and network",
        source,
    })?;
    // user_namespaces(7): setgroups must be given up before an unprivileged gid_map.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", &identity(gid.as_raw()))?;
    write("/proc/self/uid_map", &identity(uid.as_raw()))
}

fn identity(id: u32) -> String {
    let inside = if id == 0 { STAND_IN } else { id };
    format!("{inside} {id} 1")
}

fn write(path: &'static str, text: &str) -> Result<(), HostError> {
    // These files take one write(2) each.
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| HostError::Map { path, source })
}

/// Points the resolver at an address beyond the link, in a mount namespace of this process. Where
/// mounts are refused the system's own resolver address stays: its packets are captured as well.
pub fn replace_resolver(directory: &Path) -> Option<Note> {
    try_replace_resolver(directory)
        .err()
        .map(|error| format!("/etc/resolv.conf stays as it is: {error}"))
}

fn try_replace_resolver(directory: &Path) -> io::Result<()> {
    let file = directory.join("resolv.conf");
    fs::write(&file, format!("nameserver {RESOLVER}\n"))?;
    let target: PathBuf = fs::canonicalize("/etc/resolv.conf")?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    // Nothing mounted here may show up outside (mount_namespaces(7)).
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(&file), &target, none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Makes the link, its addresses and the default routes.
pub async fn make_link() -> Result<Vec<Note>, HostError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(HostError::Netlink)?;
    let connection = tokio::spawn(connection);
    let made = configure(&handle).await;
    connection.abort();
    made
}

async fn configure(handle: &Handle) -> Result<Vec<Note>, HostError> {
    let failed = |what| move |source| HostError::Link { what, source };
    let pair = LinkVeth::new(LINK, FAR_END).build();
    let added = handle.link().add(pair).execute().await;
    added.map_err(failed("make a veth pair"))?;
    let mut notes = Vec::new();
    let mut link = 0;
    for name in [FAR_END, LINK] {
        link = index(handle, name).await?;
        // The kernel's own link-local address would solicit routers and report groups.
        let quiet = LinkUnspec::new_with_index(link)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
                vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)],
            )]))
            .build();
        if handle.link().set(quiet).execute().await.is_err() {
            notes.push(format!(
                "{name} keeps an IPv6 link-local address of the kernel's"
            ));
        }
        // Without ARP a packet leaves at once, whoever it is for.
        let up = LinkUnspec::new_with_index(link).arp(false).up().build();
        let set = handle.link().set(up).execute().await;
        set.map_err(failed("bring up the link"))?;
    }
    let loopback = LinkUnspec::new_with_index(index(handle, "lo").await?)
        .up()
        .build();
    let set = handle.link().set(loopback).execute().await;
    set.map_err(failed("bring up loopback"))?;

    for address in [HOST_V4, HOST_LAN] {
        let add = handle
            .address()
            .add(link, IpAddr::V4(address), 24)
            .execute()
            .await;
        add.map_err(failed("add an IPv4 address"))?;
    }
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .output_interface(link)
        .build();
    let routed = handle.route().add(route).execute().await;
    routed.map_err(failed("add the IPv4 default route"))?;
    if let Err(error) = ipv6(handle, link).await {
        notes.push(format!(
            "no IPv6 on this host, so it is not tested: {error}"
        ));
    }
    Ok(notes)
}

async fn ipv6(handle: &Handle, link: u32) -> Result<(), rtnetlink::Error> {
    handle
        .address()
        .add(link, IpAddr::V6(HOST_V6), 64)
        .execute()
        .await?;
    let route = RouteMessageBuilder::<Ipv6Addr>::new()
        .output_interface(link)
        .build();
    handle.route().add(route).execute().await
}

async fn index(handle: &Handle, name: &'static str) -> Result<u32, HostError> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    match links.try_next().await {
        Ok(Some(link)) => Ok(link.header.index),
        Ok(None) => Err(HostError::Missing(name)),
        Err(source) => Err(HostError::Link {
            what: "look up an interface",
            source,
        }),
    }
}
