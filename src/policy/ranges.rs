//! The addresses that are never reachable, as one table.
//!
//! The rows are the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190),
//! whole, whatever they say of global reachability: none of their entries hosts a site. To them
//! come multicast, what lies outside 2000::/3 (RFC 4291 section 2.4: the only global unicast space
//! assigned so far), and the endpoints at which clouds hand out credentials.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// What kind of unreachable address it is. `Display` gives the reason text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    Loopback,
    Metadata,
    Private,
    LinkLocal,
    CarrierGrade,
    UniqueLocal,
    SiteLocal,
    Unspecified,
    ThisNetwork,
    Multicast,
    Broadcast,
    Documentation,
    Benchmarking,
    Discard,
    Orchid,
    SpecialPurpose,
    Reserved,
    Mapped,
    Compatible,
    Translated,
    SixToFour,
    Nat64,
    Teredo,
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressKind::Loopback => "loopback IP blocked",
            AddressKind::Metadata => "cloud metadata endpoint blocked",
            AddressKind::Private => "RFC 1918 private IP blocked",
            AddressKind::LinkLocal => "link-local IP blocked",
            AddressKind::CarrierGrade => "RFC 6598 CGN blocked",
            AddressKind::UniqueLocal => "IPv6 ULA blocked",
            AddressKind::SiteLocal => "IPv6 site-local IP blocked",
            AddressKind::Unspecified => "unspecified IP blocked",
            AddressKind::ThisNetwork => "this-network IP blocked",
            AddressKind::Multicast => "multicast IP blocked",
            AddressKind::Broadcast => "broadcast IP blocked",
            AddressKind::Documentation => "documentation IP blocked",
            AddressKind::Benchmarking => "benchmarking IP blocked",
            AddressKind::Discard => "IPv6 discard-only IP blocked",
            AddressKind::Orchid => "IPv6 ORCHID blocked",
            AddressKind::SpecialPurpose => "special-purpose IP blocked",
            AddressKind::Reserved => "reserved IP blocked",
            AddressKind::Mapped => "IPv4-mapped IPv6 spelling blocked",
            AddressKind::Compatible => "IPv4-compatible IPv6 spelling blocked",
            AddressKind::Translated => "IPv4-translated IPv6 spelling blocked",
            AddressKind::SixToFour => "6to4 IP blocked",
            AddressKind::Nat64 => "NAT64 IP blocked",
            AddressKind::Teredo => "Teredo IP blocked",
        })
    }
}

/// A row: the range, what it is, and where that is written.
#[derive(Clone, Copy, Debug)]
struct Range<Net> {
    net: Net,
    kind: AddressKind,
    #[cfg_attr(not(test), allow(dead_code, reason = "the citation is for the reader"))]
    source: &'static str,
}

const fn v4(
    octets: [u8; 4],
    prefix: u8,
    kind: AddressKind,
    source: &'static str,
) -> Range<Ipv4Net> {
    let [a, b, c, d] = octets;
    Range {
        net: Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix),
        kind,
        source,
    }
}

const fn v6(bits: u128, prefix: u8, kind: AddressKind, source: &'static str) -> Range<Ipv6Net> {
    Range {
        net: Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), prefix),
        kind,
        source,
    }
}

/// The eight groups of an IPv6 prefix, as they are written.
const fn groups(groups: [u16; 8]) -> u128 {
    let [a, b, c, d, e, f, g, h] = groups;
    Ipv6Addr::new(a, b, c, d, e, f, g, h).to_bits()
}

/// The first groups of an IPv6 prefix.
const fn head(a: u16, b: u16, c: u16, d: u16) -> u128 {
    groups([a, b, c, d, 0, 0, 0, 0])
}

use AddressKind::*;

