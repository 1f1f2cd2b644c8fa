//! The server side of SOCKS5 (RFC 1928, RFC 1929) as bytes: no I/O.
//!
//! One thing is served, CONNECT; everything else yields the exact bytes of its refusal.

use tor_socksproto::{
    Buffer, Handshake as _, NextStep, SocksAuth, SocksCmd, SocksProxyHandshake, SocksRequest,
    SocksStatus,
};

use super::egress::EgressErrorKind;
use super::ledger::Outcome;

const VERSION_4: u8 = 4;
const VERSION_5: u8 = 5;
const USERNAME_PASSWORD: u8 = 2;
/// "If the selected METHOD is X'FF', none of the methods listed by the client are acceptable".
const NO_ACCEPTABLE_METHOD: [u8; 2] = [VERSION_5, 0xff];
/// SOCKS4's "request rejected or failed".
const SOCKS4_REJECTED: [u8; 8] = [0, 0x5b, 0, 0, 0, 0, 0, 0];
/// ATYP values of RFC 1928: IPv4, domain name, IPv6.
const ADDRESS_TYPES: [u8; 3] = [1, 3, 4];

/// Whether a client has to say who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// Chromium sends none.
    Optional,
    /// Without a user name there is no session to isolate.
    Required,
}

/// What to do next in a negotiation.
#[derive(Debug)]
pub(super) enum Step {
    /// Write these bytes, then ask again.
    Send(Vec<u8>),
    /// Read into [`Negotiation::space`], say how much with [`Negotiation::filled`], ask again.
    Receive,
    Request(Request),
    Refuse(Refusal),
}

/// A CONNECT request.
#[derive(Debug)]
pub(super) struct Request {
    /// The host as the client wrote it: a name, or an address as text.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) username: Option<Vec<u8>>,
    /// What the client sent after the request, without waiting for the reply.
    pub(super) early: Vec<u8>,
    inner: SocksRequest,
}

impl Request {
    pub(super) fn reply(&self, status: SocksStatus) -> Vec<u8> {
        self.inner
            .reply(status, None)
            .unwrap_or_else(|_| reply(SocksStatus::GENERAL_FAILURE))
    }
}

/// Why a client was turned away, and the bytes that tell it (none: just close).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) reply: Vec<u8>,
}

/// One client's negotiation.
#[derive(Debug)]
pub(super) struct Negotiation {
    handshake: SocksProxyHandshake,
    buffer: Buffer,
    credentials: Credentials,
    expecting: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Greeting,
    Password,
    Request,
}

impl Negotiation {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self {
            handshake: SocksProxyHandshake::new(),
            buffer: Buffer::new(),
            credentials,
            expecting: Message::Greeting,
        }
    }

    pub(super) fn space(&mut self) -> &mut [u8] {
        self.buffer.unfilled_slice()
    }

    pub(super) fn filled(&mut self, bytes: usize) {
        if let Ok(bytes) = bytes.min(self.space().len()).try_into() {
            self.buffer.note_received(bytes);
        }
    }

    pub(super) fn step(&mut self) -> Step {
        // 1. What the parser would accept or report without the bytes of a refusal.
        if let Some(refusal) = self.refuse_early() {
            return Step::Refuse(refusal);
        }
        // 2. The parser.
        match self.handshake.step(&mut self.buffer) {
            Ok(NextStep::Send(bytes)) => {
                self.expecting = match (self.expecting, bytes.as_slice()) {
                    (Message::Greeting, [_, USERNAME_PASSWORD]) => Message::Password,
                    _ => Message::Request,
                };
                Step::Send(bytes)
            }
            Ok(NextStep::Recv(_)) => Step::Receive,
            Ok(NextStep::Finished(finished)) => {
                let (inner, early) = finished.into_output_and_slice();
                let early = early.to_vec();
                accept(inner, early)
            }
            Err(_) => Step::Refuse(match self.expecting {
                Message::Request => refusal("malformed request", SocksStatus::GENERAL_FAILURE),
                Message::Greeting | Message::Password => closed("not SOCKS5"),
            }),
        }
    }

    fn refuse_early(&mut self) -> Option<Refusal> {
        let (expecting, credentials) = (self.expecting, self.credentials);
        let bytes = self.buffer.filled_slice();
        match (expecting, bytes) {
            (Message::Greeting, [VERSION_4, ..]) => Some(Refusal {
                reason: "SOCKS4 is not served",
                reply: SOCKS4_REJECTED.to_vec(),
            }),
            (Message::Greeting, [VERSION_5, count, methods @ ..]) => {
                let methods = methods.get(..usize::from(*count))?;
                let acceptable = methods.contains(&USERNAME_PASSWORD)
                    || credentials == Credentials::Optional && methods.contains(&0);
                (!acceptable).then(|| Refusal {
                    reason: "no acceptable authentication method",
                    reply: NO_ACCEPTABLE_METHOD.to_vec(),
                })
            }
            (Message::Request, [VERSION_5, command, _, _, ..])
                if SocksCmd::from(*command) != SocksCmd::CONNECT =>
            {
                Some(refusal(
                    "only CONNECT is served",
                    SocksStatus::COMMAND_NOT_SUPPORTED,
                ))
            }
            (Message::Request, [VERSION_5, _, _, kind, ..]) if !ADDRESS_TYPES.contains(kind) => {
                Some(refusal(
                    "unknown address type",
                    SocksStatus::ADDRTYPE_NOT_SUPPORTED,
                ))
            }
            _ => None,
        }
    }
}

