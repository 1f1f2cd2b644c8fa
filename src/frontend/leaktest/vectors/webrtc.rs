//! WebRTC speaks UDP and TCP by itself, past any proxy, and to multicast groups.

use super::Action::Watch;
use super::{Vector, script, vector};

pub(super) const VECTORS: &[Vector] = &[
    script(
        "stun-udp-name",
        "STUN over UDP, the server by name",
        "return ice('stun:$NAME:3478')",
    ),
    script(
        "stun-udp-ipv4",
        "STUN over UDP, the server by IPv4 address",
        "return ice('stun:$V4:3478')",
    ),
    script(
        "stun-udp-ipv6",
        "STUN over UDP, the server by IPv6 address",
        "return ice('stun:[$V6]:3478')",
    ),
    script(
        "stun-tls",
        "STUN over TLS",
        "return ice('stuns:$NAME:5349')",
    ),
    script(
        "stun-udp-lan",
        "STUN over UDP to the local network",
        "return ice('stun:$LAN:3478')",
    ),
    script(
        "stun-udp-loopback",
        "STUN over UDP to this machine",
        "return ice('stun:127.0.0.1:$PORT')",
    ),
    script(
        "turn-udp-name",
        "TURN over UDP, the server by name",
        "return ice('turn:$NAME:3478?transport=udp')",
    ),
    script(
        "turn-udp-ipv4",
        "TURN over UDP, the server by IPv4 address",
        "return ice('turn:$V4:3478?transport=udp')",
    ),
    script(
        "turn-udp-ipv6",
        "TURN over UDP, the server by IPv6 address",
        "return ice('turn:[$V6]:3478?transport=udp')",
    ),
    script(
        "turn-tcp-name",
        "TURN over TCP, the server by name",
        "return ice('turn:$NAME:3478?transport=tcp')",
    ),
    script(
        "turn-tcp-ipv4",
        "TURN over TCP, the server by IPv4 address",
        "return ice('turn:$V4:3478?transport=tcp')",
    ),
    script(
        "turn-tcp-ipv6",
        "TURN over TCP, the server by IPv6 address",
        "return ice('turn:[$V6]:3478?transport=tcp')",
    ),
    script(
        "turn-tls-name",
        "TURN over TLS, the server by name",
        "return ice('turns:$NAME:5349?transport=tcp')",
    ),
    script(
        "turn-tls-ipv4",
        "TURN over TLS, the server by IPv4 address",
        "return ice('turns:$V4:5349?transport=tcp')",
    ),
    script(
        "ice-peer-ipv4",
        "a data channel to a peer at a public IPv4 address",
        "return peer('candidate:1 1 udp 2122260223 $V4 5000 typ host')",
    ),
    script(
        "ice-peer-ipv6",
        "a data channel to a peer at a public IPv6 address",
        "return peer('candidate:1 1 udp 2122260223 $V6 5000 typ host')",
    ),
    script(
        "ice-peer-lan",
        "a data channel to a peer on the local network",
        "return peer('candidate:1 1 udp 2122260223 $LAN 5000 typ host')",
    ),
    script(
        "ice-peer-tcp",
        "a data channel over TCP to a peer at a public address",
        "return peer('candidate:1 1 tcp 1518280447 $V4 5000 typ host tcptype passive')",
    ),
    script(
        "ice-peer-mdns",
        "a data channel to a peer named in mDNS",
        "return peer('candidate:1 1 udp 2122260223 $LABEL.local 5000 typ host')",
    ),
    script(
        "ice-peer-name",
        "a data channel to a peer by host name",
        "return peer('candidate:1 1 udp 2122260223 $NAME 5000 typ host')",
    ),
    script(
        "mdns",
        "host candidates of its own, announced by mDNS",
        "return ice()",
    ),
    vector(
        "multicast-join",
        "joining multicast groups (IGMP, MLD)",
        Watch,
    ),
];
