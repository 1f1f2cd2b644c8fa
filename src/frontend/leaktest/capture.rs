//! Sees every packet that leaves any interface of the test's host, loopback included.
//!
//! packet(7): a packet socket needs CAP_NET_RAW in the user namespace that owns the network
//! namespace, which the test's host gives to whoever made it.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket,
    sockopt,
};
use tokio::sync::watch;

use super::aim::{HOST_V4, MARKER};
use super::packet::{Packet, Transport};

const BUFFER: usize = 8 << 20;
/// Discard (RFC 863).
const MARKER_PORT: u16 = 9;
/// A marker takes microseconds; a host that needs longer than this is not capturing.
const MARKER_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("cannot open a packet socket: {0}")]
    Open(#[source] nix::Error),
    #[error("cannot {what} on the packet socket: {source}")]
    Socket {
        what: &'static str,
        source: io::Error,
    },
    #[error("cannot send the capture's marker: {0}")]
    Marker(#[source] io::Error),
    #[error("the capture did not see its own marker: it sees nothing")]
    Blind,
    #[error("the capture lost {0} packets: its result means nothing")]
    Lost(u32),
}

/// A running capture. Dropping it ends its thread.
#[derive(Debug)]
pub struct Capture {
    socket: Arc<OwnedFd>,
    packets: Arc<Mutex<Vec<Packet>>>,
    markers: watch::Receiver<u16>,
    sent: u16,
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Starts to capture on every interface there is.
    pub fn start() -> Result<Self, CaptureError> {
        let packet_socket = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        )
        .map_err(CaptureError::Open)?;
        // As large as the system lets us; losses are counted, not assumed away.
        if setsockopt(&packet_socket, sockopt::RcvBufForce, &BUFFER).is_err() {
            let _ = setsockopt(&packet_socket, sockopt::RcvBuf, &BUFFER);
        }
        let io_error = |what| move |source| CaptureError::Socket { what, source };
        let (stop_read, stop) = io::pipe().map_err(io_error("make a stop pipe"))?;
        let socket = Arc::new(packet_socket);
        let packets = Arc::new(Mutex::new(Vec::new()));
        let (seen, markers) = watch::channel(0);
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn({
                let (socket, packets) = (Arc::clone(&socket), Arc::clone(&packets));
                move || read_packets(&socket, &stop_read, &packets, &seen)
            })
            .map_err(io_error("start a thread"))?;
        Ok(Self {
            socket,
            packets,
            markers,
            sent: 0,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The packets since the last call, complete: a marker sent now has passed through the capture
    /// behind all of them.
    pub async fn take(&mut self) -> Result<Vec<Packet>, CaptureError> {
        self.sent += 1;
        send_marker(self.sent).map_err(CaptureError::Marker)?;
        let sent = self.sent;
        tokio::time::timeout(MARKER_LIMIT, self.markers.wait_for(|seen| *seen >= sent))
            .await
            .map_err(|_| CaptureError::Blind)?
            .map_err(|_| CaptureError::Blind)?;
        match lost(&self.socket)? {
            0 => Ok(std::mem::take(&mut *lock(&self.packets))),
            lost => Err(CaptureError::Lost(lost)),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Closing our end wakes the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The marker's number is its source port, so that it needs no payload to be told apart.
fn send_marker(number: u16) -> io::Result<()> {
    let source = SocketAddr::from((HOST_V4, MARKER_PORT_BASE + number));
    let marker = UdpSocket::bind(source)?;
    marker.send_to(&[], (MARKER, MARKER_PORT)).map(drop)
}

const MARKER_PORT_BASE: u16 = 1_024;

fn marker_number(packet: &Packet) -> Option<u16> {
    let ours = packet.transport == Transport::Udp
        && packet.destination == MARKER
        && packet.source == HOST_V4
        && packet.destination_port == Some(MARKER_PORT);
    ours.then_some(packet.source_port?.checked_sub(MARKER_PORT_BASE)?)
}

fn lock(packets: &Mutex<Vec<Packet>>) -> MutexGuard<'_, Vec<Packet>> {
    packets.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_packets(
    socket: &OwnedFd,
    stop: &io::PipeReader,
    packets: &Mutex<Vec<Packet>>,
    seen: &watch::Sender<u16>,
) {
    let mut interfaces = HashMap::new();
    let mut buffer = [0; 2048];
    loop {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(_) => return,
        }
        if fds[1].revents().is_some_and(|events| !events.is_empty()) {
            return;
        }
        while let Ok((length, from)) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            let Some(from) = from else { continue };
            // Loopback and both ends of the link are in this host: once, on the way out, is enough.
            if from.pkttype() != libc::PACKET_OUTGOING {
                continue;
            }
            let interface = interfaces
                .entry(from.ifindex())
                .or_insert_with(|| interface_name(from.ifindex()));
            let packet = Packet::parse(interface, u16::from_be(from.protocol()), &buffer[..length]);
            match marker_number(&packet) {
                Some(number) => {
                    seen.send_replace(number);
                }
                None => lock(packets).push(packet),
            }
        }
    }
}

fn interface_name(index: usize) -> String {
    let fallback = || format!("interface {index}");
    let Ok(index) = libc::c_uint::try_from(index) else {
        return fallback();
    };
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE bytes that if_indextoname(3) asks for.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return fallback();
    }
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// How many packets did not fit into the buffer since the last call (PACKET_STATISTICS, packet(7)).
fn lost(socket: &OwnedFd) -> Result<u32, CaptureError> {
    let mut statistics = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the option's value is a tpacket_stats, and `length` is its size.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(CaptureError::Socket {
            what: "read the statistics",
            source: io::Error::last_os_error(),
        });
    }
    Ok(statistics.tp_drops)
}
