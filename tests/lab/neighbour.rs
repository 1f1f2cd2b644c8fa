//! The network next door: a router, a metadata service and whatever else has a private address. Nothing in the cell may
//! ever get here, so every visit is written down.

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use super::netns::Netns;
use super::stop::Stop;

const TCP_PORTS: [u16; 6] = [22, 53, 80, 443, 8080, 9222];
const UDP_PORTS: [u16; 4] = [53, 1900, 3478, 5353];

#[derive(Debug, Clone)]
pub struct Visit {
    pub protocol: &'static str,
    pub port: u16,
    pub peer: SocketAddr,
}

#[derive(Debug)]
pub struct Neighbour {
    visits: Arc<Mutex<Vec<Visit>>>,
    stop: Option<Stop>,
    servers: Vec<JoinHandle<()>>,
}

impl Neighbour {
    pub fn start(ns: &Netns) -> Result<Self> {
        let (stop, stopped) = Stop::new()?;
        let visits: Arc<Mutex<Vec<Visit>>> = Arc::default();
        let mut servers = Vec::new();
        for port in TCP_PORTS {
            let listener = ns
                .enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))
                .context("neighbour, TCP")?;
            let (visits, stopped) = (Arc::clone(&visits), stopped.clone());
            servers.push(std::thread::spawn(move || {
                while stopped.readable(listener.as_fd()) {
                    let Ok((mut connection, peer)) = listener.accept() else { continue };
                    record(&visits, "tcp", port, peer);
                    // Whether the visitor reads it does not matter: the visit is what counts.
                    let _ = connection.write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\nneighbour\n",
                    );
                }
            }));
        }
        for port in UDP_PORTS {
            let socket = ns
                .enter(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)))
                .context("neighbour, UDP")?;
            let (visits, stopped) = (Arc::clone(&visits), stopped.clone());
            servers.push(std::thread::spawn(move || {
                while stopped.readable(socket.as_fd()) {
                    if let Ok((_, peer)) = socket.recv_from(&mut [0; 2048]) {
                        record(&visits, "udp", port, peer);
                    }
                }
            }));
        }
        Ok(Self {
            visits,
            stop: Some(stop),
            servers,
        })
    }

    pub fn visits(&self) -> Vec<Visit> {
        self.visits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.take();
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
    }
}

fn record(visits: &Mutex<Vec<Visit>>, protocol: &'static str, port: u16, peer: SocketAddr) {
    visits
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Visit {
            protocol,
            port,
            peer,
        });
}
