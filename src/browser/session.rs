//! One caller's page in the browser.

use std::time::Duration;

use chromiumoxide_cdp::cdp::browser_protocol::emulation::SetDeviceMetricsOverrideParams;
use chromiumoxide_cdp::cdp::browser_protocol::network;
use chromiumoxide_cdp::cdp::browser_protocol::page::{
    self, CreateIsolatedWorldParams, FrameId, SetLifecycleEventsEnabledParams,
};
use chromiumoxide_cdp::cdp::browser_protocol::target::{
    AttachToTargetParams, CreateTargetParams, SetDiscoverTargetsParams,
};
use chromiumoxide_cdp::cdp::js_protocol::runtime::EvaluateParams;
use serde::de::DeserializeOwned;

use super::cdp::{CdpError, Connection, Session as Cdp};
use super::switches::VIEWPORT;
use crate::protocol::op::WaitUntil;

/// Why an op failed, before anyone has asked the gateway what it knows of it.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    #[error("{op}({object}) timed out after {} ms", .budget.as_millis())]
    Timeout {
        op: &'static str,
        object: String,
        budget: Duration,
    },
    /// Chromium could not load a document; `reason` is its net error, such as net::ERR_TIMED_OUT.
    #[error("navigate({url}) failed: {reason}")]
    Network { url: String, reason: String },
    #[error("the page crashed during {op}")]
    PageCrashed { op: &'static str },
    #[error("{op} failed: {source}")]
    Cdp { op: &'static str, source: CdpError },
    #[error("{op} failed: {reason}")]
    Failed { op: &'static str, reason: String },
}

/// chrome://sandbox, read.
#[derive(Clone, Debug)]
pub struct SandboxReport {
    pub adequate: bool,
    pub verdict: String,
}

/// A page of the browser's default context, which keeps its cookies in the profile.
#[derive(Debug)]
pub struct Session {
    pub(super) page: Cdp,
    pub(super) main_frame: FrameId,
}

impl Session {
    /// Opens an empty page.
    pub async fn open(connection: &Connection) -> Result<Self, OpError> {
        let cdp = |source| OpError::Cdp {
            op: "start",
            source,
        };
        let root = connection.root();
        root.send(SetDiscoverTargetsParams::new(true))
            .map_err(cdp)?;
        let target = root
            .call(CreateTargetParams::new("about:blank"))
            .await
            .map_err(cdp)?
            .target_id;
        let attach = AttachToTargetParams::builder()
            .target_id(target)
            .flatten(true)
            .build()
            .map_err(|reason| OpError::Failed {
                op: "start",
                reason,
            })?;
        let attached = root.call(attach).await.map_err(cdp)?;
        let page = connection.session(attached.session_id.as_ref());

        // Sent together, answered together: one round trip instead of five.
        let enable_page = page.send(page::EnableParams::default()).map_err(cdp)?;
        let enable_network = page.send(network::EnableParams::default()).map_err(cdp)?;
        let lifecycle = page
            .send(SetLifecycleEventsEnabledParams::new(true))
            .map_err(cdp)?;
        let (width, height) = VIEWPORT;
        // The screen too, or pages would see 800×600 without a window and the operator's own with one.
        let metrics = SetDeviceMetricsOverrideParams {
            screen_width: Some(width.into()),
            screen_height: Some(height.into()),
            ..SetDeviceMetricsOverrideParams::new(width, height, 1.0, false)
        };
        let viewport = page.send(metrics).map_err(cdp)?;
        let tree = page
            .send(page::GetFrameTreeParams::default())
            .map_err(cdp)?;
        enable_page.answer().await.map_err(cdp)?;
        enable_network.answer().await.map_err(cdp)?;
        lifecycle.answer().await.map_err(cdp)?;
        viewport.answer().await.map_err(cdp)?;
        let main_frame = tree.answer().await.map_err(cdp)?.frame_tree.frame.id;
        Ok(Self { page, main_frame })
    }

    /// What Chromium says of its own sandbox.
    pub async fn sandbox_report(&self) -> Result<SandboxReport, OpError> {
        const OP: &str = "doctor";
        let url = "chrome://sandbox";
        let budget = Duration::from_secs(10);
        within(OP, url, budget, self.load(url, WaitUntil::Load)).await?;
        // The page fills its verdict in after it has loaded.
        let script = "new Promise(done => { const look = () => { \
            const verdict = document.getElementById('evaluation')?.innerText; \
            verdict ? done(verdict) : requestAnimationFrame(look) }; look() })";
        let verdict: String = within(OP, url, budget, self.inspect(OP, script)).await?;
        Ok(SandboxReport {
            adequate: verdict.contains("adequately sandboxed") && !verdict.contains("NOT"),
            verdict,
        })
    }

    /// The managed policies that Chromium has read and obeys, by chrome://policy.
    pub async fn policies_in_force(&self) -> Result<Vec<String>, OpError> {
        const OP: &str = "doctor";
        let url = "chrome://policy";
        let budget = Duration::from_secs(10);
        within(OP, url, budget, self.load(url, WaitUntil::Load)).await?;
        // A row each, also for those not set, filled in after the page has loaded.
        let script = "new Promise(done => { \
            const rows = (root, found = []) => { \
                for (const node of root.querySelectorAll('*')) { \
                    if (node.localName === 'policy-row') found.push(node.shadowRoot); \
                    else if (node.shadowRoot) rows(node.shadowRoot, found) } \
                return found }; \
            const text = (row, part) => row?.querySelector(part)?.textContent.trim(); \
            const look = () => { \
                const all = rows(document); \
                if (!all.length || !all.every(row => text(row, '.name'))) return requestAnimationFrame(look); \
                done(all.filter(row => text(row, '.level') === 'Mandatory' && text(row, '.messages') !== 'Error') \
                    .map(row => text(row, '.name'))) }; \
            look() })";
        within(OP, url, budget, self.inspect(OP, script)).await
    }

    /// Runs a script of ours in a world of its own, where the page's scripts have no say.
    pub(super) async fn inspect<T: DeserializeOwned>(
        &self,
        op: &'static str,
        script: &str,
    ) -> Result<T, OpError> {
        let cdp = |source| OpError::Cdp { op, source };
        let failed = |reason: String| OpError::Failed { op, reason };
        let world = CreateIsolatedWorldParams::builder()
            .frame_id(self.main_frame.clone())
            .world_name("onioncell")
            .build()
            .map_err(failed)?;
        let context = self.page.call(world).await.map_err(cdp)?;
        let evaluate = EvaluateParams::builder()
            .expression(script)
            .context_id(context.execution_context_id)
            .return_by_value(true)
            .await_promise(true)
            .build()
            .map_err(failed)?;
        let answer = self.page.call(evaluate).await.map_err(cdp)?;
        if let Some(exception) = answer.exception_details {
            return Err(failed(exception.text));
        }
        let value = answer.result.value.unwrap_or_default();
        serde_json::from_value(value).map_err(|error| failed(error.to_string()))
    }
}

/// Bounds an op: whatever Chromium does, the caller gets an answer.
pub(super) async fn within<T>(
    op: &'static str,
    object: &str,
    budget: Duration,
    work: impl Future<Output = Result<T, OpError>>,
) -> Result<T, OpError> {
    match tokio::time::timeout(budget, work).await {
        Ok(result) => result,
        Err(_) => Err(OpError::Timeout {
            op,
            object: object.to_owned(),
            budget,
        }),
    }
}
