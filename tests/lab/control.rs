//! Tor's control protocol, as far as it is needed to wait for what a daemon does (control-spec).

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::daemon::Daemon;

#[derive(Debug)]
pub struct Control {
    socket: BufReader<UnixStream>,
}

impl Control {
    /// Connects as soon as the daemon has made its control socket.
    pub fn connect(path: &Path, daemon: &mut Daemon, deadline: Instant) -> Result<Self> {
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > deadline => {
                    return Err(error)
                        .with_context(|| format!("cannot connect to {}", path.display()));
                }
                Err(_) if daemon.has_ended() => bail!("tor ended at its start"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut control = Self {
            socket: BufReader::new(socket),
        };
        control.send("AUTHENTICATE")?;
        Ok(control)
    }

    pub fn send(&mut self, command: &str) -> Result<()> {
        Ok(self
            .socket
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?)
    }

    /// Reads until `count` lines contain all of `words`.
    pub fn wait_for(&mut self, words: &[&str], count: usize, deadline: Instant) -> Result<()> {
        let mut seen = 0;
        let mut line = String::new();
        while seen < count {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "tor reported {words:?} {seen} of {count} times, then nothing; last: {line:?}"
                );
            }
            self.socket.get_ref().set_read_timeout(Some(left))?;
            line.clear();
            match self.socket.read_line(&mut line) {
                Ok(0) => bail!("tor closed its control socket"),
                Ok(_) => seen += usize::from(words.iter().all(|word| line.contains(word))),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
