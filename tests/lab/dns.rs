//! The DNS server that Tor's exits ask, and home's own resolver. Answers have a TTL of 0 and can be programmed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};

use super::netns::Netns;
use super::stop::{Stop, Stopped};

/// A question as it arrived.
#[derive(Debug, Clone)]
pub struct Question {
    /// Lower case, without the last dot.
    pub name: String,
    pub kind: String,
    pub peer: SocketAddr,
    /// How many questions for this name and kind came before.
    pub nth: usize,
}

type Answer = Arc<dyn Fn(&Question) -> Vec<IpAddr> + Send + Sync>;

pub struct Dns {
    zone: Arc<Zone>,
    stop: Option<Stop>,
    server: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Zone {
    names: Mutex<HashMap<String, Answer>>,
    log: Mutex<Vec<Question>>,
}

impl Dns {
    pub fn start(ns: &Netns, address: IpAddr) -> Result<Self> {
        let socket = ns
            .enter(|| UdpSocket::bind((address, 53)))
            .context("cannot bind the DNS server")?;
        let (stop, stopped) = Stop::new()?;
        let zone = Arc::new(Zone::default());
        let serving = Arc::clone(&zone);
        let server = std::thread::spawn(move || serving.serve(&socket, &stopped));
        Ok(Self {
            zone,
            stop: Some(stop),
            server: Some(server),
        })
    }

    /// `name` has these addresses. "*.example.net" covers what is below it.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        let addresses = addresses.to_vec();
        self.answer(name, move |_| addresses.clone());
    }

    /// `answer` decides anew at each question; no address of the kind asked for means an empty answer. (An exit asks once
    /// and then keeps what it heard for some minutes, whatever the TTL.)
    pub fn answer(
        &self,
        name: &str,
        answer: impl Fn(&Question) -> Vec<IpAddr> + Send + Sync + 'static,
    ) {
        lock(&self.zone.names).insert(normal(name), Arc::new(answer));
    }

    pub fn knows(&self, name: &str) -> bool {
        self.zone.find(&normal(name)).is_some()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.zone.names).keys().cloned().collect();
        names.sort();
        names
    }

    /// Every question so far.
    pub fn log(&self) -> Vec<Question> {
        lock(&self.zone.log).clone()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stop.take();
        self.server.take().map(JoinHandle::join);
    }
}

impl Zone {
    fn serve(&self, socket: &UdpSocket, stopped: &Stopped) {
        let mut buffer = [0_u8; 4096];
        while stopped.readable(socket.as_fd()) {
            let Ok((length, peer)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            let Some(reply) = buffer
                .get(..length)
                .and_then(|bytes| self.reply(bytes, peer))
            else {
                continue;
            };
            // A peer that is gone is no concern of the server.
            let _ = socket.send_to(&reply, peer);
        }
    }

    fn reply(&self, bytes: &[u8], peer: SocketAddr) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes).ok()?;
        let query = asked.queries.first()?.clone();
        let kind = query.query_type;
        let name = normal(&query.name.to_string());
        let question = self.record(name, kind, peer);
        let mut reply = Message::new(asked.metadata.id, MessageType::Response, OpCode::Query);
        reply.metadata.recursion_desired = asked.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        match self.find(&question.name) {
            None => reply.metadata.response_code = ResponseCode::NXDomain,
            Some(answer) => {
                for address in answer(&question) {
                    let data = match (address, kind) {
                        (IpAddr::V4(v4), RecordType::A) => RData::A(A(v4)),
                        (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA(AAAA(v6)),
                        _ => continue,
                    };
                    reply.add_answer(Record::from_rdata(query.name.clone(), 0, data));
                }
            }
        }
        reply.add_query(query);
        reply.to_vec().ok()
    }

    fn record(&self, name: String, kind: RecordType, peer: SocketAddr) -> Question {
        let kind = kind.to_string();
        let mut log = lock(&self.log);
        let nth = log
            .iter()
            .filter(|earlier| earlier.name == name && earlier.kind == kind)
            .count();
        let question = Question {
            name,
            kind,
            peer,
            nth,
        };
        log.push(question.clone());
        question
    }

    fn find(&self, name: &str) -> Option<Answer> {
        let names = lock(&self.names);
        let below = |name: &str| {
            name.split_once('.')
                .and_then(|(_, parent)| names.get(&format!("*.{parent}")).cloned())
        };
        names.get(name).cloned().or_else(|| below(name))
    }
}

fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
