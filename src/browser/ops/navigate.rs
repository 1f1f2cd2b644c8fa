//! Opening pages.

use std::borrow::Cow;
use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::inspector::EventTargetCrashed;
use chromiumoxide_cdp::cdp::browser_protocol::network::LoaderId;
use chromiumoxide_cdp::cdp::browser_protocol::page::{
    EventLifecycleEvent, NavigateParams, StopLoadingParams,
};
use chromiumoxide_types::{MethodId, MethodType};
use serde::Deserialize;

use crate::browser::cdp::Events;
use crate::browser::session::{OpError, Session, within};
use crate::protocol::op::{Navigate, WaitUntil};
use crate::protocol::reply::{External, Reply};

const OP: &str = "navigate";
const BUDGET: Duration = Duration::from_secs(30);

/// The part of Network.responseReceived that we read. Chromium's whole event has enumerations that
/// grow with every version.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseReceived {
    loader_id: LoaderId,
    r#type: String,
    response: Response,
}

#[derive(Debug, Deserialize)]
struct Response {
    status: u16,
}

impl MethodType for ResponseReceived {
    fn method_id() -> MethodId {
        Cow::Borrowed("Network.responseReceived")
    }
}

#[derive(Debug, Deserialize)]
struct Location {
    url: String,
    title: String,
}

impl Session {
    /// Opens a page and waits for the event that the caller named.
    pub async fn navigate(&self, op: &Navigate) -> Result<Reply, OpError> {
        let budget = op.timeout_ms.map_or(BUDGET, Duration::from_millis);
        let loaded = within(OP, &op.url, budget, self.load(&op.url, op.wait_until)).await;
        if matches!(loaded, Err(OpError::Timeout { .. })) {
            // What is still loading must not disturb the next op.
            let _ = self.page.send(StopLoadingParams::default());
        }
        let http_status = loaded?;
        let location = self.location(OP).await?;
        Ok(Reply {
            op: OP.to_owned(),
            http_status,
            external: External {
                url: Some(location.url),
                title: Some(location.title),
                text: None,
            },
            ..Reply::default()
        })
    }

    pub(in crate::browser) async fn load(
        &self,
        url: &str,
        until: WaitUntil,
    ) -> Result<Option<u16>, OpError> {
        let mut events = self.page.events(&[
            EventLifecycleEvent::method_id(),
            ResponseReceived::method_id(),
            EventTargetCrashed::method_id(),
        ]);
        let answer = self.page.call(NavigateParams::new(url)).await;
        let answer = answer.map_err(|source| OpError::Cdp { op: OP, source })?;
        if let Some(reason) = answer.error_text.filter(|text| !text.is_empty()) {
            return Err(OpError::Network {
                url: url.to_owned(),
                reason,
            });
        }
        // No loader: the address differs from the last one only in its fragment.
        let Some(loader) = answer.loader_id else {
            return Ok(None);
        };
        wait(&mut events, &loader, until).await
    }

    /// Address and title as they are now.
    pub(super) async fn location_reply(&self, op: &'static str) -> Result<External, OpError> {
        let location = self.location(op).await?;
        Ok(External {
            url: Some(location.url),
            title: Some(location.title),
            text: None,
        })
    }

    async fn location(&self, op: &'static str) -> Result<Location, OpError> {
        let script = "({url: location.href, title: document.title})";
        let budget = super::ACT_BUDGET;
        within(op, "location", budget, self.inspect(op, script)).await
    }
}

async fn wait(
    events: &mut Events,
    loader: &LoaderId,
    until: WaitUntil,
) -> Result<Option<u16>, OpError> {
    let milestone = match until {
        WaitUntil::Commit => "commit",
        WaitUntil::DomContentLoaded => "DOMContentLoaded",
        WaitUntil::Load => "load",
    };
    let mut status = None;
    while let Some(event) = events.next().await {
        if let Some(response) = event.parse::<ResponseReceived>() {
            if response.loader_id == *loader && response.r#type == "Document" {
                // The first is the page; later ones are its frames.
                status = status.or(Some(response.response.status));
            }
        } else if let Some(lifecycle) = event.parse::<EventLifecycleEvent>() {
            if lifecycle.loader_id == *loader && lifecycle.name == milestone {
                return Ok(status);
            }
        } else if event.parse::<EventTargetCrashed>().is_some() {
            return Err(OpError::PageCrashed { op: OP });
        }
    }
    Err(OpError::Cdp {
        op: OP,
        source: crate::browser::cdp::CdpError::Closed,
    })
}
