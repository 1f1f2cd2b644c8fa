//! Where each vector aims: a label, addresses and a port of its own, and the way back from a packet
//! or a request to the vector.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::packet::{Packet, Transport};
use super::vectors;

/// The test's own site. RFC 2606 reserves the name: it is nobody's.
pub const DOMAIN: &str = "leaktest.example";

/// The addresses of the test's host: public ones, so that policy has nothing against their like.
/// Whoever has them is never reached: both ends of the host's only link are in its namespace, which
/// no packet can leave.
pub(super) const HOST_V4: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 2);
pub(super) const HOST_LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
pub(super) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0x2606, 0x2800, 0x21f, 0, 0, 0, 0, 2);
/// The resolver that the test's host is told to use.
pub(super) const RESOLVER: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 3);
/// Where the capture's own marker goes.
pub(super) const MARKER: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 4);

/// Where the planted packet goes at the resolver's address: no vector's.
pub(super) const PLANTED_PORT: u16 = 4_444;

const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Vector n is the n-th address after this one in each network, …
const FIRST: u8 = 20;
/// … and the n-th port of this machine.
const FIRST_PORT: u16 = 20_000;

const V4: [u8; 3] = [93, 184, 215];
const LAN: [u8; 3] = [192, 168, 77];
const TEN: [u8; 3] = [10, 77, 0];
const B16: [u8; 3] = [172, 16, 77];
const CGN: [u8; 3] = [100, 64, 77];
const LINK_LOCAL: [u8; 3] = [169, 254, 77];
const NETWORKS: [[u8; 3]; 6] = [V4, LAN, TEN, B16, CGN, LINK_LOCAL];

const V6: [u16; 7] = [0x2606, 0x2800, 0x21f, 0, 0, 0, 0x77];
const ULA: [u16; 7] = [0xfd77, 0, 0, 0, 0, 0, 0x77];
const LINK_LOCAL_V6: [u16; 7] = [0xfe80, 0, 0, 0, 0, 0, 0x77];
const NETWORKS_V6: [[u16; 7]; 3] = [V6, ULA, LINK_LOCAL_V6];

/// One vector's targets.
#[derive(Clone, Copy, Debug)]
pub struct Aim<'a> {
    pub number: u8,
    pub domain: &'a str,
}

impl Aim<'_> {
    pub fn label(&self) -> String {
        format!("v{:02}", self.number)
    }

    fn name(&self) -> String {
        format!("{}.{}", self.label(), self.domain)
    }

    fn address(&self, [a, b, c]: [u8; 3]) -> Ipv4Addr {
        Ipv4Addr::new(a, b, c, FIRST + self.number)
    }

    fn address_v6(&self, [a, b, c, d, e, f, g]: [u16; 7]) -> Ipv6Addr {
        Ipv6Addr::new(a, b, c, d, e, f, g, u16::from(self.number))
    }

    pub(super) fn port(&self) -> u16 {
        FIRST_PORT + u16::from(self.number)
    }

    /// Replaces the placeholders of a vector's text with this vector's targets.
    pub fn fill(&self, text: &str) -> String {
        let public = self.address(V4);
        let [a, b, c, d] = public.octets();
        [
            ("$NAME", self.name()),
            ("$LABEL", self.label()),
            ("$DOMAIN", self.domain.to_owned()),
            ("$PORT", self.port().to_string()),
            ("$V4", public.to_string()),
            ("$V6", self.address_v6(V6).to_string()),
            ("$DEC", public.to_bits().to_string()),
            ("$OCT", format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}")),
            ("$HEX", format!("{:#x}", public.to_bits())),
            ("$LAN", self.address(LAN).to_string()),
            ("$TEN", self.address(TEN).to_string()),
            ("$B16", self.address(B16).to_string()),
            ("$CGN", self.address(CGN).to_string()),
            ("$LLA", self.address(LINK_LOCAL).to_string()),
            ("$LL6", self.address_v6(LINK_LOCAL_V6).to_string()),
            ("$ULA", self.address_v6(ULA).to_string()),
            ("$OWN", HOST_LAN.to_string()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (placeholder, value)| {
            text.replace(placeholder, value)
        })
    }
}

/// The vector that a packet belongs to.
pub(super) fn owner_of_packet(packet: &Packet, domain: &str) -> Option<u8> {
    let ends = [Some(packet.destination), Some(packet.source)];
    let by_name = || {
        packet
            .question
            .as_ref()
            .and_then(|asked| owner_of_name(&asked.name, domain))
    };
    let by_address = || ends.into_iter().flatten().find_map(owner_of_address);
    let by_port = || {
        [packet.destination_port, packet.source_port]
            .into_iter()
            .flatten()
            .find_map(owner_of_port)
    };
    by_name()
        .or_else(by_address)
        .or_else(|| service(packet).and_then(vectors::number))
        .or_else(by_port)
}

/// The vector that a request at the gateway belongs to.
pub(super) fn owner_of_request(host: &str, port: u16, domain: &str) -> Option<u8> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => owner_of_address(address).or_else(|| owner_of_port(port)),
        Err(_) => owner_of_label(host)
            .or_else(|| owner_of_port(port))
            .or_else(|| owner_of_name(host, domain)),
    }
}

/// A vector's label anywhere in the name: search lists append, DNS-SD prepends.
fn owner_of_label(name: &str) -> Option<u8> {
    name.split('.').find_map(|label| {
        let digits = label.strip_prefix('v')?;
        let number = (digits.len() >= 2).then(|| digits.parse().ok())??;
        exists(number)
    })
}

