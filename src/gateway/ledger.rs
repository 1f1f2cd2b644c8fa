//! What the gateway did: one row for every connection that was ever accepted.
//!
//! Rows are kept in a bounded ring and, where the operator names a file, appended to it as JSON
//! lines. A row that cannot be written closes the gateway: [`Ledger::ready`] fails, and so does
//! every new connection, until the rows owed to the file have been written.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use tokio::sync::broadcast;

use super::egress::EgressErrorKind;
use super::isolation::SessionId;

/// Rows kept in memory.
const RING: usize = 4096;
/// Rows a slow listener may fall behind before it loses the oldest.
const EVENTS: usize = 256;
/// Rows owed to an unwritable file; beyond this the gateway is shut anyway and none arrive.
const OWED: usize = 4096;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    /// Both sides closed in order.
    Completed,
    /// Carried, then cut by one side.
    Broken(String),
    /// Carried, then closed because nothing moved.
    Idle,
    /// Refused by the policy, with its reason. Never dialled.
    Denied(String),
    /// The egress could not connect.
    Failed {
        kind: EgressErrorKind,
        message: String,
    },
    /// Not a request that the gateway serves.
    Refused(String),
    /// The client left, or never finished asking.
    Unanswered(String),
    /// The ledger's file could not be written, so nothing was dialled.
    Unrecorded(String),
    /// The gateway was shut down.
    Shutdown,
}

/// What the policy said, before anything was dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The connection ended before it named a host.
    None,
    Allow,
    Deny,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Position in the ledger; rises by one with each row.
    pub seq: u64,
    /// When the connection was accepted.
    #[serde(serialize_with = "rfc3339")]
    pub time: OffsetDateTime,
    pub session: SessionId,
    pub host: String,
    pub port: u16,
    pub verdict: Judgement,
    /// The rule that allowed it, or the reason it was denied.
    pub rule: String,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub duration_ms: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Row {
    /// What to tell a caller whose page did not load because of this row.
    pub fn explanation(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Denied(reason) => Some(format!("policy denied: {reason}")),
            Outcome::Failed { kind, message } => Some(match kind.hint() {
                Some(hint) => format!("{message} ({hint})"),
                None => message.clone(),
            }),
            Outcome::Unrecorded(reason) => Some(reason.clone()),
            Outcome::Broken(reason) => Some(format!("connection broken: {reason}")),
            _ => None,
        }
    }
}

fn rfc3339<S: Serializer>(time: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    time::serde::rfc3339::serialize(time, serializer)
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot open ledger {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("ledger {} is not a file of uid {uid} alone", path.display())]
    NotPrivate { path: PathBuf, uid: u32 },
    #[error("cannot write ledger {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The ledger of one gateway.
#[derive(Debug)]
pub struct Ledger {
    state: Mutex<State>,
    events: broadcast::Sender<Row>,
}

#[derive(Debug)]
struct State {
    next: u64,
    ring: VecDeque<Row>,
    file: Option<Log>,
}

/// The file, and the lines that it still lacks.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    owed: VecDeque<Vec<u8>>,
}

impl Ledger {
    /// A ledger that lives as long as the process.
    pub fn in_memory() -> Self {
        Self::with(None)
    }

    /// A ledger that is also appended to `path`, which is made with mode 0600 if it is not there.
    pub fn with_file(path: &Path) -> Result<Self, LedgerError> {
        Ok(Self::with(Some(Log::open(path)?)))
    }

    fn with(file: Option<Log>) -> Self {
        Self {
            state: Mutex::new(State {
                next: 0,
                ring: VecDeque::new(),
                file,
            }),
            events: broadcast::Sender::new(EVENTS),
        }
    }

    /// Whether a further connection can be recorded. Asked before anything is dialled.
    pub fn ready(&self) -> Result<(), LedgerError> {
        match &mut self.state().file {
            Some(log) => log.settle(),
            None => Ok(()),
        }
    }

