//! Chromium's debugging pipe: NUL-terminated JSON on two file descriptors, typed at both ends.
//!
//! A pipe and not a port: there is no socket that a page or a neighbour could reach. The types are
//! chromiumoxide's; only events that somebody waits for are parsed, so an event that a newer
//! Chromium invented disturbs nobody.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chromiumoxide_types::{Command, MethodType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

/// Longer messages end the connection: a full-page screenshot is some tens of megabytes.
const MAX_MESSAGE: usize = 512 * 1024 * 1024;

/// What can go wrong with one call.
#[derive(Debug, thiserror::Error)]
pub enum CdpError {
    #[error("Chromium closed its debugging pipe")]
    Closed,
    #[error("{method}: {message}")]
    Refused {
        method: String,
        code: i64,
        message: String,
    },
    #[error("{method}: Chromium's message was not understood: {source}")]
    Malformed {
        method: String,
        source: serde_json::Error,
    },
    #[error("cannot use the debugging pipe: {0}")]
    Pipe(#[source] std::io::Error),
}

/// The connection to one browser. Cheap to clone; ends when Chromium closes the pipe.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    next_id: AtomicU64,
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    state: Mutex<State>,
    closed: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    pending: HashMap<u64, oneshot::Sender<Reply>>,
    subscriptions: Vec<Subscription>,
}

type Reply = Result<Box<RawValue>, ErrorBody>;

#[derive(Debug)]
struct Subscription {
    session: Option<Arc<str>>,
    methods: Vec<String>,
    sender: mpsc::UnboundedSender<Event>,
}

/// One event, not yet parsed.
#[derive(Clone, Debug)]
pub struct Event {
    pub method: String,
    params: Box<RawValue>,
}

impl Event {
    /// The event as `E`, if it is one and is well-formed.
    pub fn parse<E: MethodType + DeserializeOwned>(&self) -> Option<E> {
        if E::method_id() != self.method {
            return None;
        }
        match serde_json::from_str(self.params.get()) {
            Ok(event) => Some(event),
            Err(error) => {
                tracing::debug!(method = self.method, %error, "event not understood");
                None
            }
        }
    }
}

/// Events of some kinds of one session, in the order Chromium sent them.
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// The next event; `None` once the pipe is closed.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The next event that is a well-formed `E`, skipping others.
    pub async fn next_as<E: MethodType + DeserializeOwned>(&mut self) -> Option<E> {
        loop {
            if let Some(event) = self.next().await?.parse() {
                return Some(event);
            }
        }
    }
}

#[derive(Deserialize)]
struct Incoming<'a> {
    id: Option<u64>,
    method: Option<String>,
    #[serde(rename = "sessionId")]
    session: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorBody>,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    code: i64,
    message: String,
}

#[derive(Serialize)]
struct Outgoing<'a, P> {
    id: u64,
    method: &'a str,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    params: P,
}

impl Connection {
    /// Takes over our ends of the pipe: `read` carries what Chromium says, `write` what it hears.
    pub fn open(read: OwnedFd, write: OwnedFd) -> Result<Self, CdpError> {
        let reader = pipe::Receiver::from_owned_fd(read).map_err(CdpError::Pipe)?;
        let writer = pipe::Sender::from_owned_fd(write).map_err(CdpError::Pipe)?;
        let (outgoing, queue) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(false);
        let shared = Arc::new(Shared {
            next_id: AtomicU64::new(1),
            outgoing,
            state: Mutex::default(),
            closed,
        });
        tokio::spawn(write_all(writer, queue));
        tokio::spawn(read_all(reader, shared.clone(), closing));
        Ok(Self { shared })
    }

    /// The browser itself, as opposed to one of its targets.
    pub fn root(&self) -> Session {
        Session {
            connection: self.clone(),
            id: None,
        }
    }

    /// An attached target.
    pub fn session(&self, id: impl AsRef<str>) -> Session {
        Session {
            connection: self.clone(),
            id: Some(Arc::from(id.as_ref())),
        }
    }

