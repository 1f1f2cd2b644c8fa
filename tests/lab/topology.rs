//! Who is where: the one table of hosts and addresses, and the links between them.
//!
//! Addresses look public, because clients, exits and policies treat others differently, and lie in different /16s, because
//! Tor puts no two relays of one into a circuit. No link leads to the machine's own interfaces.
//!
//! The two ends of each link share a MAC address and do not use ARP or neighbour discovery: then the kernel itself sends
//! nothing on a link, and a packet to whatever address is seen as that packet rather than as a question for its neighbour.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::Result;

use super::netns::Netns;

pub const AUTHORITY: Ipv4Addr = Ipv4Addr::new(5, 39, 80, 10);
pub const DNS: Ipv4Addr = Ipv4Addr::new(9, 27, 14, 53);
pub const ONION: Ipv4Addr = Ipv4Addr::new(51, 15, 99, 20);
pub const WEB: [Ipv4Addr; 2] = [
    Ipv4Addr::new(93, 184, 16, 34),
    Ipv4Addr::new(151, 101, 20, 7),
];
pub const WEB6: Ipv6Addr = Ipv6Addr::new(0x2606, 0x2800, 0x220, 1, 0, 0, 0, 0x34);
pub const HOME: Ipv4Addr = Ipv4Addr::new(84, 115, 60, 70);
pub const HOME6: Ipv6Addr = Ipv6Addr::new(0x2a02, 0x8388, 0x60, 0, 0, 0, 0, 0x70);
/// Home's address on the neighbour's network, and the neighbour's own, which answers for a router and a cloud's metadata.
pub const HOME_LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 20);
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
pub const NEIGHBOUR6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// Relays by name; those whose name begins with "exit" are exits.
pub const RELAYS: [(&str, Ipv4Addr); 4] = [
    ("relay1", Ipv4Addr::new(23, 129, 64, 11)),
    ("relay2", Ipv4Addr::new(45, 66, 33, 12)),
    ("exit1", Ipv4Addr::new(62, 210, 82, 13)),
    ("exit2", Ipv4Addr::new(77, 247, 181, 14)),
];

/// The namespaces, made and linked.
#[derive(Debug)]
pub struct Internet {
    backbone: Netns,
    hosts: Vec<Netns>,
}

