//! One connection, from the accept to its row in the ledger.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tor_socksproto::SocksStatus;

use super::Gateway;
use super::egress::{EgressErrorKind, Stream};
use super::isolation::IsolationKey;
use super::ledger::{Entry, Judgement, Outcome};
use super::relay::relay;
use super::socks::{Credentials, Negotiation, Refusal, Request, Step, reply_code};
use crate::policy::{Host, Target, Verdict};

/// How long a refused client may take to read its refusal.
const LINGER: Duration = Duration::from_millis(500);

/// Completes when the gateway shuts down, which drops the sender.
type Stopping = watch::Receiver<()>;

/// A client's socket.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// Completes when the peer has closed its side and sent nothing before.
    fn left(&self) -> impl Future<Output = ()> + Send;
}

macro_rules! socket {
    ($type:ty) => {
        impl Socket for $type {
            async fn left(&self) {
                match self.ready(Interest::READABLE).await {
                    Ok(ready) if !ready.is_read_closed() => std::future::pending().await,
                    _ => {}
                }
            }
        }
    };
}
socket!(TcpStream);
socket!(UnixStream);

impl Gateway {
    pub(super) async fn tcp(&self, stream: TcpStream, stopping: Stopping) {
        let entry = self.ledger.open();
        let key = stream
            .local_addr()
            .ok()
            .and_then(|local| self.isolation.key_for(local));
        match (key, stream.set_nodelay(true)) {
            (Some(key), Ok(())) => {
                let whose = |_: &Request| Some(key.clone());
                self.serve_one(stream, entry, Credentials::Optional, whose, stopping)
                    .await;
            }
            (None, _) => entry.close(Outcome::Refused(
                "not accepted on a loopback address".into(),
            )),
            (_, Err(error)) => entry.close(Outcome::Unanswered(error.to_string())),
        }
    }

    pub(super) async fn unix(&self, stream: UnixStream, stopping: Stopping) {
        let entry = self.ledger.open();
        match stream.peer_cred() {
            Ok(peer) => {
                let whose = |request: &Request| {
                    let username = request.username.as_deref()?;
                    self.isolation.key_for_peer(peer.uid(), username)
                };
                self.serve_one(stream, entry, Credentials::Required, whose, stopping)
                    .await;
            }
            Err(error) => entry.close(Outcome::Refused(format!("SO_PEERCRED: {error}"))),
        }
    }

    async fn serve_one<S: Socket>(
        &self,
        mut stream: S,
        mut entry: Entry,
        credentials: Credentials,
        whose: impl Fn(&Request) -> Option<IsolationKey>,
        mut stopping: Stopping,
    ) {
        let (outcome, farewell) = tokio::select! {
            biased;
            end = self.stations(&mut stream, &mut entry, credentials, whose) => end,
            _ = stopping.changed() => (Outcome::Shutdown, None),
        };
        // The row first: a browser that reads the refusal can ask the ledger why.
        entry.close(outcome);
        if let Some(reply) = farewell {
            turn_away(&mut stream, &reply).await;
        }
    }

    /// The stations of a connection, in order; how it ended, and what is still to be said to the
    /// client. Nothing is dialled before the verdict.
    async fn stations<S: Socket>(
        &self,
        stream: &mut S,
        entry: &mut Entry,
        credentials: Credentials,
        whose: impl Fn(&Request) -> Option<IsolationKey>,
    ) -> (Outcome, Option<Vec<u8>>) {
        // 1. What does it ask?
        let asked = timeout(self.limits.handshake, negotiate(stream, credentials)).await;
        let mut request = match asked {
            Ok(Ok(Ok(request))) => request,
            Ok(Ok(Err(refusal))) => {
                return (Outcome::Refused(refusal.reason.into()), Some(refusal.reply));
            }
            Ok(Err(error)) => {
                return (Outcome::Unanswered(format!("handshake: {error}")), None);
            }
            Err(_) => return (Outcome::Unanswered("handshake timed out".into()), None),
        };
        // 2. Whose is it, may it, and does it work?
        match self.open(stream, entry, &request, whose).await {
            Err(outcome) => {
                let reply = request.reply(reply_code(&outcome));
                (outcome, Some(reply))
            }
            // 3. Answer and relay.
            Ok(mut upstream) => {
                if let Err(error) = stream
                    .write_all(&request.reply(SocksStatus::SUCCEEDED))
                    .await
                {
                    return (Outcome::Unanswered(format!("reply: {error}")), None);
                }
                let (early, idle) = (std::mem::take(&mut request.early), self.limits.idle);
                let end = relay(stream, &mut upstream, early, entry.traffic(), idle).await;
                (end, None)
            }
        }
    }

