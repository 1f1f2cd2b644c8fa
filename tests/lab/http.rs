//! HTTP/1.1 as far as the lab's servers need it: requests are read, replies written, connections kept.

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;

const MAX_HEAD: u64 = 256 << 10;

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// "http" or "https".
    pub scheme: &'static str,
    /// Lower case, without the port.
    pub host: String,
    /// Without the query.
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub peer: SocketAddr,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The next request of a connection; None when the peer closed it.
    pub fn read(
        input: &mut impl BufRead,
        scheme: &'static str,
        peer: SocketAddr,
    ) -> io::Result<Option<Self>> {
        let mut head = input.take(MAX_HEAD);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(io::Error::other(format!("not a request line: {line:?}")));
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self {
            method: method.to_owned(),
            scheme,
            host: String::new(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            peer,
        };
        loop {
            let mut line = String::new();
            head.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                request
                    .headers
                    .push((name.to_owned(), value.trim().to_owned()));
            }
        }
        let host = request
            .header("host")
            .unwrap_or_default()
            .to_ascii_lowercase();
        let port = host.rfind(':').filter(|at| !host[*at..].contains(']'));
        request.host = host[..port.unwrap_or(host.len())]
            .trim_matches(['[', ']'])
            .to_owned();
        let length = request
            .header("content-length")
            .and_then(|value| value.parse().ok())
            .unwrap_or(0);
        request.body = vec![0; length];
        input.read_exact(&mut request.body)?;
        Ok(Some(request))
    }
}

/// The way to answer one request: headers first, then exactly one of the methods that send.
pub struct Reply<'a> {
    output: &'a mut dyn Write,
    headers: Vec<(String, String)>,
    pub(super) head_only: bool,
}

impl<'a> Reply<'a> {
    pub(super) fn new(output: &'a mut dyn Write, head_only: bool) -> Self {
        Self {
            output,
            headers: Vec::new(),
            head_only,
        }
    }

    pub fn header(&mut self, name: &str, value: &str) -> &mut Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn html(&mut self, text: &str) -> io::Result<()> {
        self.send(200, "text/html; charset=utf-8", text.as_bytes())
    }

    pub fn send(&mut self, status: u16, content_type: &str, body: &[u8]) -> io::Result<()> {
        self.head(
            status,
            content_type,
            &format!("content-length: {}", body.len()),
        )?;
        if !self.head_only {
            self.output.write_all(body)?;
        }
        self.output.flush()
    }

    pub fn redirect(&mut self, location: &str) -> io::Result<()> {
        self.header("location", location)
            .send(302, "text/plain", b"")
    }

    /// `length` bytes of no meaning, made as they go.
    pub fn bytes(&mut self, length: u64) -> io::Result<()> {
        self.head(
            200,
            "application/octet-stream",
            &format!("content-length: {length}"),
        )?;
        let block: Vec<u8> = (0..65_536_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut left = if self.head_only { 0 } else { length };
        while left > 0 {
            let part = left.min(block.len() as u64) as usize;
            self.output.write_all(&block[..part])?;
            left -= part as u64;
        }
        self.output.flush()
    }

    /// A body whose parts arrive when `produce` writes them, each as a chunk that is sent at once.
    pub fn stream(
        &mut self,
        status: u16,
        content_type: &str,
        produce: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.head(status, content_type, "transfer-encoding: chunked")?;
        self.output.flush()?;
        let output = &mut *self.output;
        produce(&mut |part| {
            write!(output, "{:x}\r\n", part.len())?;
            output.write_all(part)?;
            output.write_all(b"\r\n")?;
            output.flush()
        })?;
        self.output.write_all(b"0\r\n\r\n")?;
        self.output.flush()
    }

    fn head(&mut self, status: u16, content_type: &str, framing: &str) -> io::Result<()> {
        let mut head =
            format!("HTTP/1.1 {status} Lab\r\ncontent-type: {content_type}\r\n{framing}\r\n");
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.output.write_all(head.as_bytes())
    }
}