    /// Completes when Chromium has closed the pipe.
    pub async fn closed(&self) {
        let mut closed = self.shared.closed.clone();
        // An error means that the reader is gone, which is the same thing.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// One target's side of the connection.
#[derive(Clone, Debug)]
pub struct Session {
    connection: Connection,
    id: Option<Arc<str>>,
}

/// A command that was sent and whose answer can be awaited later, or not at all.
#[derive(Debug)]
pub struct Pending<C> {
    method: String,
    answer: oneshot::Receiver<Reply>,
    command: std::marker::PhantomData<fn() -> C>,
}

impl<C: Command> Pending<C> {
    pub async fn answer(self) -> Result<C::Response, CdpError> {
        match self.answer.await {
            Err(_) => Err(CdpError::Closed),
            Ok(Err(ErrorBody { code, message })) => Err(CdpError::Refused {
                method: self.method,
                code,
                message,
            }),
            Ok(Ok(result)) => {
                serde_json::from_str(result.get()).map_err(|source| CdpError::Malformed {
                    method: self.method,
                    source,
                })
            }
        }
    }
}

impl Session {
    /// Sends a command and waits for its answer. The caller bounds the time.
    pub async fn call<C: Command>(&self, command: C) -> Result<C::Response, CdpError> {
        self.send(command)?.answer().await
    }

    /// Sends a command without waiting: commands arrive in the order they were sent.
    pub fn send<C: Command>(&self, command: C) -> Result<Pending<C>, CdpError> {
        let method = command.identifier().into_owned();
        let shared = &self.connection.shared;
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let mut message = serde_json::to_vec(&Outgoing {
            id,
            method: &method,
            session: self.id.as_deref(),
            params: command,
        })
        .map_err(|source| CdpError::Malformed {
            method: method.clone(),
            source,
        })?;
        message.push(0);
        let (sender, answer) = oneshot::channel();
        {
            let mut state = shared.state();
            if state.closed {
                return Err(CdpError::Closed);
            }
            state.pending.insert(id, sender);
        }
        shared
            .outgoing
            .send(message)
            .map_err(|_| CdpError::Closed)?;
        Ok(Pending {
            method,
            answer,
            command: std::marker::PhantomData,
        })
    }

    /// Subscribes to some kinds of events of this session, from now on.
    pub fn events(&self, methods: &[chromiumoxide_types::MethodId]) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.connection.shared.state();
        if !state.closed {
            state.subscriptions.push(Subscription {
                session: self.id.clone(),
                methods: methods.iter().map(|method| method.to_string()).collect(),
                sender,
            });
        }
        Events(receiver)
    }

    /// Subscribes to one kind of event.
    pub fn events_of<E: MethodType>(&self) -> Events {
        self.events(&[E::method_id()])
    }

    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Shared {
    /// The state is consistent between any two statements, so a panic elsewhere cannot spoil it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, message: &[u8]) {
        let incoming: Incoming<'_> = match serde_json::from_slice(message) {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, "Chromium sent a message that is not JSON-RPC");
                return;
            }
        };
        let mut state = self.state();
        match (incoming.id, incoming.method) {
            (Some(id), _) => {
                if let Some(waiting) = state.pending.remove(&id) {
                    let reply = match incoming.error {
                        Some(error) => Err(error),
                        None => Ok(owned(incoming.result)),
                    };
                    // Nobody may be waiting any more: `send` without `answer`.
                    let _ = waiting.send(reply);
                }
            }
            (None, Some(method)) => {
                let session = incoming.session.as_deref();
                let params = incoming.params;
                state.subscriptions.retain(|subscription| {
                    let wanted = subscription.session.as_deref() == session
                        && subscription.methods.contains(&method);
                    if !wanted {
                        return !subscription.sender.is_closed();
                    }
                    let event = Event {
                        method: method.clone(),
                        params: owned(params),
                    };
                    subscription.sender.send(event).is_ok()
                });
            }
            // An error without an id answers a message that we never sent.
            (None, None) => tracing::warn!(error = ?incoming.error, "Chromium sent an error"),
        }
    }

    fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        // Dropping the senders wakes every waiter.
        state.pending.clear();
        state.subscriptions.clear();
    }
}

fn owned(value: Option<&RawValue>) -> Box<RawValue> {
    value.map_or_else(|| RawValue::NULL.to_owned(), ToOwned::to_owned)
}

async fn write_all(mut writer: pipe::Sender, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = writer.write_all(&message).await {
            tracing::debug!(%error, "debugging pipe closed for writing");
            return;
        }
    }
}

async fn read_all(mut reader: pipe::Receiver, shared: Arc<Shared>, closing: watch::Sender<bool>) {
    let mut framer = Framer::default();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match reader.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(length) => {
                if !framer.push(&chunk[..length], |message| shared.dispatch(message)) {
                    tracing::error!("Chromium sent a message over {MAX_MESSAGE} bytes");
                    break;
                }
            }
        }
    }
    shared.close();
    closing.send_replace(true);
}

/// Cuts a byte stream at its NULs. Each byte is looked at once, however long a message is.
#[derive(Debug, Default)]
struct Framer {
    partial: Vec<u8>,
}

