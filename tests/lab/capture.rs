//! Packet captures on every link of home and of the neighbour: packet(7) sockets, each read by a thread of its own.

use std::collections::HashSet;
use std::ffi::CString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::netns::Netns;
use super::packet::{Direction, Packet};
use super::stop::{Stop, Stopped};

/// An ethertype for local experiments (IEEE 802): the frames by which `settle` knows that all before them was read.
const MARKER: u16 = 0x88b5;
/// Bytes kept of each frame: all headers, and a DNS question with its name.
const KEPT: usize = 512;

/// A position in the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(usize);

impl Mark {
    /// The moment the links were made.
    pub const START: Self = Self(0);
}

#[derive(Debug)]
pub struct Capture {
    links: Vec<Link>,
    seen: Arc<Seen>,
    relays: HashSet<SocketAddr>,
    stop: Option<Stop>,
    readers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Link {
    name: &'static str,
    socket: Arc<OwnedFd>,
    /// A second socket: one that only sends, since a packet socket does not see its own frames.
    sender: OwnedFd,
    lost: Mutex<u32>,
}

#[derive(Debug, Default)]
struct Seen {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    packets: Vec<Packet>,
    /// The last marker read on each link, by the link's number.
    markers: Vec<u64>,
}

impl Capture {
    /// Captures on `(host, interface, name of the link)`. `relays` are the addresses that count as Tor.
    pub fn start(
        links: &[(&Netns, &str, &'static str)],
        relays: HashSet<SocketAddr>,
    ) -> Result<Self> {
        let (stop, stopped) = Stop::new()?;
        let seen = Arc::new(Seen::default());
        seen.lock().markers = vec![0; links.len()];
        let mut capture = Self {
            links: Vec::new(),
            seen,
            relays,
            stop: Some(stop),
            readers: Vec::new(),
        };
        for (number, (ns, interface, name)) in links.iter().enumerate() {
            let open = || -> io::Result<_> {
                Ok((
                    packet_socket(interface, true)?,
                    packet_socket(interface, false)?,
                ))
            };
            let (socket, sender) = ns
                .enter(open)
                .with_context(|| format!("cannot capture on {name}"))?;
            let socket = Arc::new(socket);
            let reader = Reader {
                number,
                name,
                socket: Arc::clone(&socket),
                seen: Arc::clone(&capture.seen),
                stopped: stopped.clone(),
            };
            capture
                .readers
                .push(std::thread::spawn(move || reader.run()));
            capture.links.push(Link {
                name,
                socket,
                sender,
                lost: Mutex::new(0),
            });
        }
        Ok(capture)
    }

    /// Waits until everything that was sent before this call has been read. Panics if the kernel dropped a packet: a
    /// capture with holes proves nothing.
    pub fn settle(&self) {
        let wanted: Vec<u64> = self.links.iter().map(Link::send_marker).collect();
        let state = self.seen.lock();
        let (state, timeout) = self
            .seen
            .changed
            .wait_timeout_while(state, Duration::from_secs(10), |state| {
                state
                    .markers
                    .iter()
                    .zip(&wanted)
                    .any(|(seen, wanted)| seen < wanted)
            })
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(
            !timeout.timed_out(),
            "the capture did not see its own marker within 10 s"
        );
        for link in &self.links {
            let lost = link.lost();
            assert!(
                lost == 0,
                "the capture on {} lost {lost} packets",
                link.name
            );
        }
    }

    /// Everything from here on is `since(mark)`.
    pub fn mark(&self) -> Mark {
        self.settle();
        Mark(self.seen.lock().packets.len())
    }

    /// Every packet on every link, from the moment the links existed.
    pub fn packets(&self) -> Vec<Packet> {
        self.since(Mark::START)
    }

    pub fn since(&self, mark: Mark) -> Vec<Packet> {
        self.settle();
        self.seen
            .lock()
            .packets
            .iter()
            .skip(mark.0)
            .cloned()
            .collect()
    }

    /// Waits for a packet that is sent later than what caused it, such as a report to a multicast group.
    pub fn wait_for(
        &self,
        mark: Mark,
        timeout: Duration,
        wanted: impl Fn(&Packet) -> bool,
    ) -> bool {
        let state = self.seen.lock();
        let missing = |state: &mut State| !state.packets.iter().skip(mark.0).any(&wanted);
        let waited = self
            .seen
            .changed
            .wait_timeout_while(state, timeout, missing);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// What left home for anywhere but a Tor relay's TCP port. There is no exception: the kernel is configured to send
    /// nothing of itself.
    pub fn outside_tor(&self) -> Vec<Packet> {
        self.outside_tor_since(Mark::START)
    }

    pub fn outside_tor_since(&self, mark: Mark) -> Vec<Packet> {
        let outside = |packet: &Packet| {
            packet.link.starts_with("home/")
                && packet.direction == Direction::Out
                && !self.to_relay(packet)
        };
        self.since(mark).into_iter().filter(outside).collect()
    }

    /// What left home for a Tor relay.
    pub fn to_tor_since(&self, mark: Mark) -> Vec<Packet> {
        let inside = |packet: &Packet| {
            packet.link.starts_with("home/")
                && packet.direction == Direction::Out
                && self.to_relay(packet)
        };
        self.since(mark).into_iter().filter(inside).collect()
    }

    fn to_relay(&self, packet: &Packet) -> bool {
        packet
            .tcp_ends()
            .is_some_and(|(_, to)| self.relays.contains(&to))
    }

    /// For `tcpdump -r`: classic pcap, nanoseconds, Ethernet. Frames are cut after 512 bytes.
    pub fn write_pcap(&self, path: &Path) -> Result<()> {
        let mut file = io::BufWriter::new(std::fs::File::create(path)?);
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 1] {
            file.write_all(&word.to_le_bytes())?;
        }
        // Both ends of home's second link are captured; in the file each packet belongs once.
        for packet in self
            .packets()
            .iter()
            .filter(|packet| packet.link.starts_with("home/"))
        {
            let time = packet.time.duration_since(UNIX_EPOCH)?;
            let words = [
                time.as_secs() as u32,
                time.subsec_nanos(),
                packet.bytes.len() as u32,
                packet.length as u32,
            ];
            for word in words {
                file.write_all(&word.to_le_bytes())?;
            }
            file.write_all(&packet.bytes)?;
        }
        Ok(file.flush()?)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.take();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn send_marker(&self) -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut frame = vec![0_u8; 12];
        frame.extend(MARKER.to_be_bytes());
        frame.extend(number.to_be_bytes());
        frame.resize(60, 0);
        if let Err(error) = nix::unistd::write(&self.sender, &frame) {
            panic!("cannot send a marker on {}: {error}", self.name);
        }
        number
    }

    /// Packets dropped so far; reading the kernel's counter resets it (packet(7), PACKET_STATISTICS).
    fn lost(&self) -> u32 {
        // SAFETY: tpacket_stats consists of integers, for which zero is a value.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the pointers are to locals of the sizes given.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut size,
            )
        };
        assert!(
            result == 0,
            "PACKET_STATISTICS on {}: {}",
            self.name,
            io::Error::last_os_error()
        );
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *lost += stats.tp_drops;
        *lost
    }
}

struct Reader {
    number: usize,
    name: &'static str,
    socket: Arc<OwnedFd>,
    seen: Arc<Seen>,
    stopped: Stopped,
}

impl Reader {
    fn run(self) {
        let mut frame = vec![0_u8; 2048];
        while self.stopped.readable(self.socket.as_fd()) {
            while let Some((length, direction, time)) = self.receive(&mut frame) {
                let kept = frame.get(..length.min(KEPT)).unwrap_or_default();
                let packet = Packet::parse(time, self.name, direction, length, kept);
                let mut state = self.seen.lock();
                if packet.ethertype != MARKER {
                    state.packets.push(packet);
                    self.seen.changed.notify_all();
                    continue;
                }
                let number = kept
                    .get(14..22)
                    .and_then(|bytes| bytes.try_into().ok())
                    .map_or(0, u64::from_be_bytes);
                // The other end of a link sees the marker of this one, too; only what this end sent counts.
                if direction == Direction::Out
                    && let Some(last) = state.markers.get_mut(self.number)
                {
                    *last = number;
                    self.seen.changed.notify_all();
                }
            }
        }
    }