#[rustfmt::skip]
const V4: &[Range<Ipv4Net>] = &[
    v4([0, 0, 0, 0], 8, ThisNetwork, "This network, RFC 791 section 3.2"),
    v4([0, 0, 0, 0], 32, Unspecified, "This host on this network, RFC 1122 section 3.2.1.3"),
    v4([10, 0, 0, 0], 8, Private, "Private-Use, RFC 1918"),
    v4([100, 64, 0, 0], 10, CarrierGrade, "Shared Address Space, RFC 6598"),
    v4([127, 0, 0, 0], 8, Loopback, "Loopback, RFC 1122 section 3.2.1.3"),
    v4([169, 254, 0, 0], 16, LinkLocal, "Link Local, RFC 3927"),
    v4([172, 16, 0, 0], 12, Private, "Private-Use, RFC 1918"),
    v4([192, 0, 0, 0], 24, SpecialPurpose, "IETF Protocol Assignments, RFC 6890 section 2.1"),
    v4([192, 0, 0, 0], 29, SpecialPurpose, "IPv4 Service Continuity Prefix, RFC 7335"),
    v4([192, 0, 0, 8], 32, SpecialPurpose, "IPv4 dummy address, RFC 7600"),
    v4([192, 0, 0, 9], 32, SpecialPurpose, "Port Control Protocol Anycast, RFC 7723"),
    v4([192, 0, 0, 10], 32, SpecialPurpose, "TURN Anycast, RFC 8155"),
    v4([192, 0, 0, 170], 31, SpecialPurpose, "NAT64/DNS64 Discovery, RFC 8880, RFC 7050 section 2.2"),
    v4([192, 0, 2, 0], 24, Documentation, "TEST-NET-1, RFC 5737"),
    v4([192, 31, 196, 0], 24, SpecialPurpose, "AS112-v4, RFC 7535"),
    v4([192, 52, 193, 0], 24, SpecialPurpose, "AMT, RFC 7450"),
    v4([192, 88, 99, 0], 24, SixToFour, "Deprecated 6to4 Relay Anycast, RFC 7526"),
    v4([192, 88, 99, 2], 32, SixToFour, "6a44-relay anycast address, RFC 6751"),
    v4([192, 168, 0, 0], 16, Private, "Private-Use, RFC 1918"),
    v4([192, 175, 48, 0], 24, SpecialPurpose, "Direct Delegation AS112 Service, RFC 7534"),
    v4([198, 18, 0, 0], 15, Benchmarking, "Benchmarking, RFC 2544"),
    v4([198, 51, 100, 0], 24, Documentation, "TEST-NET-2, RFC 5737"),
    v4([203, 0, 113, 0], 24, Documentation, "TEST-NET-3, RFC 5737"),
    v4([224, 0, 0, 0], 4, Multicast, "Multicast, RFC 5771"),
    v4([240, 0, 0, 0], 4, Reserved, "Reserved, RFC 1112 section 4"),
    v4([255, 255, 255, 255], 32, Broadcast, "Limited Broadcast, RFC 8190, RFC 919 section 7"),
    // Most of these lie in the ranges above; the rows give them their own reason.
    v4([169, 254, 169, 254], 32, Metadata, "AWS, Google, Azure, Oracle, DigitalOcean, OpenStack"),
    v4([169, 254, 170, 2], 32, Metadata, "AWS ECS task credentials"),
    v4([169, 254, 170, 23], 32, Metadata, "AWS EKS pod identity"),
    v4([169, 254, 0, 23], 32, Metadata, "Tencent Cloud"),
    v4([169, 254, 42, 42], 32, Metadata, "Scaleway"),
    v4([100, 100, 100, 200], 32, Metadata, "Alibaba Cloud"),
    v4([192, 0, 0, 192], 32, Metadata, "Oracle Cloud Classic"),
    v4([168, 63, 129, 16], 32, Metadata, "Azure WireServer: a public address that only the host answers"),
];

