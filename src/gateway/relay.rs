//! Carries bytes both ways between two streams.
//!
//! Memory is bounded by one buffer a direction: nothing is read that could not be written. Each
//! direction ends by itself (half-close), and what one side can no longer take does not cut off
//! what the other still says.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ledger::{Outcome, Traffic};

/// A direction's buffer: larger reads mean fewer system calls, and Tor packs 498 bytes a cell
/// anyway, so that beyond this nothing is gained.
const BUFFER: usize = 64 * 1024;

/// Relays until both directions have ended, one side breaks, or nothing moves for `idle` twice.
///
/// `early` is what the client sent ahead of the reply.
pub(super) async fn relay<A, B>(
    client: &mut A,
    upstream: &mut B,
    early: Vec<u8>,
    traffic: &Traffic,
    idle: Duration,
) -> Outcome
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Direction::new(early, &traffic.up);
    let mut down = Direction::new(Vec::new(), &traffic.down);
    let mut both = poll_fn(|cx| {
        let upward = up.poll(cx, client, upstream);
        let downward = down.poll(cx, upstream, client);
        match (upward, downward) {
            // A side that cannot be read is gone: nothing more can come of either direction.
            (Poll::Ready(End::Unreadable(error)), _) => {
                Poll::Ready(Outcome::Broken(format!("client: {error}")))
            }
            (_, Poll::Ready(End::Unreadable(error))) => {
                Poll::Ready(Outcome::Broken(format!("remote: {error}")))
            }
            // A client that takes no more needs no more; a remote that takes no more (say, an
            // upload refused by an early answer) may still have an answer to give.
            (_, Poll::Ready(End::Unwritable(error))) => {
                Poll::Ready(Outcome::Broken(format!("client: {error}")))
            }
            (Poll::Ready(End::Unwritable(error)), Poll::Ready(End::Closed)) => {
                Poll::Ready(Outcome::Broken(format!("remote: {error}")))
            }
            (Poll::Ready(End::Closed), Poll::Ready(End::Closed)) => Poll::Ready(Outcome::Completed),
            _ => Poll::Pending,
        }
    });
    let mut before = traffic.total();
    loop {
        match tokio::time::timeout(idle, &mut both).await {
            Ok(outcome) => return outcome,
            Err(_) => {
                let now = traffic.total();
                if now == before {
                    return Outcome::Idle;
                }
                before = now;
            }
        }
    }
}

/// How a direction ended.
#[derive(Clone, Debug)]
enum End {
    Closed,
    Unreadable(String),
    Unwritable(String),
}

/// One direction: source → buffer → sink.
struct Direction<'a> {
    buffer: Vec<u8>,
    /// `buffer[start..end]` is read and not yet written.
    start: usize,
    end: usize,
    /// The source has said all.
    finished: bool,
    /// The source can be read no more, and why.
    failed: Option<String>,
    /// The sink holds bytes that it may not have sent: Arti keeps up to a cell back until flushed.
    unflushed: bool,
    ended: Option<End>,
    count: &'a AtomicU64,
}

impl<'a> Direction<'a> {
    fn new(mut early: Vec<u8>, count: &'a AtomicU64) -> Self {
        let end = early.len();
        early.resize(BUFFER.max(end), 0);
        Self {
            buffer: early,
            start: 0,
            end,
            finished: false,
            failed: None,
            unflushed: false,
            ended: None,
            count,
        }
    }

    fn poll<R, W>(&mut self, cx: &mut Context<'_>, source: &mut R, sink: &mut W) -> Poll<End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if let Some(end) = &self.ended {
            return Poll::Ready(end.clone());
        }
        let end = ready!(self.copy(cx, source, sink));
        self.ended = Some(end.clone());
        Poll::Ready(end)
    }

    fn copy<R, W>(&mut self, cx: &mut Context<'_>, source: &mut R, sink: &mut W) -> Poll<End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let unwritable = |error: io::Error| End::Unwritable(error.to_string());
        loop {
            // 1. Fill what is free, without waiting if there is something to write.
            if !self.finished && self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            let mut starved = false;
            // As much as is there before a single write: Arti gives no more than a cell at a time.
            while !self.finished && self.failed.is_none() && self.end < self.buffer.len() {
                let mut free = ReadBuf::new(&mut self.buffer[self.end..]);
                match Pin::new(&mut *source).poll_read(cx, &mut free) {
                    Poll::Ready(Ok(())) => {
                        let read = free.filled().len();
                        self.finished = read == 0;
                        self.end += read;
                    }
                    // What came before it is still to be delivered.
                    Poll::Ready(Err(error)) => self.failed = Some(error.to_string()),
                    Poll::Pending => {
                        starved = true;
                        break;
                    }
                }
            }
            // 2. Write what there is.
            while self.start < self.end {
                let bytes = &self.buffer[self.start..self.end];
                match ready!(Pin::new(&mut *sink).poll_write(cx, bytes)) {
                    Ok(0) => return Poll::Ready(unwritable(io::ErrorKind::WriteZero.into())),
                    Ok(written) => {
                        self.start += written;
                        self.unflushed = true;
                        self.count.fetch_add(written as u64, Ordering::Relaxed);
                    }
                    Err(error) => return Poll::Ready(unwritable(error)),
                }
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(End::Unreadable(error));
            }
            // 3. At the end pass the end on; where the source pauses, push out what was written.
            if self.finished {
                return Poll::Ready(match ready!(Pin::new(&mut *sink).poll_shutdown(cx)) {
                    Ok(()) => End::Closed,
                    // The other side closed first: it has all it wanted.
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => End::Closed,
                    Err(error) => unwritable(error),
                });
            }
            if starved {
                if self.unflushed {
                    if let Err(error) = ready!(Pin::new(&mut *sink).poll_flush(cx)) {
                        return Poll::Ready(unwritable(error));
                    }
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
        }
    }
}