fn owner_of_name(name: &str, domain: &str) -> Option<u8> {
    let watched = || {
        let first = name.split('.').next().unwrap_or_default();
        if name == domain {
            "page-name-lookup"
        } else if first == "wpad" {
            "proxy-discovery"
        } else if name.contains("_ipp") || name.contains("_printer") {
            "printer-discovery"
        } else if name.contains("_googlecast") || name.contains("_display") {
            "cast"
        } else if name == "android.clients.google.com" || first == "mtalk" {
            "push"
        } else if name.ends_with(".local") || name.ends_with(".arpa") {
            "mdns"
        } else if !name.contains('.') {
            "intranet-probe"
        } else {
            "background-services"
        }
    };
    owner_of_label(name).or_else(|| vectors::number(watched()))
}

fn owner_of_address(address: IpAddr) -> Option<u8> {
    match address.to_canonical() {
        IpAddr::V4(METADATA) => vectors::number("fetch-metadata"),
        IpAddr::V4(address) => {
            let [a, b, c, last] = address.octets();
            NETWORKS.contains(&[a, b, c]).then_some(())?;
            exists(last.checked_sub(FIRST)?)
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, last] = address.segments();
            NETWORKS_V6.contains(&[a, b, c, d, e, f, g]).then_some(())?;
            exists(u8::try_from(last).ok()?)
        }
    }
}

fn owner_of_port(port: u16) -> Option<u8> {
    exists(u8::try_from(port.checked_sub(FIRST_PORT)?).ok()?)
}

fn exists(number: u8) -> Option<u8> {
    vectors::all()
        .any(|(known, _)| known == number)
        .then_some(number)
}

/// Services that are known by their port or group, whoever set them off.
fn service(packet: &Packet) -> Option<&'static str> {
    match (packet.transport, packet.destination_port) {
        (Transport::Membership, _) => Some("multicast-join"),
        (_, Some(5353)) => Some("mdns"),
        (Transport::Udp, Some(1900)) => Some("cast"),
        (_, Some(631)) => Some("printer-discovery"),
        (Transport::Udp, Some(443)) => Some("http3-alt-svc"),
        (Transport::Udp, Some(67)) => Some("proxy-discovery"),
        (_, Some(853)) => Some("background-services"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use crate::frontend::leaktest::packet::Question;
    use url::Url;

    /// Every URL in a vector's text, with its placeholders filled.
    fn urls(number: u8, text: &str) -> Vec<Url> {
        let filled = Aim {
            number,
            domain: DOMAIN,
        }
        .fill(text);
        assert!(!filled.contains('$') || filled.contains("${"), "{filled}");
        let mut found = Vec::new();
        for scheme in ["http://", "https://", "ws://", "wss://"] {
            for (start, _) in filled.match_indices(scheme) {
                let rest = &filled[start..];
                let end = rest
                    .find(['\'', '"', ')', ' ', '<', '\\'])
                    .unwrap_or(rest.len());
                found.push(Url::parse(&rest[..end]).unwrap());
            }
        }
        found
    }

    #[test]
    fn a_request_of_any_vector_leads_back_to_that_vector() {
        let mut checked = 0;
        for (number, vector) in vectors::all() {
            let text = match vector.action {
                vectors::Action::Markup(_, text)
                | vectors::Action::Script(_, text)
                | vectors::Action::Navigate(text) => text,
                _ => continue,
            };
            for url in urls(number, text) {
                let port = url.port_or_known_default().unwrap();
                let owner = owner_of_request(url.host_str().unwrap(), port, DOMAIN);
                assert_eq!(owner, Some(number), "{}: {url}", vector.name);
                checked += 1;
            }
        }
        assert!(checked > 60, "{checked}");
    }

    fn packet(transport: Transport, destination: &str, port: u16) -> Packet {
        Packet {
            interface: "eth0".into(),
            transport,
            source: IpAddr::V4(HOST_V4),
            source_port: Some(40_000),
            destination: destination.parse().unwrap(),
            destination_port: Some(port),
            question: None,
        }
    }

    #[test]
    fn packets_lead_back_by_question_address_port_and_service() {
        let named = |packet: &Packet| {
            owner_of_packet(packet, DOMAIN)
                .and_then(|number| vectors::all().find(|(known, _)| *known == number))
                .map(|(_, vector)| vector.name)
        };
        let mut lookup = packet(Transport::Udp, &RESOLVER.to_string(), 53);
        for (name, owner) in [
            ("v01.leaktest.example", "stun-udp-name"),
            ("leaktest.example", "page-name-lookup"),
            ("wpad.lan", "proxy-discovery"),
            ("qwrtzpsdf", "intranet-probe"),
            ("update.googleapis.com", "background-services"),
            ("mtalk.google.com", "push"),
        ] {
            lookup.question = Some(Question {
                name: name.into(),
                kind: 1,
            });
            assert_eq!(named(&lookup), Some(owner), "{name}");
        }
        assert_eq!(
            named(&packet(Transport::Udp, "93.184.215.22", 3478)),
            Some("stun-udp-ipv4")
        );
        assert_eq!(
            named(&packet(Transport::Udp, "2606:2800:21f::77:3", 3478)),
            Some("stun-udp-ipv6")
        );
        assert_eq!(
            named(&packet(Transport::Tcp, "169.254.169.254", 80)),
            Some("fetch-metadata")
        );
        assert_eq!(
            named(&packet(Transport::Udp, "127.0.0.1", 20_006)),
            Some("stun-udp-loopback")
        );
        assert_eq!(
            named(&packet(Transport::Udp, "239.255.255.250", 1900)),
            Some("cast")
        );
        assert_eq!(
            named(&packet(Transport::Membership, "224.0.0.22", 0)),
            Some("multicast-join")
        );
        assert_eq!(named(&packet(Transport::Tcp, "8.8.8.8", 80)), None);
    }
}