#[rustfmt::skip]
const V6: &[Range<Ipv6Net>] = &[
    v6(0, 3, Reserved, "not Global Unicast, RFC 4291 section 2.4"),
    v6(head(0x4000, 0, 0, 0), 2, Reserved, "not Global Unicast, RFC 4291 section 2.4"),
    v6(head(0x8000, 0, 0, 0), 1, Reserved, "not Global Unicast, RFC 4291 section 2.4"),
    v6(0, 128, Unspecified, "Unspecified Address, RFC 4291"),
    v6(1, 128, Loopback, "Loopback Address, RFC 4291"),
    v6(0, 96, Compatible, "IPv4-Compatible, RFC 4291 section 2.5.5.1"),
    v6(groups([0, 0, 0, 0, 0, 0xffff, 0, 0]), 96, Mapped, "IPv4-mapped Address, RFC 4291"),
    v6(groups([0, 0, 0, 0, 0xffff, 0, 0, 0]), 96, Translated, "IPv4-translated, RFC 2765 section 2.1"),
    v6(head(0x64, 0xff9b, 0, 0), 96, Nat64, "IPv4-IPv6 Translation, RFC 6052"),
    v6(head(0x64, 0xff9b, 1, 0), 48, Nat64, "IPv4-IPv6 Translation, local use, RFC 8215"),
    v6(head(0x100, 0, 0, 0), 64, Discard, "Discard-Only Address Block, RFC 6666"),
    v6(head(0x100, 0, 0, 1), 64, SpecialPurpose, "Dummy IPv6 Prefix, RFC 9780"),
    v6(head(0x2001, 0, 0, 0), 23, SpecialPurpose, "IETF Protocol Assignments, RFC 2928"),
    v6(head(0x2001, 0, 0, 0), 32, Teredo, "TEREDO, RFC 4380, RFC 8190"),
    v6(groups([0x2001, 1, 0, 0, 0, 0, 0, 1]), 128, SpecialPurpose, "Port Control Protocol Anycast, RFC 7723"),
    v6(groups([0x2001, 1, 0, 0, 0, 0, 0, 2]), 128, SpecialPurpose, "TURN Anycast, RFC 8155"),
    v6(groups([0x2001, 1, 0, 0, 0, 0, 0, 3]), 128, SpecialPurpose, "DNS-SD Service Registration Anycast, RFC 9665"),
    v6(head(0x2001, 2, 0, 0), 48, Benchmarking, "Benchmarking, RFC 5180, RFC Errata 1752"),
    v6(head(0x2001, 3, 0, 0), 32, SpecialPurpose, "AMT, RFC 7450"),
    v6(head(0x2001, 4, 0x112, 0), 48, SpecialPurpose, "AS112-v6, RFC 7535"),
    v6(head(0x2001, 0x10, 0, 0), 28, Orchid, "Deprecated ORCHID, RFC 4843"),
    v6(head(0x2001, 0x20, 0, 0), 28, Orchid, "ORCHIDv2, RFC 7343"),
    v6(head(0x2001, 0x30, 0, 0), 28, SpecialPurpose, "Drone Remote ID Entity Tags, RFC 9374"),
    v6(head(0x2001, 0xdb8, 0, 0), 32, Documentation, "Documentation, RFC 3849"),
    v6(head(0x2002, 0, 0, 0), 16, SixToFour, "6to4, RFC 3056"),
    v6(head(0x2620, 0x4f, 0x8000, 0), 48, SpecialPurpose, "Direct Delegation AS112 Service, RFC 7534"),
    v6(head(0x3ffe, 0, 0, 0), 16, Reserved, "6bone, returned, RFC 3701"),
    v6(head(0x3fff, 0, 0, 0), 20, Documentation, "Documentation, RFC 9637"),
    v6(head(0x5f00, 0, 0, 0), 16, SpecialPurpose, "Segment Routing SIDs, RFC 9602"),
    v6(head(0xfc00, 0, 0, 0), 7, UniqueLocal, "Unique-Local, RFC 4193"),
    v6(head(0xfe80, 0, 0, 0), 10, LinkLocal, "Link-Local Unicast, RFC 4291"),
    v6(head(0xfec0, 0, 0, 0), 10, SiteLocal, "Site-Local, deprecated, RFC 3879"),
    v6(head(0xff00, 0, 0, 0), 8, Multicast, "Multicast, RFC 4291 section 2.7"),
    v6(groups([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]), 128, Metadata, "AWS"),
    v6(groups([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]), 128, Metadata, "AWS EKS pod identity"),
    v6(groups([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]), 128, Metadata, "Google Cloud"),
    v6(groups([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]), 128, Metadata, "Scaleway"),
];

/// Why this address can never be reached; `None` for a public one.
pub(super) fn never(address: IpAddr) -> Option<AddressKind> {
    match address {
        IpAddr::V4(address) => never_v4(address),
        IpAddr::V6(address) => never_v6(address),
    }
}

fn never_v4(address: Ipv4Addr) -> Option<AddressKind> {
    // Both families as 128 bits, the address in the high ones.
    let bits = u128::from(address.to_bits()) << 96;
    most_specific(V4, bits, |net| {
        (u128::from(net.addr().to_bits()) << 96, net.prefix_len())
    })
}

/// An address that carries an IPv4 address is refused for what it carries, or else for its form:
/// a translator on the way would turn it into the other one.
fn never_v6(address: Ipv6Addr) -> Option<AddressKind> {
    let bits = address.to_bits();
    let kind = most_specific(V6, bits, |net| (net.addr().to_bits(), net.prefix_len()))?;
    let carried = embedded(kind, address)
        .into_iter()
        .flatten()
        .find_map(never_v4);
    Some(carried.unwrap_or(kind))
}

/// The row with the longest prefix, for the registries nest. Compared bit for bit: a network's
/// general `contains` works out its first and last address each time, and this is the hot path.
fn most_specific<Net>(
    rows: &[Range<Net>],
    address: u128,
    bits_and_prefix: impl Fn(&Net) -> (u128, u8),
) -> Option<AddressKind> {
    let covering = rows.iter().filter_map(|row| {
        let (bits, prefix) = bits_and_prefix(&row.net);
        let differing = (address ^ bits).leading_zeros() < u32::from(prefix);
        (!differing).then_some((prefix, row.kind))
    });
    covering
        .max_by_key(|(prefix, _)| *prefix)
        .map(|(_, kind)| kind)
}

