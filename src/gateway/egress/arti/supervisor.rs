//! Keeps a Tor client alive: bootstraps one, watches it, and replaces it when it is lost.
//!
//! Arti's own retries back off, so that a client which began without a network finds it again
//! minutes after it returned, where a new one is ready at once. So a client that makes no progress
//! is dropped for a new one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arti_client::TorClient;
use futures::StreamExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tor_error::ErrorReport as _;

use super::runtime::{self, Runtime};
use super::{TorConfig, TorStatus};

pub(super) type Client = Arc<TorClient<Runtime>>;

/// A bootstrap whose fraction has not moved for this long is begun anew.
const STALLED: Duration = Duration::from_secs(20);
/// Between two clients: doubles from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long a dropped client may take to give up its locks.
const RELEASE: Duration = Duration::from_secs(3);

/// Where the client is.
#[derive(Clone)]
pub(super) enum State {
    /// On its way: how far, and what stands in it.
    Starting(TorStatus),
    /// Out of the time that a start is given; tried further in the background.
    Late(TorStatus),
    Ready(Client),
}

pub(super) struct Supervisor {
    pub(super) config: TorConfig,
    pub(super) client: arti_client::TorClientConfig,
    pub(super) state: watch::Sender<State>,
    /// Told when the client in use has failed too often.
    pub(super) lost: Arc<Notify>,
    pub(super) progress: Box<dyn Fn(TorStatus) + Send + Sync>,
}

impl Supervisor {
    pub(super) async fn run(self) {
        let (began, mut pause) = (Instant::now(), PAUSE.0);
        let mut ever = false;
        loop {
            match self.bootstrap(began, ever).await {
                Ok(client) => {
                    (ever, pause) = (true, PAUSE.0);
                    self.report(TorStatus::of(&client.bootstrap_status()));
                    let _ = self.state.send_replace(State::Ready(Arc::clone(&client)));
                    self.watch(client).await;
                    self.say(TorStatus::blocked("lost the Tor network"), began, ever);
                }
                Err(status) => {
                    self.say(status, began, ever);
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
            self.released().await;
        }
    }

    /// One client, from nothing to ready for traffic; or how far it came.
    async fn bootstrap(&self, began: Instant, ever: bool) -> Result<Client, TorStatus> {
        let runtime = runtime::current().map_err(|error| TorStatus::blocked(error.to_string()))?;
        let client = TorClient::with_runtime(runtime)
            .config(self.client.clone())
            .create_unbootstrapped_async()
            .await
            .map_err(|error| TorStatus::blocked(error.report().to_string()))?;
        let mut events = client.bootstrap_events();
        let bootstrap = async {
            match client.bootstrap().await {
                // The events say when it is ready, which may be later.
                Ok(()) => std::future::pending().await,
                Err(error) => error.report().to_string(),
            }
        };
        tokio::pin!(bootstrap);
        let (mut last, mut moved) = (TorStatus::default(), Instant::now());
        self.say(last.clone(), began, ever);
        loop {
            let status = TorStatus::of(&client.bootstrap_status());
            if status.ready {
                return Ok(Arc::clone(&client));
            }
            if status.fraction > last.fraction {
                moved = Instant::now();
            }
            if status != last {
                self.say(status.clone(), began, ever);
                last = status;
            }
            let rest = STALLED.saturating_sub(moved.elapsed());
            tokio::select! {
                problem = &mut bootstrap => {
                    return Err(TorStatus { blocked: Some(problem), ..last });
                }
                event = timeout(rest, events.next()) => {
                    let late = !ever && began.elapsed() >= self.config.bootstrap_timeout;
                    if late {
                        self.say(last.clone(), began, ever);
                    }
                    if event.is_err() && moved.elapsed() >= STALLED {
                        return Err(last);
                    }
                }
            }
        }
    }

    /// Returns when the client is lost.
    async fn watch(&self, client: Client) {
        let mut events = client.bootstrap_events();
        let mut last = TorStatus::of(&client.bootstrap_status());
        loop {
            tokio::select! {
                () = self.lost.notified() => return,
                event = events.next() => match event {
                    Some(event) => {
                        let status = TorStatus::of(&event);
                        if status.ready != last.ready || status.blocked != last.blocked {
                            self.report(status.clone());
                        }
                        last = status;
                    }
                    None => return,
                },
            }
        }
    }

    fn say(&self, status: TorStatus, began: Instant, ever: bool) {
        let late = !ever && began.elapsed() >= self.config.bootstrap_timeout;
        let _ = self.state.send_replace(match late {
            true => State::Late(status.clone()),
            false => State::Starting(status.clone()),
        });
        self.report(status);
    }

    fn report(&self, status: TorStatus) {
        (self.progress)(status);
    }

    /// Waits for the locks of a dropped client, whose tasks end a little after it: a new client
    /// that does not get them would wait for the old one to do the work.
    async fn released(&self) {
        let free = async {
            while self.config.is_owned_elsewhere() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = timeout(RELEASE, free).await;
    }
}
