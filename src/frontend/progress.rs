//! What the operator sees while waiting: stderr only, never mixed with a reply.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::gateway::egress::TorStatus;

/// Where there is no terminal, what is done sooner needs no progress.
const WORTH_A_WORD: Duration = Duration::from_secs(2);

/// Sends the log to stderr: warnings, or more with each `-v`. `RUST_LOG` overrides.
pub(super) fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "error",
        1 => "warn,onioncell=info",
        _ => "info,onioncell=debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    // Fails only if a log is already set, which is then as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}

/// Tor's bootstrap: a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub(super) struct TorProgress {
    bar: Arc<Mutex<Option<ProgressBar>>>,
    on_terminal: bool,
}

impl TorProgress {
    pub(super) fn new() -> Self {
        Self {
            bar: Arc::default(),
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn reporter(&self) -> impl Fn(TorStatus) + Send + Sync + 'static {
        let (bar, on_terminal) = (self.bar.clone(), self.on_terminal);
        let began = Instant::now();
        let last_line = Mutex::new(String::new());
        move |status| {
            if on_terminal {
                let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
                return draw(&mut bar, &status);
            }
            let line = describe(&status);
            let mut last = last_line.lock().unwrap_or_else(PoisonError::into_inner);
            if began.elapsed() >= WORTH_A_WORD && *last != line && !status.ready {
                eprintln!("{line}");
                *last = line;
            }
        }
    }
}

fn draw(slot: &mut Option<ProgressBar>, status: &TorStatus) {
    if status.ready {
        if let Some(bar) = slot.take() {
            bar.finish_and_clear();
        }
        return;
    }
    let bar = slot.get_or_insert_with(|| {
        let bar = ProgressBar::new(100);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    });
    bar.set_position(percent(status));
    bar.set_message(describe(status));
}

fn describe(status: &TorStatus) -> String {
    let blocked = match &status.blocked {
        Some(reason) => format!(" (blocked: {reason})"),
        None => String::new(),
    };
    format!("tor: bootstrap {} %{blocked}", percent(status))
}

fn percent(status: &TorStatus) -> u64 {
    // A fraction from 0 to 1; casts of floats saturate.
    (f64::from(status.fraction) * 100.0) as u64
}

/// Completes when the operator or the container engine asks us to end.
pub(super) async fn interrupted() -> &'static str {
    let (Ok(mut int), Ok(mut term), Ok(mut hangup)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        // Without handlers the signals keep their default action, which ends us too.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => "SIGINT",
        _ = term.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    }
}