    /// Every row as it is written, from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Row> {
        self.events.subscribe()
    }

    /// The rows from `seq` on that are still in memory, oldest first.
    pub fn since(&self, seq: u64) -> Vec<Row> {
        let state = self.state();
        let rows = state.ring.iter().filter(|row| row.seq >= seq);
        rows.cloned().collect()
    }

    /// The number that the next row will have: a mark to ask [`Self::since`] from.
    pub fn mark(&self) -> u64 {
        self.state().next
    }

    /// What the gateway last said about a host since a mark, where that explains a failure.
    pub fn explain(&self, host: &str, session: SessionId, since: u64) -> Option<Row> {
        let state = self.state();
        let mut rows = state.ring.iter().rev().take_while(|row| row.seq >= since);
        rows.find(|row| row.host == host && row.session == session && row.explanation().is_some())
            .cloned()
    }

    /// Opens the entry of a connection just accepted. Its row is written when it is closed or
    /// dropped, so that there is one whatever becomes of the connection.
    pub(super) fn open(self: &Arc<Self>) -> Entry {
        Entry {
            ledger: Arc::clone(self),
            accepted: Instant::now(),
            traffic: Arc::default(),
            row: Some(Row {
                seq: 0,
                time: OffsetDateTime::now_utc(),
                session: SessionId::Unknown,
                host: String::new(),
                port: 0,
                verdict: Judgement::None,
                rule: String::new(),
                bytes_up: 0,
                bytes_down: 0,
                duration_ms: 0,
                outcome: Outcome::Shutdown,
            }),
        }
    }

    fn record(&self, mut row: Row) {
        let mut state = self.state();
        row.seq = state.next;
        state.next += 1;
        if let Some(log) = &mut state.file {
            log.owe(&row);
            if let Err(error) = log.settle() {
                tracing::error!("{error}: new connections are refused until it can be");
            }
        }
        if state.ring.len() == RING {
            state.ring.pop_front();
        }
        state.ring.push_back(row.clone());
        drop(state);
        // An error means that nobody listens.
        let _ = self.events.send(row);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn open(path: &Path) -> Result<Self, LedgerError> {
        let fail = |source| LedgerError::Open {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .map_err(fail)?;
        let (about, uid) = (file.metadata().map_err(fail)?, nix::unistd::geteuid());
        // It lists every host that was visited.
        if !about.is_file() || about.mode() & 0o077 != 0 || about.uid() != uid.as_raw() {
            return Err(LedgerError::NotPrivate {
                path: path.to_owned(),
                uid: uid.as_raw(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            owed: VecDeque::new(),
        })
    }

    fn owe(&mut self, row: &Row) {
        if let Ok(mut line) = serde_json::to_vec(row) {
            line.push(b'\n');
            if self.owed.len() < OWED {
                self.owed.push_back(line);
            }
        }
    }

    /// Writes the lines owed. A line cut short by a full disk is continued where it stopped.
    fn settle(&mut self) -> Result<(), LedgerError> {
        while let Some(line) = self.owed.front_mut() {
            while !line.is_empty() {
                match self.file.write(line) {
                    Ok(written) if written > 0 => drop(line.drain(..written)),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    outcome => {
                        return Err(LedgerError::Write {
                            path: self.path.clone(),
                            source: outcome.err().unwrap_or(io::ErrorKind::WriteZero.into()),
                        });
                    }
                }
            }
            self.owed.pop_front();
        }
        Ok(())
    }
}

/// Bytes carried so far.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
}

impl Traffic {
    pub(super) fn total(&self) -> u64 {
        self.up.load(Ordering::Relaxed) + self.down.load(Ordering::Relaxed)
    }
}

/// The entry of a connection that is still open.
#[derive(Debug)]
pub(super) struct Entry {
    ledger: Arc<Ledger>,
    accepted: Instant,
    traffic: Arc<Traffic>,
    row: Option<Row>,
}

impl Entry {
    pub(super) fn session(&mut self, session: SessionId) {
        self.edit(|row| row.session = session);
    }

    pub(super) fn target(&mut self, host: String, port: u16) {
        self.edit(|row| (row.host, row.port) = (host, port));
    }

    pub(super) fn verdict(&mut self, verdict: Judgement, rule: String) {
        self.edit(|row| (row.verdict, row.rule) = (verdict, rule));
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    pub(super) fn close(mut self, outcome: Outcome) {
        self.edit(|row| row.outcome = outcome);
    }

    fn edit(&mut self, change: impl FnOnce(&mut Row)) {
        if let Some(row) = &mut self.row {
            change(row);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(mut row) = self.row.take() {
            row.bytes_up = self.traffic.up.load(Ordering::Relaxed);
            row.bytes_down = self.traffic.down.load(Ordering::Relaxed);
            row.duration_ms = self
                .accepted
                .elapsed()
                .as_millis()
                .try_into()
                .unwrap_or(u64::MAX);
            self.ledger.record(row);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn deny(ledger: &Arc<Ledger>, host: &str) {
        let mut entry = ledger.open();
        entry.session(SessionId::Local(2));
        entry.target(host.into(), 443);
        entry.verdict(Judgement::Deny, "loopback IP blocked".into());
        entry.close(Outcome::Denied("loopback IP blocked".into()));
    }

    #[test]
    fn a_dropped_entry_still_leaves_its_row() {
        let ledger = Arc::new(Ledger::in_memory());
        drop(ledger.open());
        assert_eq!(ledger.since(0).len(), 1);
        assert_eq!(ledger.since(0)[0].outcome, Outcome::Shutdown);
    }

    #[test]
    fn a_caller_reads_the_reason_for_its_own_host_session_and_time_only() {
        let ledger = Arc::new(Ledger::in_memory());
        deny(&ledger, "a.example");
        let mark = ledger.mark();
        let (session, other) = (SessionId::Local(2), SessionId::Local(3));
        assert_eq!(
            ledger
                .explain("a.example", session, 0)
                .unwrap()
                .explanation()
                .unwrap(),
            "policy denied: loopback IP blocked"
        );
        assert_eq!(ledger.explain("b.example", session, 0), None);
        assert_eq!(ledger.explain("a.example", other, 0), None);
        assert_eq!(ledger.explain("a.example", session, mark), None);
    }

    #[test]
    fn the_ring_is_bounded_and_keeps_the_newest() {
        let ledger = Arc::new(Ledger::in_memory());
        for _ in 0..RING + 10 {
            deny(&ledger, "a.example");
        }
        let rows = ledger.since(0);
        assert_eq!(rows.len(), RING);
        assert_eq!(rows[0].seq, 10);
        assert_eq!(ledger.mark(), RING as u64 + 10);
    }

    #[test]
    fn listeners_hear_of_every_row() {
        let ledger = Arc::new(Ledger::in_memory());
        let mut events = ledger.subscribe();
        deny(&ledger, "a.example");
        assert_eq!(events.try_recv().unwrap().host, "a.example");
    }

    #[test]
    fn a_row_is_one_json_line_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Arc::new(Ledger::with_file(&path).unwrap());
        deny(&ledger, "a.example");
        deny(&ledger, "b.example");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["outcome"], "denied");
        assert_eq!(lines[0]["detail"], "loopback IP blocked");
        assert_eq!(lines[0]["session"], "s2");
        assert_eq!(lines[0]["verdict"], "deny");
        assert_eq!(lines[1]["host"], "b.example");
        assert!(lines[1]["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_a_link_or_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::write(&open, "").unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            Ledger::with_file(&open),
            Err(LedgerError::NotPrivate { .. })
        ));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(matches!(
            Ledger::with_file(&link),
            Err(LedgerError::Open { .. })
        ));
        assert!(Ledger::with_file(Path::new("/dev/null")).is_err());
        assert!(Ledger::with_file(&folder.path().join("none/ledger")).is_err());
    }

    #[test]
    fn a_full_disk_closes_the_ledger_until_what_it_owes_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let ledger = Arc::new(Ledger::with_file(&path).unwrap());
        deny(&ledger, "a.example");
        ledger.ready().unwrap();
        // /dev/full gives ENOSPC for every write (full(4)).
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let real = {
            let mut state = ledger.state();
            let log = state.file.as_mut().unwrap();
            std::mem::replace(&mut log.file, full)
        };
        deny(&ledger, "b.example");
        let error = ledger.ready().unwrap_err().to_string();
        assert!(error.contains("cannot write ledger"), "{error}");
        assert_eq!(ledger.since(0).len(), 2);
        ledger.state().file.as_mut().unwrap().file = real;
        ledger.ready().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
    }
}
