//! Drives one browser through every vector, over its debugging pipe.

use std::collections::BTreeMap;
use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::browser::{
    BrowserContextId, PermissionDescriptor, PermissionSetting, SetPermissionParams,
};
use chromiumoxide_cdp::cdp::browser_protocol::cast;
use chromiumoxide_cdp::cdp::browser_protocol::page::{
    self, EventDomContentEventFired, NavigateParams,
};
use chromiumoxide_cdp::cdp::browser_protocol::security::SetIgnoreCertificateErrorsParams;
use chromiumoxide_cdp::cdp::browser_protocol::target::{
    AttachToTargetParams, CreateBrowserContextParams, CreateTargetParams,
};
use chromiumoxide_cdp::cdp::js_protocol::runtime::EvaluateParams;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::{Instant, sleep_until, timeout};

use super::aim::Aim;
use super::progress::Progress;
use super::vectors::{self, Action, Page, Vector};
use crate::browser::cdp::{CdpError, Connection, Session};

/// The page has two bounds of its own, together below this.
const PAGE_LIMIT: Duration = Duration::from_secs(20);
/// A navigation into the void never ends by itself.
const NAVIGATION_LIMIT: Duration = Duration::from_secs(3);
/// Many tabs at once take their time to open.
const TAB_LIMIT: Duration = Duration::from_secs(30);
/// So few that they do not wait for each other longer than that.
const TABS_AT_ONCE: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("cannot open a tab: {0}")]
    Tab(#[source] CdpError),
    #[error("{url} did not load: {reason}")]
    Page { url: String, reason: String },
    #[error("{url}: its vectors did not end in {} s", PAGE_LIMIT.as_secs())]
    Unending { url: String },
    #[error("the vector {0} was not tried: its page did not report it")]
    Untried(&'static str),
}

/// What each vector's page, or the pipe, said of it.
pub type Outcomes = BTreeMap<String, String>;

/// Sets off every vector, and watches for `at_least`.
pub async fn drive(
    connection: &Connection,
    domain: &str,
    at_least: Duration,
    progress: &Progress,
) -> Result<Outcomes, DriveError> {
    let end = Instant::now() + at_least;
    progress.say(&format!("{} vectors on two pages", on_pages()));
    allow(connection, domain).await.map_err(DriveError::Tab)?;
    let pages = [Page::Plain, Page::Secure].map(|page| run_page(connection, page, domain));
    let mut outcomes = Outcomes::new();
    for page in join_all(pages).await {
        outcomes.extend(page?);
    }
    progress.say("navigations, contexts with proxies of their own, Cast");
    let others: Vec<_> = stream::iter(vectors::all())
        .map(|(number, vector)| run_on_pipe(connection, Aim { number, domain }, vector))
        .buffer_unordered(TABS_AT_ONCE)
        .try_collect()
        .await?;
    outcomes.extend(others.into_iter().flatten());
    for (_, vector) in vectors::all() {
        if matches!(vector.action, Action::Script(..)) && !outcomes.contains_key(vector.name) {
            return Err(DriveError::Untried(vector.name));
        }
    }
    progress.say("watching what it does by itself");
    sleep_until(end).await;
    Ok(outcomes)
}

/// Nobody is there to answer a prompt, and what a page is refused it cannot leak by.
async fn allow(connection: &Connection, domain: &str) -> Result<(), CdpError> {
    for name in ["notifications", "geolocation"] {
        let mut allow =
            SetPermissionParams::new(PermissionDescriptor::new(name), PermissionSetting::Granted);
        allow.origin = Some(format!("https://{domain}"));
        connection.root().call(allow).await?;
    }
    Ok(())
}

fn on_pages() -> usize {
    let on_page = |action| matches!(action, Action::Markup(..) | Action::Script(..));
    vectors::all()
        .filter(|(_, vector)| on_page(vector.action))
        .count()
}

/// Loads one of the two pages and runs what is on it.
async fn run_page(
    connection: &Connection,
    page: Page,
    domain: &str,
) -> Result<Outcomes, DriveError> {
    let url = page.url(domain);
    let failed = |reason: String| DriveError::Page {
        url: page.url(domain),
        reason,
    };
    let tab = open_tab(connection, None).await.map_err(DriveError::Tab)?;
    let run = async {
        let said = |error: CdpError| failed(error.to_string());
        tab.call(page::EnableParams::default())
            .await
            .map_err(said)?;
        // Where nothing makes the browser trust the site, the page shall load all the same.
        tab.call(SetIgnoreCertificateErrorsParams::new(true))
            .await
            .map_err(said)?;
        let mut parsed = tab.events_of::<EventDomContentEventFired>();
        let loaded = tab.call(NavigateParams::new(&url)).await.map_err(said)?;
        if let Some(reason) = loaded.error_text {
            return Err(failed(reason));
        }
        parsed.next().await.ok_or_else(|| said(CdpError::Closed))?;
        let mut run = EvaluateParams::new("leaktest()");
        run.await_promise = Some(true);
        run.return_by_value = Some(true);
        // Popups and the like need a user's gesture.
        run.user_gesture = Some(true);
        let answer = tab.call(run).await.map_err(said)?;
        if let Some(exception) = answer.exception_details {
            return Err(failed(exception.text));
        }
        let report = answer
            .result
            .value
            .as_ref()
            .and_then(|value| value.as_str());
        serde_json::from_str(report.unwrap_or_default()).map_err(|error| failed(error.to_string()))
    };
    timeout(PAGE_LIMIT, run)
        .await
        .unwrap_or_else(|_| Err(DriveError::Unending { url: url.clone() }))
}

/// Vectors that need the pipe rather than a page. What becomes of a navigation is an outcome; a
/// vector that could not be set off is an error.
async fn run_on_pipe(
    connection: &Connection,
    aim: Aim<'_>,
    vector: &Vector,
) -> Result<Option<(String, String)>, DriveError> {
    let untried = |_| DriveError::Untried(vector.name);
    let open = |context| async move {
        let opening = open_tab(connection, context);
        let opened = timeout(TAB_LIMIT, opening).await.map_err(untried)?;
        opened.map_err(DriveError::Tab)
    };
    let outcome = match vector.action {
        Action::Markup(..) | Action::Script(..) | Action::Watch => return Ok(None),
        Action::Navigate(url) => navigate(&open(None).await?, &aim.fill(url)).await,
        Action::Context { proxy, bypass, url } => {
            let own = CreateBrowserContextParams {
                dispose_on_detach: Some(true),
                proxy_server: Some(aim.fill(proxy)),
                proxy_bypass_list: bypass.map(str::to_owned),
                ..Default::default()
            };
            let own = connection.root().call(own).await.map_err(DriveError::Tab)?;
            let tab = open(Some(own.browser_context_id)).await?;
            navigate(&tab, &aim.fill(url)).await
        }
        Action::Cast => match open(None).await?.call(cast::EnableParams::default()).await {
            Ok(_) => "searched".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    Ok(Some((vector.name.to_owned(), outcome)))
}

async fn navigate(tab: &Session, url: &str) -> String {
    match timeout(NAVIGATION_LIMIT, tab.call(NavigateParams::new(url))).await {
        Ok(Ok(answer)) => answer.error_text.unwrap_or_else(|| "loaded".to_owned()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    }
}

async fn open_tab(
    connection: &Connection,
    context: Option<BrowserContextId>,
) -> Result<Session, CdpError> {
    let root = connection.root();
    let mut create = CreateTargetParams::new("about:blank");
    create.browser_context_id = context;
    let target = root.call(create).await?.target_id;
    let mut attach = AttachToTargetParams::new(target);
    attach.flatten = Some(true);
    let session = root.call(attach).await?.session_id;
    Ok(connection.session(session.as_ref()))
}
