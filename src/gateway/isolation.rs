//! Who a connection belongs to: sessions, and the keys that keep their circuits apart.
//!
//! Chromium's SOCKS client sends no credentials, so inside the cell the address it dialled says
//! which session it is: each browser context is given a `socks5://127.0.0.N` of its own. Over a
//! unix socket the launcher on the other side sends a token as the SOCKS user name.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use serde::{Serialize, Serializer};

/// A session as the ledger names it. Carries no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionId {
    /// The session whose browser context dials this loopback address: the lower 24 bits of it.
    Local(u32),
    /// A launcher behind a unix socket; the tag is a keyed hash of its token.
    Peer { uid: u32, tag: u32 },
    /// A connection that never said who it is.
    Unknown,
}

impl SessionId {
    /// The loopback address that a browser context of this session is given as its proxy.
    pub fn loopback(self) -> Option<Ipv4Addr> {
        match self {
            SessionId::Local(number) => Some(Ipv4Addr::from_bits(0x7f00_0000 | number)),
            SessionId::Peer { .. } | SessionId::Unknown => None,
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionId::Local(number) => write!(f, "s{number}"),
            SessionId::Peer { uid, tag } => write!(f, "u{uid}-{tag:08x}"),
            SessionId::Unknown => f.write_str("-"),
        }
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Two connections may share a circuit only if their keys are equal.
///
/// Only [`Isolation`] makes one, from what the kernel says of an accepted socket.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IsolationKey {
    session: SessionId,
    token: u128,
}

impl IsolationKey {
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The 128-bit token as text: what another gateway or a Tor daemon isolates by.
    pub(super) fn token(&self) -> String {
        format!("{:032x}", self.token)
    }
}

impl fmt::Debug for IsolationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IsolationKey({})", self.session)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot draw random bytes for session isolation")]
pub struct NoRandomness;

/// Gives every accepted connection its key.
pub struct Isolation {
    /// Random per process, so that keys of two runs differ towards a shared upstream.
    secret: u128,
    /// How often a session's circuits were renewed; sessions never renewed have no entry.
    generations: Mutex<HashMap<u32, u64>>,
    tags: RandomState,
}

impl Isolation {
    pub fn new() -> Result<Self, NoRandomness> {
        let mut secret = [0; 16];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut secret)
            .map_err(|_| NoRandomness)?;
        Ok(Self {
            secret: u128::from_ne_bytes(secret),
            generations: Mutex::default(),
            tags: RandomState::new(),
        })
    }

    /// The key of a TCP connection, by the address it was accepted on. Only loopback has sessions.
    pub fn key_for(&self, local: SocketAddr) -> Option<IsolationKey> {
        let IpAddr::V4(address) = local.ip().to_canonical() else {
            return None;
        };
        if !address.is_loopback() {
            return None;
        }
        let number = address.to_bits() & 0x00ff_ffff;
        let generation = self.generations().get(&number).copied().unwrap_or(0);
        Some(IsolationKey {
            session: SessionId::Local(number),
            token: self.secret ^ (u128::from(number) << 64) ^ u128::from(generation),
        })
    }

    /// The key of a unix-socket connection: the peer's uid by the kernel (SO_PEERCRED, unix(7))
    /// and the token it sent, 32 hexadecimal digits.
    pub fn key_for_peer(&self, uid: u32, username: &[u8]) -> Option<IsolationKey> {
        if username.len() != 32 || !username.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let token = u128::from_str_radix(std::str::from_utf8(username).ok()?, 16).ok()?;
        #[allow(clippy::cast_possible_truncation)] // a tag for people, not an identity
        let tag = self.tags.hash_one((uid, token)) as u32;
        Some(IsolationKey {
            session: SessionId::Peer { uid, tag },
            token: token ^ (u128::from(uid) << 96),
        })
    }

    /// Connections of this session accepted from now on share no circuit with earlier ones.
    pub fn renew(&self, session: SessionId) {
        if let SessionId::Local(number) = session {
            *self.generations().entry(number).or_default() += 1;
        }
    }

    fn generations(&self) -> std::sync::MutexGuard<'_, HashMap<u32, u64>> {
        self.generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolation").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn two_loopback_addresses_are_two_sessions_and_one_is_one() {
        let isolation = Isolation::new().unwrap();
        let first = isolation.key_for(at("127.0.0.2:1080")).unwrap();
        assert_eq!(first, isolation.key_for(at("127.0.0.2:9")).unwrap());
        assert_ne!(first, isolation.key_for(at("127.0.0.3:1080")).unwrap());
        assert_eq!(first.session().to_string(), "s2");
        assert_eq!(
            first.session().loopback(),
            Some(Ipv4Addr::new(127, 0, 0, 2))
        );
    }

    #[test]
    fn an_address_that_is_not_loopback_has_no_session() {
        let isolation = Isolation::new().unwrap();
        for text in [
            "192.0.2.1:1080",
            "[::1]:1080",
            "[2001:db8::1]:1080",
            "0.0.0.0:1080",
        ] {
            assert_eq!(isolation.key_for(at(text)), None, "{text}");
        }
        assert!(isolation.key_for(at("[::ffff:127.0.0.1]:1080")).is_some());
    }

    #[test]
    fn renewing_one_session_changes_its_key_and_no_other() {
        let isolation = Isolation::new().unwrap();
        let (a, b) = (at("127.0.0.2:1"), at("127.0.0.3:1"));
        let (old_a, old_b) = (isolation.key_for(a).unwrap(), isolation.key_for(b).unwrap());
        isolation.renew(old_a.session());
        assert_ne!(isolation.key_for(a).unwrap(), old_a);
        assert_ne!(isolation.key_for(a).unwrap().token(), old_a.token());
        assert_eq!(isolation.key_for(b).unwrap(), old_b);
    }

    #[test]
    fn a_peer_is_its_uid_and_its_token() {
        let isolation = Isolation::new().unwrap();
        let token = b"000102030405060708090a0b0c0d0e0f";
        let key = isolation.key_for_peer(1000, token).unwrap();
        assert_eq!(key, isolation.key_for_peer(1000, token).unwrap());
        assert_ne!(key, isolation.key_for_peer(1001, token).unwrap());
        for bad in [
            &b""[..],
            b"x",
            b"+00102030405060708090a0b0c0d0e0f",
            &[0xff; 32],
        ] {
            assert_eq!(isolation.key_for_peer(1000, bad), None);
        }
    }

    #[test]
    fn debug_output_shows_no_token() {
        let isolation = Isolation::new().unwrap();
        let key = isolation.key_for(at("127.0.0.2:1")).unwrap();
        assert_eq!(format!("{key:?}"), "IsolationKey(s2)");
        assert!(!format!("{isolation:?}").contains(&key.token()));
        let token = "000102030405060708090a0b0c0d0e0f";
        let peer = isolation.key_for_peer(7, token.as_bytes()).unwrap();
        assert!(!format!("{peer:?}").contains("00010203"));
    }
}
