//! Reading the page.

use crate::browser::session::{OpError, Session, within};
use crate::protocol::op::ExtractText;
use crate::protocol::reply::Reply;

impl Session {
    /// The text as a reader sees it.
    pub async fn extract_text(&self, op: &ExtractText) -> Result<Reply, OpError> {
        const OP: &str = "extract_text";
        let script = "document.body ? document.body.innerText : ''";
        let text: String = within(OP, "body", super::ACT_BUDGET, self.inspect(OP, script)).await?;
        let limit = op
            .max_chars
            .clamp(ExtractText::MIN_CHARS, ExtractText::MAX_CHARS);
        let length = text.chars().count();
        let mut external = self.location_reply(OP).await?;
        external.text = Some(text.chars().take(limit).collect());
        Ok(Reply {
            op: OP.to_owned(),
            length: Some(length),
            truncated: length > limit,
            external,
            ..Reply::default()
        })
    }
}