fn accept(inner: SocksRequest, early: Vec<u8>) -> Step {
    if inner.command() != SocksCmd::CONNECT {
        return Step::Refuse(refusal(
            "only CONNECT is served",
            SocksStatus::COMMAND_NOT_SUPPORTED,
        ));
    }
    let username = match inner.auth() {
        SocksAuth::Username(username, _) => Some(username.clone()),
        _ => None,
    };
    Step::Request(Request {
        host: inner.addr().to_string(),
        port: inner.port(),
        username,
        early,
        inner,
    })
}

fn refusal(reason: &'static str, status: SocksStatus) -> Refusal {
    Refusal {
        reason,
        reply: reply(status),
    }
}

fn closed(reason: &'static str) -> Refusal {
    Refusal {
        reason,
        reply: Vec::new(),
    }
}

/// A reply without a bound address: RFC 1928 section 6, BND.ADDR 0.0.0.0, BND.PORT 0.
fn reply(status: SocksStatus) -> Vec<u8> {
    vec![VERSION_5, status.into(), 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The one table from how a connection ended to what the client is told.
pub(super) fn reply_code(outcome: &Outcome) -> SocksStatus {
    match outcome {
        Outcome::Completed | Outcome::Broken(_) | Outcome::Idle => SocksStatus::SUCCEEDED,
        Outcome::Denied(_) => SocksStatus::NOT_ALLOWED,
        Outcome::Refused(_) | Outcome::Unanswered(_) | Outcome::Unrecorded(_) => {
            SocksStatus::GENERAL_FAILURE
        }
        Outcome::Shutdown => SocksStatus::GENERAL_FAILURE,
        Outcome::Failed { kind, .. } => match kind {
            EgressErrorKind::Denied => SocksStatus::NOT_ALLOWED,
            EgressErrorKind::NotReady | EgressErrorKind::Unreachable => {
                SocksStatus::NETWORK_UNREACHABLE
            }
            EgressErrorKind::Dns
            | EgressErrorKind::OnionNotFound
            | EgressErrorKind::OnionDown
            | EgressErrorKind::OnionAddress => SocksStatus::HOST_UNREACHABLE,
            EgressErrorKind::Refused => SocksStatus::CONNECTION_REFUSED,
            EgressErrorKind::Timeout => SocksStatus::TTL_EXPIRED,
            EgressErrorKind::ExitPolicy | EgressErrorKind::Protocol | EgressErrorKind::Io => {
                SocksStatus::GENERAL_FAILURE
            }
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    /// Feeds messages one by one and returns all bytes sent and the last step.
    fn run(credentials: Credentials, messages: &[&[u8]]) -> (Vec<u8>, Step) {
        let mut negotiation = Negotiation::new(credentials);
        let (mut sent, mut messages) = (Vec::new(), messages.iter());
        loop {
            match negotiation.step() {
                Step::Send(bytes) => sent.extend(bytes),
                Step::Receive => match messages.next() {
                    Some(bytes) => {
                        negotiation.space()[..bytes.len()].copy_from_slice(bytes);
                        negotiation.filled(bytes.len());
                    }
                    None => return (sent, Step::Receive),
                },
                Step::Refuse(refusal) => {
                    sent.extend(&refusal.reply);
                    return (sent, Step::Refuse(refusal));
                }
                done @ Step::Request(_) => return (sent, done),
            }
        }
    }

    const HELLO: &[u8] = &[5, 1, 0];

    #[test]
    fn connect_by_name_is_a_request() {
        let (sent, step) = run(
            Credentials::Optional,
            &[HELLO, b"\x05\x01\x00\x03\x0bexample.com\x01\xbbearly"],
        );
        assert_eq!(sent, [5, 0]);
        let Step::Request(request) = step else {
            panic!("{step:?}")
        };
        assert_eq!((request.host.as_str(), request.port), ("example.com", 443));
        assert_eq!(request.early, b"early");
        assert_eq!(request.username, None);
        assert_eq!(
            request.reply(SocksStatus::SUCCEEDED),
            [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_request_in_single_bytes_is_the_same_request() {
        let bytes = b"\x05\x01\x00\x05\x01\x00\x03\x07a.onion\x00\x50";
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let (sent, step) = run(Credentials::Optional, &single);
        assert_eq!(sent, [5, 0]);
        let Step::Request(request) = step else {
            panic!("{step:?}")
        };
        assert_eq!((request.host.as_str(), request.port), ("a.onion", 80));
    }

    #[test]
    fn addresses_come_as_text() {
        for (bytes, host) in [
            (
                &b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"[..],
                "127.0.0.1",
            ),
            (
                b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50",
                "::1",
            ),
        ] {
            let (_, step) = run(Credentials::Optional, &[HELLO, bytes]);
            let Step::Request(request) = step else {
                panic!("{step:?}")
            };
            assert_eq!(request.host, host);
        }
    }

    #[test]
    fn everything_but_connect_gets_its_exact_refusal() {
        let refused = |code: u8| vec![5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0];
        let request = |command: u8, kind: u8| {
            let mut bytes = vec![5, command, 0, kind, 1, b'x'];
            bytes.extend([0, 80]);
            bytes
        };
        for (name, message, expected) in [
            ("BIND", request(2, 3), refused(7)),
            ("UDP ASSOCIATE", request(3, 3), refused(7)),
            ("RESOLVE", request(0xf0, 3), refused(7)),
            ("RESOLVE_PTR", request(0xf1, 3), refused(7)),
            ("command 0", request(0, 3), refused(7)),
            ("address type 2", request(1, 2), refused(8)),
            ("address type 255", request(1, 255), refused(8)),
            ("port 0", vec![5, 1, 0, 3, 1, b'x', 0, 0], refused(1)),
            ("not UTF-8", vec![5, 1, 0, 3, 1, 0xff, 0, 80], refused(1)),
            ("NUL in the name", vec![5, 1, 0, 3, 1, 0, 0, 80], refused(1)),
        ] {
            let (sent, step) = run(Credentials::Optional, &[HELLO, &message]);
            assert!(matches!(step, Step::Refuse(_)), "{name}: {step:?}");
            assert_eq!(sent, expected, "{name}");
        }
    }

    #[test]
    fn other_protocols_are_refused_or_closed() {
        for (name, message, expected) in [
            (
                "SOCKS4",
                &b"\x04\x01\x00\x50\x01\x02\x03\x04\x00"[..],
                &SOCKS4_REJECTED[..],
            ),
            (
                "SOCKS4a",
                b"\x04\x01\x00\x50\x00\x00\x00\x01\x00a.b\x00",
                &SOCKS4_REJECTED,
            ),
            ("GSSAPI only", &[5, 1, 1], &NO_ACCEPTABLE_METHOD),
            ("no methods", &[5, 0], &NO_ACCEPTABLE_METHOD),
            ("HTTP", b"GET / HTTP/1.1\r\n\r\n", &[]),
            ("TLS", &[0x16, 3, 1, 2, 0], &[]),
        ] {
            let (sent, step) = run(Credentials::Optional, &[message]);
            assert!(matches!(step, Step::Refuse(_)), "{name}: {step:?}");
            assert_eq!(sent, expected, "{name}");
        }
    }

    #[test]
    fn required_credentials_cannot_be_left_out() {
        let (sent, step) = run(Credentials::Required, &[HELLO]);
        assert!(matches!(step, Step::Refuse(_)));
        assert_eq!(sent, NO_ACCEPTABLE_METHOD);

        let (sent, step) = run(
            Credentials::Required,
            &[
                &[5, 2, 0, 2],
                b"\x01\x04name\x01x",
                b"\x05\x01\x00\x03\x03a.b\x00\x50",
            ],
        );
        assert_eq!(sent, [5, 2, 1, 0]);
        let Step::Request(request) = step else {
            panic!("{step:?}")
        };
        assert_eq!(request.username.as_deref(), Some(&b"name"[..]));
    }

    #[test]
    fn a_negotiation_longer_than_any_is_refused() {
        let mut negotiation = Negotiation::new(Credentials::Optional);
        let mut rounds = 0;
        loop {
            match negotiation.step() {
                Step::Receive => {
                    let space = negotiation.space();
                    space.fill(5);
                    let filled = space.len();
                    negotiation.filled(filled);
                }
                Step::Send(_) => {}
                Step::Refuse(_) | Step::Request(_) => break,
            }
            rounds += 1;
            assert!(rounds < 10);
        }
    }

    #[test]
    fn every_outcome_has_its_reply_code() {
        use EgressErrorKind as Kind;
        for (outcome, code) in [
            (Outcome::Completed, 0x00),
            (Outcome::Denied("x".into()), 0x02),
            (Outcome::Refused("x".into()), 0x01),
            (Outcome::Unanswered("x".into()), 0x01),
            (Outcome::Unrecorded("x".into()), 0x01),
            (Outcome::Shutdown, 0x01),
        ] {
            assert_eq!(u8::from(reply_code(&outcome)), code, "{outcome:?}");
        }
        for (kind, code) in [
            (Kind::NotReady, 0x03),
            (Kind::Denied, 0x02),
            (Kind::Dns, 0x04),
            (Kind::Refused, 0x05),
            (Kind::Timeout, 0x06),
            (Kind::Unreachable, 0x03),
            (Kind::OnionNotFound, 0x04),
            (Kind::OnionDown, 0x04),
            (Kind::OnionAddress, 0x04),
            (Kind::ExitPolicy, 0x01),
            (Kind::Protocol, 0x01),
            (Kind::Io, 0x01),
        ] {
            let outcome = Outcome::Failed {
                kind,
                message: String::new(),
            };
            assert_eq!(u8::from(reply_code(&outcome)), code, "{kind:?}");
        }
    }
}