    async fn open<S: Socket>(
        &self,
        stream: &S,
        entry: &mut Entry,
        request: &Request,
        whose: impl Fn(&Request) -> Option<IsolationKey>,
    ) -> Result<Stream, Outcome> {
        // 1. The session.
        entry.target(request.host.clone(), request.port);
        let key = whose(request).ok_or_else(|| Outcome::Refused("no session token".into()))?;
        entry.session(key.session());
        // 2. The verdict.
        let target = self.judge(entry, request)?;
        // 3. What could not be recorded is not done.
        self.ledger
            .ready()
            .map_err(|error| Outcome::Unrecorded(error.to_string()))?;
        // 4. The connection, for as long as somebody waits for it.
        let dial = timeout(self.limits.connect, self.egress.connect(&target, &key));
        tokio::select! {
            biased;
            dialled = dial => match dialled {
                Ok(Ok(upstream)) => Ok(upstream),
                Ok(Err(error)) if error.kind() == EgressErrorKind::Denied => {
                    Err(Outcome::Denied(error.message().to_owned()))
                }
                Ok(Err(error)) => Err(Outcome::Failed {
                    kind: error.kind(),
                    message: error.message().to_owned(),
                }),
                Err(_) => Err(Outcome::Failed {
                    kind: EgressErrorKind::Timeout,
                    message: format!("no connection within {} s", self.limits.connect.as_secs()),
                }),
            },
            () = stream.left() => Err(Outcome::Unanswered("the client left".into())),
        }
    }

    fn judge(&self, entry: &mut Entry, request: &Request) -> Result<Target, Outcome> {
        let deny = |entry: &mut Entry, reason: String| {
            entry.verdict(Judgement::Deny, reason.clone());
            Err(Outcome::Denied(reason))
        };
        let host = match Host::parse(&request.host) {
            Ok(host) => host,
            Err(error) => return deny(entry, error.to_string()),
        };
        let target = Target {
            host,
            port: request.port,
        };
        entry.target(target.host.to_string(), target.port);
        match self.policy.judge(&target) {
            Verdict::Allow(rule) => {
                entry.verdict(Judgement::Allow, rule.to_string());
                Ok(target)
            }
            Verdict::Deny(denial) => deny(entry, denial.to_string()),
        }
    }
}

/// Reads the request, or what to refuse it with.
async fn negotiate<S: Socket>(
    stream: &mut S,
    credentials: Credentials,
) -> io::Result<Result<Request, Refusal>> {
    let mut negotiation = Negotiation::new(credentials);
    loop {
        match negotiation.step() {
            Step::Send(bytes) => stream.write_all(&bytes).await?,
            Step::Receive => match stream.read(negotiation.space()).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => negotiation.filled(read),
            },
            Step::Request(request) => return Ok(Ok(request)),
            Step::Refuse(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Sends a refusal and waits until it was read: closing a socket with unread input resets it
/// (RFC 1122 section 4.2.2.13), and the reset would overtake the refusal.
async fn turn_away<S: Socket>(stream: &mut S, reply: &[u8]) {
    let farewell = async {
        stream.write_all(reply).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Whether it was read or not, the connection ends here.
    let _ = timeout(LINGER, farewell).await;
}
