//! Web servers whose sites a test programs and whose requests it can read afterwards. One thread a connection.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub use super::http::{Reply, Request};
use super::netns::Netns;
use super::stop::{Stop, Stopped};

type Handler = Arc<dyn Fn(&Request, &mut Reply<'_>) -> io::Result<()> + Send + Sync>;

/// The servers of one host. Every name that leads there has these pages:
/// `/` (a page that names its host), `/headers` (the request's headers), `/status/N`, `/redirect/N` (a chain of N),
/// `/bytes/N` (N bytes), `/slow` (a chunk of the page every 100 ms, ten times), `/endless` (a chunk every 50 ms for ever),
/// `/hang` (no answer at all). `route` adds others and overrides these.
pub struct Web {
    shared: Arc<Shared>,
    stop: Option<Stop>,
    acceptors: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    routes: Mutex<HashMap<(String, String), Handler>>,
    hits: Mutex<Vec<Request>>,
    arrived: Condvar,
    connections: Mutex<Vec<TcpStream>>,
}

impl Web {
    /// Serves HTTP on port 80 of `addresses`, and HTTPS on port 443 if there is a TLS configuration.
    pub fn start(ns: &Netns, addresses: &[IpAddr], tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        let (stop, stopped) = Stop::new()?;
        let shared = Arc::new(Shared::default());
        let mut acceptors = Vec::new();
        for address in addresses {
            for (port, tls) in [(80, None), (443, tls.clone())] {
                if port == 443 && tls.is_none() {
                    continue;
                }
                let listener = ns
                    .enter(|| TcpListener::bind((*address, port)))
                    .with_context(|| {
                        format!("cannot listen on {address}:{port} in {}", ns.name())
                    })?;
                let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
                acceptors.push(std::thread::spawn(move || {
                    accept(&shared, &listener, tls.as_ref(), &stopped)
                }));
            }
        }
        Ok(Self {
            shared,
            stop: Some(stop),
            acceptors,
        })
    }

    /// Answers requests for `path` at `host` with `handler`. "*" is any host; a path may end in "*".
    pub fn route(
        &self,
        host: &str,
        path: &str,
        handler: impl Fn(&Request, &mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) {
        lock(&self.shared.routes).insert((host.to_owned(), path.to_owned()), Arc::new(handler));
    }

    /// A page that is always the same.
    pub fn page(&self, host: &str, path: &str, html: &str) {
        let html = html.to_owned();
        self.route(host, path, move |_, reply| reply.html(&html));
    }

    /// Every request so far, in order of arrival.
    pub fn hits(&self) -> Vec<Request> {
        lock(&self.shared.hits).clone()
    }

    /// The first request that `wanted` accepts; waits for it.
    pub fn wait_for(
        &self,
        timeout: Duration,
        wanted: impl Fn(&Request) -> bool,
    ) -> Option<Request> {
        let hits = lock(&self.shared.hits);
        let (hits, _) = self
            .shared
            .arrived
            .wait_timeout_while(hits, timeout, |hits| !hits.iter().any(&wanted))
            .unwrap_or_else(PoisonError::into_inner);
        hits.iter().find(|hit| wanted(hit)).cloned()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.take();
        for acceptor in self.acceptors.drain(..) {
            let _ = acceptor.join();
        }
        // Threads in the middle of an answer end by the error that this gives them.
        for connection in lock(&self.shared.connections).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn accept(
    shared: &Arc<Shared>,
    listener: &TcpListener,
    tls: Option<&Arc<ServerConfig>>,
    stopped: &Stopped,
) {
    while stopped.readable(listener.as_fd()) {
        let Ok((connection, peer)) = listener.accept() else {
            continue;
        };
        let Ok(handle) = connection.try_clone() else {
            continue;
        };
        lock(&shared.connections).push(handle);
        let (shared, tls) = (Arc::clone(shared), tls.cloned());
        std::thread::spawn(move || {
            let key = connection.try_clone();
            // A connection that fails is the peer's business; tests look at the requests.
            let _ = match tls {
                None => shared.serve(connection, "http", peer),
                Some(config) => ServerConnection::new(config)
                    .map_err(io::Error::other)
                    .and_then(|tls| shared.serve(StreamOwned::new(tls, connection), "https", peer)),
            };
            if let Ok(key) = key {
                let _ = key.shutdown(Shutdown::Both);
            }
            lock(&shared.connections)
                .retain(|open| open.peer_addr().is_ok_and(|other| other != peer));
        });
    }
}

impl Shared {
    fn serve(
        &self,
        stream: impl Read + Write,
        scheme: &'static str,
        peer: SocketAddr,
    ) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream, scheme, peer)? {
            let handler = self.find(&request);
            lock(&self.hits).push(request.clone());
            self.arrived.notify_all();
            if request.path == "/hang" && handler.is_none() {
                // Until the peer gives up.
                return stream.read(&mut [0]).map(drop);
            }
            let mut reply = Reply::new(stream.get_mut(), request.method == "HEAD");
            match handler {
                Some(handler) => handler(&request, &mut reply)?,
                None => standard_page(&request, &mut reply)?,
            }
            if request
                .header("connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("close"))
            {
                break;
            }
        }
        Ok(())
    }

    fn find(&self, request: &Request) -> Option<Handler> {
        let routes = lock(&self.routes);
        let fits = |(host, path): &&(String, String)| {
            let path_fits = path
                .strip_suffix('*')
                .map_or(*path == request.path, |start| {
                    request.path.starts_with(start)
                });
            (host == "*" || *host == request.host) && path_fits
        };
        // The most exact one: a host before "*", then the longest path.
        let best = routes
            .keys()
            .filter(fits)
            .max_by_key(|(host, path)| (host != "*", path.len()))?;
        routes.get(best).cloned()
    }
}

fn standard_page(request: &Request, reply: &mut Reply<'_>) -> io::Result<()> {
    let (word, argument) = request.path[1..]
        .split_once('/')
        .unwrap_or((&request.path[1..], ""));
    let number = argument.parse::<u64>().unwrap_or(0);
    match word {
        "" => reply.html(&format!(
            "<!doctype html><html lang=\"en\"><title>{host}</title><h1>Welcome to {host}</h1>\
             <p>This page came over {scheme}.</p><a href=\"/second\">Second page</a>\n",
            host = request.host,
            scheme = request.scheme
        )),
        "second" => reply.html("<!doctype html><title>Second page</title><h1>The second page</h1><a href=\"/\">Back</a>\n"),
        "headers" => {
            let lines: Vec<String> =
                request.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
            reply.send(200, "text/plain; charset=utf-8", lines.concat().as_bytes())
        }
        "status" => reply.send(number.clamp(200, 599) as u16, "text/html", format!("<title>{number}</title>{number}").as_bytes()),
        "redirect" if number > 0 => reply.redirect(&format!("/redirect/{}", number - 1)),
        "redirect" => reply.redirect("/"),
        "bytes" => reply.bytes(number),
        "slow" => reply.stream(200, "text/html", |send| {
            for part in 0..10 {
                send(format!("<p>part {part}</p>").as_bytes())?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        }),
        "endless" => reply.stream(200, "text/html", |send| {
            loop {
                send(b"<p>and more</p>")?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }),
        _ => reply.send(404, "text/html", b"<!doctype html><title>Not found</title><h1>Not found</h1>\n"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
