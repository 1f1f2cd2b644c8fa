//! What an op gives, as data. Everything that came from a page sits in [`External`].

use serde::Serialize;

use super::error::Failure;

/// A successful op.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reply {
    pub op: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Characters of content, before any cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// A file in the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub external: External,
}

/// What a page had a say in: foreign words, marked wherever they are shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct External {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// How an op ended.
pub type Outcome = Result<Reply, Failure>;