    /// One frame, if there is one: its true length, direction and time.
    fn receive(&self, frame: &mut [u8]) -> Option<(usize, Direction, SystemTime)> {
        // SAFETY: sockaddr_ll consists of integers, for which zero is a value.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointers are to locals and the caller's buffer, of the sizes given.
        let length = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                (&raw mut from).cast(),
                &raw mut size,
            )
        };
        // Fails with EAGAIN when all is read, with ENETDOWN when the link went down: wait for more in either case.
        let length = usize::try_from(length).ok()?;
        let outgoing = from.sll_pkttype == libc::PACKET_OUTGOING;
        let direction = if outgoing {
            Direction::Out
        } else {
            Direction::In
        };
        Some((length, direction, SystemTime::now()))
    }
}

/// A packet socket bound to one interface of the calling thread's namespace; it receives all protocols, or none.
fn packet_socket(interface: &str, receive: bool) -> io::Result<OwnedFd> {
    let protocol = if receive {
        (libc::ETH_P_ALL as u16).to_be()
    } else {
        0
    };
    let name = CString::new(interface)?;
    // SAFETY: a NUL-terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // Protocol 0 first: nothing is received before the socket is bound to its interface (packet(7)).
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if receive {
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::RcvBufForce,
            &(256 << 20),
        )?;
    }
    // SAFETY: sockaddr_ll consists of integers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    // SAFETY: the pointer is to a local of the size given.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
