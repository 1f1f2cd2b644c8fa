//! What a captured frame says, from bytes alone.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

pub const IGMP: u8 = 2;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
const ICMPV6: u8 = 58;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

#[derive(Debug, Clone)]
pub struct Packet {
    pub time: SystemTime,
    /// "home/eth0" and so on.
    pub link: &'static str,
    pub direction: Direction,
    pub ethertype: u16,
    pub src: Option<IpAddr>,
    pub dst: Option<IpAddr>,
    /// The transport: an IP protocol number.
    pub protocol: Option<u8>,
    pub src_port: Option<u16>,
    pub dst_port: Option<u16>,
    /// On the wire, with the Ethernet header.
    pub length: usize,
    /// The first question, where it is DNS, mDNS or LLMNR.
    pub dns: Option<String>,
    /// The beginning of the frame.
    pub bytes: Vec<u8>,
}

impl Packet {
    pub fn parse(
        time: SystemTime,
        link: &'static str,
        direction: Direction,
        length: usize,
        frame: &[u8],
    ) -> Self {
        let mut packet = Self {
            time,
            link,
            direction,
            ethertype: be16(frame, 12).unwrap_or(0),
            src: None,
            dst: None,
            protocol: None,
            src_port: None,
            dst_port: None,
            length,
            dns: None,
            bytes: frame.to_vec(),
        };
        let network = frame.get(14..).unwrap_or_default();
        let transport = match packet.ethertype {
            IPV4 => packet.ipv4(network),
            IPV6 => packet.ipv6(network),
            ARP => packet.arp(network),
            _ => None,
        };
        if let Some(transport) = transport {
            packet.ports(transport);
        }
        packet
    }

    /// Source and destination, of TCP only.
    pub fn tcp_ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        if self.protocol != Some(TCP) {
            return None;
        }
        Some((
            (self.src?, self.src_port?).into(),
            (self.dst?, self.dst_port?).into(),
        ))
    }

    fn ipv4<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let header = usize::from(bytes.first()? & 0x0f) * 4;
        self.protocol = Some(*bytes.get(9)?);
        self.src = Some(IpAddr::from(array::<4>(bytes, 12)?));
        self.dst = Some(IpAddr::from(array::<4>(bytes, 16)?));
        // Only the first fragment has ports.
        if be16(bytes, 6)? & 0x1fff != 0 {
            return None;
        }
        bytes.get(header..)
    }

    fn ipv6<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.src = Some(IpAddr::from(array::<16>(bytes, 8)?));
        self.dst = Some(IpAddr::from(array::<16>(bytes, 24)?));
        let (mut next, mut rest) = (*bytes.get(6)?, bytes.get(40..)?);
        // Hop-by-hop, routing and destination options: next header, length in units of 8 bytes (RFC 8200).
        while matches!(next, 0 | 43 | 60) {
            next = *rest.first()?;
            rest = rest.get((usize::from(*rest.get(1)?) + 1) * 8..)?;
        }
        self.protocol = Some(next);
        Some(rest)
    }

    fn arp<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.src = Some(IpAddr::from(array::<4>(bytes, 14)?));
        self.dst = Some(IpAddr::from(array::<4>(bytes, 24)?));
        None
    }

    fn ports(&mut self, transport: &[u8]) {
        if !matches!(self.protocol, Some(TCP | UDP)) {
            return;
        }
        self.src_port = be16(transport, 0);
        self.dst_port = be16(transport, 2);
        let named = [self.src_port, self.dst_port]
            .into_iter()
            .flatten()
            .any(|port| matches!(port, 53 | 5353 | 5355));
        if named && self.protocol == Some(UDP) {
            self.dns = transport.get(8..).and_then(dns_question);
        }
    }
}

/// "A example.com" from a message with at least one question (RFC 1035, 4.1).
fn dns_question(message: &[u8]) -> Option<String> {
    if be16(message, 4)? == 0 {
        return None;
    }
    let (mut at, mut name) = (12, String::new());
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        if length >= 0xc0 {
            return None;
        }
        name.push_str(&String::from_utf8_lossy(message.get(at..at + length)?));
        name.push('.');
        at += length;
    }
    let kind = match be16(message, at)? {
        1 => "A".to_owned(),
        12 => "PTR".to_owned(),
        28 => "AAAA".to_owned(),
        65 => "HTTPS".to_owned(),
        other => format!("TYPE{other}"),
    };
    Some(format!("{kind} {}", name.trim_end_matches('.')))
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = if self.direction == Direction::Out {
            "out"
        } else {
            "in"
        };
        write!(f, "{} {arrow} ", self.link)?;
        match (self.ethertype, self.protocol) {
            (ARP, _) => write!(f, "ARP")?,
            (IPV4 | IPV6, Some(TCP)) => write!(f, "TCP")?,
            (IPV4 | IPV6, Some(UDP)) => write!(f, "UDP")?,
            (IPV4, Some(1)) => write!(f, "ICMP")?,
            (IPV4, Some(IGMP)) => write!(f, "IGMP")?,
            (IPV6, Some(ICMPV6)) => write!(f, "ICMPv6")?,
            (IPV4 | IPV6, Some(other)) => write!(f, "IP protocol {other}")?,
            (other, _) => write!(f, "ethertype {other:#06x}")?,
        }
        let end = |address: Option<IpAddr>, port: Option<u16>| match (address, port) {
            (Some(address), Some(port)) => SocketAddr::new(address, port).to_string(),
            (Some(address), None) => address.to_string(),
            _ => "?".to_owned(),
        };
        write!(
            f,
            " {} -> {}",
            end(self.src, self.src_port),
            end(self.dst, self.dst_port)
        )?;
        if let Some(question) = &self.dns {
            write!(f, " DNS {question}")?;
        }
        write!(f, ", {} bytes", self.length)
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(array(bytes, at)?))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}
