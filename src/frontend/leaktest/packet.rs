//! What a captured packet says. Bytes to values, no I/O.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// One packet on its way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    pub interface: String,
    pub transport: Transport,
    pub source: IpAddr,
    pub source_port: Option<u16>,
    pub destination: IpAddr,
    pub destination_port: Option<u16>,
    /// The first question, if it is a DNS message.
    pub question: Option<Question>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    Tcp,
    Udp,
    /// A report of multicast membership: IGMP (RFC 3376) or MLD (RFC 3810).
    Membership,
    /// An ICMP error: the kernel's answer to a packet that was captured itself.
    Unreachable,
    Icmp,
    /// Not IP at all; the EtherType.
    Link(u16),
    Other(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: u16,
}

impl Packet {
    /// Reads a packet from its network header on. What cannot be read is still a packet.
    pub fn parse(interface: &str, ethertype: u16, bytes: &[u8]) -> Self {
        let network = match ethertype {
            ETHERTYPE_IPV4 => ipv4(bytes),
            ETHERTYPE_IPV6 => ipv6(bytes),
            _ => None,
        };
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let (source, destination, protocol, rest) = match network {
            Some(network) => network,
            None => (unspecified, unspecified, None, &[][..]),
        };
        let transport = protocol.map_or(Transport::Link(ethertype), |protocol| {
            classify(protocol, rest)
        });
        let ported = matches!(transport, Transport::Tcp | Transport::Udp);
        let port = |at| if ported { u16_at(rest, at) } else { None };
        let (source_port, destination_port) = (port(0), port(2));
        let dns = [source_port, destination_port]
            .iter()
            .any(|port| matches!(port, Some(53 | 5353 | 5355)));
        Packet {
            interface: interface.to_owned(),
            transport,
            source,
            source_port,
            destination,
            destination_port,
            question: match transport {
                Transport::Udp if dns => rest.get(8..).and_then(question),
                _ => None,
            },
        }
    }
}

type Network<'a> = (IpAddr, IpAddr, Option<u8>, &'a [u8]);

fn ipv4(bytes: &[u8]) -> Option<Network<'_>> {
    let header = usize::from(bytes.first()? & 0x0f) * 4;
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    Some((
        address(12)?,
        address(16)?,
        Some(*bytes.get(9)?),
        bytes.get(header..)?,
    ))
}

fn ipv6(bytes: &[u8]) -> Option<Network<'_>> {
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    let (mut next, mut rest) = (*bytes.get(6)?, bytes.get(40..)?);
    // MLD reports carry a hop-by-hop option (RFC 3810, section 5).
    if next == 0 {
        next = *rest.first()?;
        rest = rest.get((usize::from(*rest.get(1)?) + 1) * 8..)?;
    }
    Some((address(8)?, address(24)?, Some(next), rest))
}

fn classify(protocol: u8, rest: &[u8]) -> Transport {
    match (protocol, rest.first()) {
        (2, _) => Transport::Membership,
        (6, _) => Transport::Tcp,
        (17, _) => Transport::Udp,
        (1, Some(3)) | (58, Some(1)) => Transport::Unreachable,
        (58, Some(131 | 132 | 143)) => Transport::Membership,
        (1 | 58, _) => Transport::Icmp,
        _ => Transport::Other(protocol),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The first question of a DNS message (RFC 1035, section 4.1). Questions are not compressed; an
/// mDNS announcement without one is known by its first record's name.
fn question(message: &[u8]) -> Option<Question> {
    let entries: u16 = [4, 6, 8, 10]
        .into_iter()
        .filter_map(|at| u16_at(message, at))
        .fold(0, u16::saturating_add);
    if entries == 0 {
        return None;
    }
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        match length {
            0 => break,
            1..64 => {
                labels.push(String::from_utf8_lossy(message.get(at..at + length)?).to_lowercase())
            }
            _ => return None,
        }
        at += length;
    }
    Some(Question {
        name: labels.join("."),
        kind: u16_at(message, at)?,
    })
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: IpAddr, port: Option<u16>| match (address, port) {
            (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
            (address, Some(port)) => format!("{address}:{port}"),
            (address, None) => address.to_string(),
        };
        match self.transport {
            Transport::Tcp => f.write_str("tcp")?,
            Transport::Udp => f.write_str("udp")?,
            Transport::Membership => f.write_str("multicast report")?,
            Transport::Unreachable => f.write_str("icmp unreachable")?,
            Transport::Icmp => f.write_str("icmp")?,
            Transport::Link(ethertype) => {
                return write!(f, "ethertype {ethertype:#06x} on {}", self.interface);
            }
            Transport::Other(protocol) => write!(f, "ip protocol {protocol}")?,
        }
        write!(
            f,
            " {} on {}",
            end(self.destination, self.destination_port),
            self.interface
        )?;
        if let Some(question) = &self.question {
            // A name in a packet is whatever its sender put there.
            write!(
                f,
                " asks {} {}",
                question.type_name(),
                question.name.escape_debug()
            )?;
        }
        Ok(())
    }
}

impl Question {
    fn type_name(&self) -> String {
        match self.kind {
            1 => "A".into(),
            12 => "PTR".into(),
            28 => "AAAA".into(),
            65 => "HTTPS".into(),
            255 => "ANY".into(),
            other => format!("TYPE{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn dns(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    fn udp4(destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 175, 48, 2];
        packet.extend(destination);
        packet.extend(40_000_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn a_lookup_shows_its_name_and_type() {
        let bytes = udp4([192, 175, 48, 3], 53, &dns("V07.leaktest.example", 65));
        let packet = Packet::parse("eth0", 0x0800, &bytes);
        assert_eq!(
            packet.to_string(),
            "udp 192.175.48.3:53 on eth0 asks HTTPS v07.leaktest.example"
        );
    }

    #[test]
    fn a_multicast_report_behind_a_hop_by_hop_option_is_seen() {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, 0, 1];
        bytes.extend(Ipv6Addr::UNSPECIFIED.octets());
        bytes.extend("ff02::16".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend([58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0]);
        let packet = Packet::parse("eth0", 0x86dd, &bytes);
        assert_eq!(packet.to_string(), "multicast report ff02::16 on eth0");
    }

    #[test]
    fn no_bytes_are_too_odd_to_be_counted() {
        let whole = udp4([192, 175, 48, 3], 53, &dns("v07.leaktest.example", 1));
        for ethertype in [0x0800, 0x86dd, 0x0806, 0] {
            for end in 0..whole.len() {
                let packet = Packet::parse("eth0", ethertype, &whole[..end]);
                assert!(packet.to_string().contains("on eth0"));
            }
        }
        let looped = udp4(
            [192, 175, 48, 3],
            53,
            &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12],
        );
        assert_eq!(Packet::parse("eth0", 0x0800, &looped).question, None);
    }
}
