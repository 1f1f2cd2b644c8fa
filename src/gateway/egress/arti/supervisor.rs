//! Keeps a Tor client alive: bootstraps one, watches it, and replaces it when it is lost.
//!
//! Arti's own retries back off, so that a client which began without a network finds it again
//! minutes after it returned, where a new one is ready at once. So a client that makes no progress
//! is replaced. Its tasks would hold the locks on its directories for as long as a dead connection
//! takes to time out, and the next client would wait for them: so each has a runtime of its own,
//! and goes with it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arti_client::TorClient;
use futures::StreamExt as _;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tor_error::ErrorReport as _;

use super::runtime::{self, Runtime};
use super::{TorConfig, TorStatus};

/// A client, and where its work is done.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) arti: Arc<TorClient<Runtime>>,
    pub(super) handle: Handle,
}

/// The runtime of one client. Dropped, it takes every task of the client along.
struct Engine(Option<tokio::runtime::Runtime>);

impl Engine {
    fn start() -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(THREADS)
            .thread_name("tor")
            .enable_all();
        Ok(Self(Some(builder.build()?)))
    }

    fn create(&self, config: arti_client::TorClientConfig) -> Result<Client, String> {
        let Some(runtime) = &self.0 else {
            return Err("the runtime has ended".into());
        };
        let _inside = runtime.enter();
        let arti = TorClient::with_runtime(runtime::current().map_err(|error| error.to_string())?)
            .config(config)
            .create_unbootstrapped()
            .map_err(|error| error.report().to_string())?;
        Ok(Client {
            arti,
            handle: runtime.handle().clone(),
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A bootstrap whose fraction has not moved for this long is begun anew.
const STALLED: Duration = Duration::from_secs(20);
/// Between two clients: doubles from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// Cells of one channel are handled by one task, so that more would not be faster.
const THREADS: usize = 2;
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
                Ok((engine, client)) => {
                    (ever, pause) = (true, PAUSE.0);
                    self.report(TorStatus::of(&client.arti.bootstrap_status()));
                    let _ = self.state.send_replace(State::Ready(client.clone()));
                    self.watch(client).await;
                    drop(engine);
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
    async fn bootstrap(&self, began: Instant, ever: bool) -> Result<(Engine, Client), TorStatus> {
        let engine = Engine::start().map_err(|error| TorStatus::blocked(error.to_string()))?;
        let client = engine
            .create(self.client.clone())
            .map_err(TorStatus::blocked)?;
        let mut events = client.arti.bootstrap_events();
        let mut bootstrap = JoinSet::new();
        let arti = Arc::clone(&client.arti);
        bootstrap.spawn_on(async move { arti.bootstrap().await }, &client.handle);
        let (mut last, mut moved) = (TorStatus::default(), Instant::now());
        self.say(last.clone(), began, ever);
        loop {
            let status = TorStatus::of(&client.arti.bootstrap_status());
            if status.ready {
                return Ok((engine, client));
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
                // When it succeeds, the events say when it is ready, which may be later.
                Some(Ok(Err(error))) = bootstrap.join_next() => {
                    return Err(TorStatus { blocked: Some(error.report().to_string()), ..last });
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
        let mut events = client.arti.bootstrap_events();
        let mut last = TorStatus::of(&client.arti.bootstrap_status());
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
