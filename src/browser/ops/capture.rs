//! Pictures of the page.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chromiumoxide_cdp::cdp::browser_protocol::page::{
    CaptureScreenshotFormat, CaptureScreenshotParams, GetLayoutMetricsParams, Viewport,
};

use crate::browser::session::{OpError, Session, within};
use crate::protocol::op::Screenshot;
use crate::protocol::reply::Reply;

const OP: &str = "screenshot";

/// Chromium's own limit for a surface; beyond it the picture would be blank.
const MAX_SIDE: f64 = 16_384.0;

impl Session {
    /// A PNG of the window or of the whole page. Storing it is the caller's part.
    pub async fn screenshot(&self, op: &Screenshot) -> Result<(Vec<u8>, Reply), OpError> {
        let png = within(OP, "page", super::ACT_BUDGET, self.capture(op.full_page)).await?;
        let reply = Reply {
            op: OP.to_owned(),
            bytes: Some(png.len() as u64),
            external: self.location_reply(OP).await?,
            ..Reply::default()
        };
        Ok((png, reply))
    }

    async fn capture(&self, full_page: bool) -> Result<Vec<u8>, OpError> {
        let cdp = |source| OpError::Cdp { op: OP, source };
        let mut capture = CaptureScreenshotParams::builder().format(CaptureScreenshotFormat::Png);
        if full_page {
            let metrics = self.page.call(GetLayoutMetricsParams::default()).await;
            let size = metrics.map_err(cdp)?.css_content_size;
            capture = capture.capture_beyond_viewport(true).clip(Viewport {
                x: 0.0,
                y: 0.0,
                width: size.width.min(MAX_SIDE),
                height: size.height.min(MAX_SIDE),
                scale: 1.0,
            });
        }
        let picture = self.page.call(capture.build()).await.map_err(cdp)?;
        BASE64
            .decode(String::from(picture.data))
            .map_err(|error| OpError::Failed {
                op: OP,
                reason: format!("Chromium's picture is not base64: {error}"),
            })
    }
}