impl Internet {
    /// Makes all namespaces; nothing is connected yet, so captures can be put in place first.
    pub fn new() -> Result<Self> {
        let mut hosts = Vec::new();
        for (name, _) in uplinks() {
            hosts.push(Netns::new(name)?);
        }
        hosts.push(Netns::new("neighbour")?);
        let internet = Self {
            backbone: Netns::new("backbone")?,
            hosts,
        };
        for ns in internet.namespaces() {
            ns.sysctl(&QUIET)?;
        }
        Ok(internet)
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Netns> {
        self.hosts.iter().chain([&self.backbone])
    }

    pub fn host(&self, name: &str) -> &Netns {
        match self.namespaces().find(|ns| ns.name() == name) {
            Some(ns) => ns,
            None => panic!("the lab has no host named {name}"),
        }
    }

    pub fn set_home_resolver(&mut self, resolv_conf: &Path) -> Result<()> {
        match self.hosts.iter_mut().find(|ns| ns.name() == "home") {
            Some(home) if Path::new("/etc/resolv.conf").exists() => {
                home.set_resolv_conf(resolv_conf)
            }
            _ => Ok(()),
        }
    }

    /// Makes the links, all down. Interfaces: `eth0` everywhere, and `eth1` in home towards the neighbour.
    pub fn connect(&self) -> Result<()> {
        let mut script = String::new();
        for (number, (name, _)) in uplinks().into_iter().enumerate() {
            let mac = format!("02:00:00:00:01:{number:02x}");
            let ns = self.host(name).path();
            writeln!(
                script,
                "link add {name} address {mac} type veth peer name eth0 address {mac} netns {}",
                ns.display()
            )?;
        }
        self.backbone.ip(&script)?;
        let mac = "02:00:00:00:02:01";
        let ns = self.host("neighbour").path();
        self.host("home").ip(&format!(
            "link add eth1 address {mac} type veth peer name eth0 address {mac} netns {}\n",
            ns.display()
        ))
    }

    /// Addresses, routes, links up.
    pub fn bring_up(&self) -> Result<()> {
        let mut script = String::from("link set lo up\naddr add 198.41.7.1/32 dev lo\n");
        for (name, addresses) in uplinks() {
            writeln!(script, "link set {name} arp off up")?;
            for address in &addresses {
                writeln!(script, "route add {address} dev {name}")?;
            }
            self.host(name).ip(&host_script(&addresses)?)?;
        }
        self.backbone.ip(&script)?;
        self.backbone
            .sysctl(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
        self.host("home").ip(&format!(
            "link set eth1 arp off up\n\
             addr add {HOME_LAN}/24 dev eth1\n\
             addr add fd77::20/64 dev eth1 nodad\n\
             route add 192.168.0.0/16 via {NEIGHBOUR}\n\
             route add 10.0.0.0/8 via {NEIGHBOUR}\n\
             route add 172.16.0.0/12 via {NEIGHBOUR}\n\
             route add 100.64.0.0/10 via {NEIGHBOUR}\n\
             route add 169.254.0.0/16 dev eth1\n\
             route add fc00::/7 dev eth1\n"
        ))?;
        // Private addresses of every kind are the neighbour's own, so that whoever tries one is seen to arrive.
        self.host("neighbour").ip(&format!(
            "link set lo up\n\
             link set eth0 arp off up\n\
             addr add {NEIGHBOUR}/24 dev eth0\n\
             addr add {NEIGHBOUR6}/64 dev eth0 nodad\n\
             route add local 192.168.0.0/20 dev lo\n\
             route add local 10.0.0.0/8 dev lo\n\
             route add local 172.16.0.0/12 dev lo\n\
             route add local 100.64.0.0/10 dev lo\n\
             route add local 169.254.0.0/16 dev lo\n"
        ))
    }

    /// Pulls the plug of `host`.
    pub fn cut(&self, host: &str) -> Result<()> {
        self.backbone.ip(&format!("link set {host} down\n"))
    }

    /// Puts it back.
    pub fn mend(&self, host: &str) -> Result<()> {
        let mut script = format!("link set {host} up\n");
        for (_, addresses) in uplinks().into_iter().filter(|(name, _)| *name == host) {
            for address in addresses {
                writeln!(script, "route replace {address} dev {host}")?;
            }
        }
        self.backbone.ip(&script)
    }
}

/// No duplicate address detection, no router solicitations, no redirects: the kernel is silent of itself.
const QUIET: [(&str, &str); 6] = [
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
];

fn uplinks() -> Vec<(&'static str, Vec<IpAddr>)> {
    let mut hosts = vec![
        ("home", vec![HOME.into(), HOME6.into()]),
        ("web", vec![WEB[0].into(), WEB[1].into(), WEB6.into()]),
        ("dns", vec![DNS.into()]),
        ("onion", vec![ONION.into()]),
        ("authority", vec![AUTHORITY.into()]),
    ];
    hosts.extend(RELAYS.map(|(name, address)| (name, vec![address.into()])));
    hosts
}

fn host_script(addresses: &[IpAddr]) -> Result<String> {
    let mut script = String::from("link set lo up\nlink set eth0 arp off up\n");
    for address in addresses {
        match address {
            IpAddr::V4(v4) => writeln!(script, "addr add {v4}/32 dev eth0")?,
            IpAddr::V6(v6) => writeln!(
                script,
                "addr add {v6}/128 dev eth0 nodad\nroute replace ::/0 dev eth0"
            )?,
        }
    }
    script.push_str("route add default dev eth0\n");
    Ok(script)
}