impl Framer {
    /// Feeds bytes; false when a message exceeds the limit.
    fn push(&mut self, mut bytes: &[u8], mut deliver: impl FnMut(&[u8])) -> bool {
        while let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            if self.partial.is_empty() {
                deliver(&bytes[..end]);
            } else {
                self.partial.extend_from_slice(&bytes[..end]);
                deliver(&self.partial);
                // A huge message must not pin its buffer for the life of the browser.
                self.partial = Vec::new();
            }
            bytes = &bytes[end + 1..];
        }
        self.partial.extend_from_slice(bytes);
        self.partial.len() <= MAX_MESSAGE
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;
    use chromiumoxide_cdp::cdp::browser_protocol::browser::GetVersionParams;
    use chromiumoxide_cdp::cdp::browser_protocol::page::EventLoadEventFired;
    use std::io::{BufRead, BufReader, Write};

    fn frames(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut framer = Framer::default();
        let mut seen = Vec::new();
        for chunk in chunks {
            assert!(framer.push(chunk, |message| seen.push(message.to_vec())));
        }
        seen
    }

    #[test]
    fn messages_are_the_same_however_the_stream_is_cut() {
        let stream = b"{\"a\":1}\0\0{\"b\":2}\0tail";
        let whole = frames(&[stream]);
        assert_eq!(
            whole,
            [b"{\"a\":1}".to_vec(), vec![], b"{\"b\":2}".to_vec()]
        );
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(&bytes), whole);
        for cut in 0..stream.len() {
            assert_eq!(frames(&[&stream[..cut], &stream[cut..]]), whole);
        }
    }

    /// A connection and the far ends of its pipe, where a test plays Chromium.
    fn pair() -> (Connection, BufReader<std::fs::File>, std::fs::File) {
        let (heard_read, heard_write) = std::io::pipe().unwrap();
        let (said_read, said_write) = std::io::pipe().unwrap();
        let connection = Connection::open(said_read.into(), heard_write.into()).unwrap();
        (
            connection,
            BufReader::new(OwnedFd::from(heard_read).into()),
            OwnedFd::from(said_write).into(),
        )
    }

    fn next_message(heard: &mut BufReader<std::fs::File>) -> serde_json::Value {
        let mut message = Vec::new();
        heard.read_until(0, &mut message).unwrap();
        message.pop();
        serde_json::from_slice(&message).unwrap()
    }

    #[tokio::test]
    async fn answers_find_their_calls_in_any_order() {
        let (connection, mut heard, mut say) = pair();
        let first = connection.root().send(GetVersionParams::default()).unwrap();
        let second = connection
            .session("S")
            .send(GetVersionParams::default())
            .unwrap();
        let (heard_first, heard_second) = tokio::task::spawn_blocking(move || {
            (next_message(&mut heard), next_message(&mut heard))
        })
        .await
        .unwrap();
        assert_eq!(heard_first["method"], "Browser.getVersion");
        assert_eq!(heard_second["sessionId"], "S");
        let version = r#"{"protocolVersion":"1","product":"C","revision":"r","userAgent":"U","jsVersion":"j"}"#;
        write!(
            say,
            "garbage\0{{\"id\":{},\"result\":{version}}}\0{{\"id\":{},\"error\":{{\"code\":-32000,\"message\":\"no\"}}}}\0",
            heard_second["id"], heard_first["id"],
        )
        .unwrap();
        assert_eq!(second.answer().await.unwrap().product, "C");
        let refused = first.answer().await.unwrap_err().to_string();
        assert_eq!(refused, "Browser.getVersion: no");
    }

    #[tokio::test]
    async fn an_event_reaches_only_the_session_that_subscribed() {
        let (connection, _heard, mut say) = pair();
        let mut mine = connection.session("A").events_of::<EventLoadEventFired>();
        let mut other = connection.session("B").events_of::<EventLoadEventFired>();
        for session in ["A", "B"] {
            write!(
                say,
                "{{\"method\":\"Page.loadEventFired\",\"sessionId\":\"{session}\",\"params\":{{\"timestamp\":{}}}}}\0",
                session.len(),
            )
            .unwrap();
        }
        drop(say);
        assert!(mine.next_as::<EventLoadEventFired>().await.is_some());
        assert!(mine.next().await.is_none());
        assert!(other.next_as::<EventLoadEventFired>().await.is_some());
        assert!(other.next().await.is_none());
    }

    #[tokio::test]
    async fn a_closed_pipe_fails_calls_instead_of_hanging_them() {
        let (connection, _heard, say) = pair();
        let waiting = connection.root().send(GetVersionParams::default()).unwrap();
        drop(say);
        connection.closed().await;
        assert!(matches!(waiting.answer().await, Err(CdpError::Closed)));
        let late = connection.root().call(GetVersionParams::default()).await;
        assert!(matches!(late, Err(CdpError::Closed)));
    }
}
