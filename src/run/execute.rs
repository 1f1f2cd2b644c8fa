//! One op, from the caller's words to the reply: policy, page, browser, file; and the gateway's word
//! on what went wrong.

use std::io::Write as _;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

use super::Instance;
use crate::browser::OpError;
use crate::browser::cdp::CdpError;
use crate::gateway::{Outcome as Ending, Row, SessionId};
use crate::policy::{Host, Policy};
use crate::protocol::error::{Code, Failure};
use crate::protocol::op::{Navigate, Op, Screenshot, WaitUntil};
use crate::protocol::reply::{Outcome, Reply};
use crate::workspace::{Workspace, WorkspaceError};

/// The session of the browser's default context, which dials 127.0.0.1.
const SESSION: SessionId = SessionId::Local(1);
/// How long the gateway may take to close the row of a connection that Chromium saw fail.
const ROW_PATIENCE: Duration = Duration::from_millis(500);

/// Refuses what needs no browser to be refused.
pub fn precheck(policy: &Policy, workspace: &Workspace, op: &Op) -> Result<(), Failure> {
    if let Some(url) = op.url() {
        judge(policy, url)?;
    }
    if let Op::Screenshot(Screenshot {
        path: Some(path), ..
    }) = op
    {
        workspace.resolve(path).map_err(path_failure)?;
    }
    Ok(())
}

impl Instance {
    /// Carries out one op. On the command line every process is a session of its own, so that an op
    /// which names no page returns to the last one.
    pub async fn execute(&mut self, op: &Op) -> Outcome {
        precheck(&self.policy, &self.workspace, op)?;
        match op {
            Op::Navigate(op) => self.navigate(op).await,
            Op::ExtractText(text) => {
                let status = self.return_to(op).await?.http_status;
                let reply = self.session.extract_text(text).await;
                let reply = reply.map_err(|error| self.explain(error))?;
                Ok(Reply {
                    http_status: status,
                    ..reply
                })
            }
            Op::Screenshot(picture) => {
                let status = self.return_to(op).await?.http_status;
                let reply = self.screenshot(picture).await?;
                Ok(Reply {
                    http_status: status,
                    ..reply
                })
            }
        }
    }

    async fn navigate(&self, op: &Navigate) -> Outcome {
        judge(&self.policy, &op.url)?;
        let mark = self.ledger.mark();
        match self.session.navigate(op).await {
            Ok(reply) => {
                if let Some(url) = &reply.external.url {
                    self.profile
                        .set_last_url(url)
                        .map_err(|error| Failure::new(Code::OpFailed, error.to_string()))?;
                }
                Ok(reply)
            }
            Err(error) => match self.gateways_word(&op.url, mark, &error).await {
                Some(row) => Err(told_by(&row, &op.url)),
                None => Err(self.explain(error)),
            },
        }
    }

    async fn return_to(&self, op: &Op) -> Outcome {
        let url = match op.url() {
            Some(url) => url.to_owned(),
            None => self.profile.last_url().ok_or_else(|| {
                let name = op.name();
                let message = format!(
                    "{name} needs a URL: pass `url=...` or call `operation=\"navigate\"` first"
                );
                Failure::new(Code::Usage, message).hint(format!("onioncell {name} --url URL"))
            })?,
        };
        self.navigate(&Navigate {
            url,
            wait_until: WaitUntil::Load,
            timeout_ms: None,
        })
        .await
    }

    async fn screenshot(&self, op: &Screenshot) -> Outcome {
        let name = op.path.clone().unwrap_or_else(default_name);
        let path = self.workspace.resolve(&name).map_err(path_failure)?;
        let (png, reply) = self
            .session
            .screenshot(op)
            .await
            .map_err(|error| self.explain(error))?;
        let mut file = self.workspace.create(&path).map_err(path_failure)?;
        file.write_all(&png).map_err(|error| {
            let message = format!("cannot write {}: {error}", path.as_path().display());
            Failure::new(Code::OpFailed, message)
        })?;
        Ok(Reply {
            saved: Some(path.as_path().display().to_string()),
            ..reply
        })
    }

    /// What the gateway says about a page that did not load: of its host, or of a host that it
    /// redirected to.
    async fn gateways_word(&self, url: &str, mark: u64, error: &OpError) -> Option<Row> {
        let OpError::Network { .. } = error else {
            return None;
        };
        let url = url::Url::parse(url).ok()?;
        let host = Host::parse(url.host_str()?).ok()?.to_string();
        let mut rows = self.ledger.subscribe();
        let told = || {
            let of_host = self.ledger.explain(&host, SESSION, mark);
            let of_any = || {
                let rows = self.ledger.since(mark).into_iter().rev();
                rows.filter(|row| row.session == SESSION)
                    .find(|row| row.explanation().is_some())
            };
            of_host.or_else(of_any)
        };
        let waited = async {
            loop {
                if let Some(row) = told() {
                    return row;
                }
                if rows.recv().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(ROW_PATIENCE, waited).await.ok()
    }

    fn explain(&self, error: OpError) -> Failure {
        let code = match &error {
            OpError::Timeout { .. } => Code::Timeout,
            OpError::PageCrashed { .. } => Code::Crashed,
            OpError::Cdp {
                source: CdpError::Closed,
                ..
            } => Code::Crashed,
            _ => Code::OpFailed,
        };
        let failure = Failure::new(code, error.to_string());
        match error {
            OpError::Timeout { op: "navigate", .. } => failure.hint(
                "give it more time with --timeout-ms, or wait for less with --wait-until commit",
            ),
            _ => failure,
        }
    }
}

fn judge(policy: &Policy, url: &str) -> Result<(), Failure> {
    match policy.check_url(url) {
        Ok(_) => Ok(()),
        Err(denied) => {
            let failure = Failure::new(Code::PolicyDenied, denied.to_string());
            Err(match denied.denial.hint() {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
    }
}

fn told_by(row: &Row, url: &str) -> Failure {
    let word = row.explanation().unwrap_or_default();
    match &row.outcome {
        Ending::Denied(_) => Failure::new(Code::PolicyDenied, format!("{word} (url={url})")),
        _ => Failure::new(Code::OpFailed, format!("navigate({url}) failed: {word}")),
    }
}

fn path_failure(error: WorkspaceError) -> Failure {
    let code = if error.is_denial() {
        Code::PathDenied
    } else {
        Code::OpFailed
    };
    Failure::new(code, error.to_string())
        .hint("paths are relative to the workspace (--workspace DIR)")
}

/// screenshot_YYYYMMDD_HHMMSS_mmm.png
fn default_name() -> String {
    let format = format_description!(
        "screenshot_[year][month][day]_[hour][minute][second]_[subsecond digits:3].png"
    );
    OffsetDateTime::now_utc()
        .format(format)
        .unwrap_or_else(|_| "screenshot.png".to_owned())
}