/// The IPv4 addresses inside an IPv6 address of this kind.
fn embedded(kind: AddressKind, address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let bits = address.to_bits();
    // The truncation takes the low 32 bits.
    let at = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    match kind {
        Mapped | Compatible | Translated | Nat64 => [Some(at(0)), None],
        SixToFour => [Some(at(80)), None],
        // RFC 4380 section 4: the client's address with every bit flipped, and the server's.
        Teredo => [Some(Ipv4Addr::from_bits(!at(0).to_bits())), Some(at(64))],
        _ => [None, None],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<AddressKind> {
        never(text.parse().unwrap())
    }

    #[test]
    fn each_address_has_the_reason_of_its_narrowest_range() {
        for (text, expected) in [
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", ThisNetwork),
            ("10.0.0.1", Private),
            ("10.255.255.255", Private),
            ("100.64.0.1", CarrierGrade),
            ("100.127.255.255", CarrierGrade),
            ("100.100.100.200", Metadata),
            ("127.0.0.1", Loopback),
            ("127.255.255.255", Loopback),
            ("168.63.129.16", Metadata),
            ("169.254.0.1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("169.254.170.2", Metadata),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.0.0.8", SpecialPurpose),
            ("192.0.0.9", SpecialPurpose),
            ("192.0.0.171", SpecialPurpose),
            ("192.0.0.192", Metadata),
            ("192.0.2.1", Documentation),
            ("192.31.196.1", SpecialPurpose),
            ("192.52.193.1", SpecialPurpose),
            ("192.88.99.1", SixToFour),
            ("192.168.1.1", Private),
            ("192.175.48.1", SpecialPurpose),
            ("198.18.0.1", Benchmarking),
            ("198.19.255.255", Benchmarking),
            ("198.51.100.1", Documentation),
            ("203.0.113.1", Documentation),
            ("224.0.0.251", Multicast),
            ("239.255.255.250", Multicast),
            ("240.0.0.1", Reserved),
            ("255.255.255.255", Broadcast),
            ("::", Unspecified),
            ("::1", Loopback),
            ("100::1", Discard),
            ("100:0:0:1::1", SpecialPurpose),
            ("200::1", Reserved),
            ("1fff:ffff::1", Reserved),
            ("2001:1::1", SpecialPurpose),
            ("2001:2::1", Benchmarking),
            ("2001:3::1", SpecialPurpose),
            ("2001:4:112::1", SpecialPurpose),
            ("2001:10::1", Orchid),
            ("2001:2f::1", Orchid),
            ("2001:30::1", SpecialPurpose),
            ("2001:1ff::1", SpecialPurpose),
            ("2001:db8::1", Documentation),
            ("2620:4f:8000::1", SpecialPurpose),
            ("3ffe::1", Reserved),
            ("3fff::1", Documentation),
            ("3fff:fff::1", Documentation),
            ("4000::1", Reserved),
            ("5f00::1", SpecialPurpose),
            ("8000::1", Reserved),
            ("fc00::1", UniqueLocal),
            ("fd12:3456::1", UniqueLocal),
            ("fd00:ec2::254", Metadata),
            ("fd20:ce::254", Metadata),
            ("fe00::1", Reserved),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", SiteLocal),
            ("ff02::fb", Multicast),
        ] {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_neighbours_of_each_range_are_public() {
        for text in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2001:db7:ffff::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001:81b::200e",
            "3fff:1000::1",
        ] {
            assert_eq!(kind(text), None, "{text}");
        }
    }

    #[test]
    fn an_embedded_address_gives_its_own_reason_and_a_public_one_does_not_help() {
        for (text, expected) in [
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:7f00:1", Loopback),
            ("::ffff:169.254.169.254", Metadata),
            ("::ffff:8.8.8.8", Mapped),
            ("::127.0.0.1", Loopback),
            ("::10.0.0.1", Private),
            ("::8.8.8.8", Compatible),
            ("::ffff:0:192.168.0.1", Private),
            ("::ffff:0:8.8.8.8", Translated),
            ("2002:7f00:1::", Loopback),
            ("2002:a00:1::1", Private),
            ("2002:808:808::1", SixToFour),
            ("64:ff9b::7f00:1", Loopback),
            ("64:ff9b::192.168.0.1", Private),
            ("64:ff9b::8.8.8.8", Nat64),
            ("64:ff9b:1::10.0.0.1", Private),
            ("64:ff9b:1::8.8.8.8", Nat64),
            // Teredo client 192.168.0.1 (flipped), server 65.54.227.120.
            ("2001:0:4136:e378:8000:63bf:3f57:fffe", Private),
            // Teredo server 10.0.0.1, client 8.8.8.8.
            ("2001:0:a00:1:0:0:f7f7:f7f7", Private),
            ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", Teredo),
        ] {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn every_row_is_a_network_address_with_a_source() {
        for row in V4 {
            assert_eq!(row.net, row.net.trunc(), "{}", row.source);
            assert!(!row.source.is_empty());
        }
        for row in V6 {
            assert_eq!(row.net, row.net.trunc(), "{}", row.source);
            assert!(!row.source.is_empty());
        }
    }
}
