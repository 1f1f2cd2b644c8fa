//! The one list of what the browser can do. The command line and JSON are derived from it.

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// An operation: `{"kind":"navigate","url":"https://example.com/"}`, or `navigate URL`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Subcommand)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Open a page and report its status, address and title
    Navigate(Navigate),
    /// The page's rendered text
    #[command(name = "extract_text", alias = "extract-text")]
    ExtractText(ExtractText),
    /// A picture of the page, as a PNG in the workspace
    Screenshot(Screenshot),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct Navigate {
    /// An http or https address
    pub url: String,
    /// The event that ends the wait
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub wait_until: WaitUntil,
    /// Give up after this many milliseconds [default: 30000]
    #[arg(long, value_name = "MS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum WaitUntil {
    /// The page and everything it names has loaded
    #[default]
    Load,
    /// The document is parsed
    DomContentLoaded,
    /// The server has answered
    Commit,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ExtractText {
    /// Open this page first; without it, the last page
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Cut the text here (256 to 65536)
    #[arg(long, value_name = "N", default_value_t = ExtractText::MAX_CHARS)]
    #[serde(default = "ExtractText::default_max_chars")]
    pub max_chars: usize,
}

impl ExtractText {
    pub const MAX_CHARS: usize = 65_536;
    pub const MIN_CHARS: usize = 256;

    fn default_max_chars() -> usize {
        Self::MAX_CHARS
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct Screenshot {
    /// Open this page first; without it, the last page
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A file in the workspace [default: screenshot_YYYYMMDD_HHMMSS_mmm.png]
    #[arg(long)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The whole page instead of the window
    #[arg(long)]
    #[serde(default)]
    pub full_page: bool,
}

impl Op {
    pub fn name(&self) -> &'static str {
        match self {
            Op::Navigate(_) => "navigate",
            Op::ExtractText(_) => "extract_text",
            Op::Screenshot(_) => "screenshot",
        }
    }

    /// The page to open before the op, if the caller names one.
    pub fn url(&self) -> Option<&str> {
        match self {
            Op::Navigate(op) => Some(&op.url),
            Op::ExtractText(op) => op.url.as_deref(),
            Op::Screenshot(op) => op.url.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_list_of_ops_changes_only_knowingly() {
        let command = Op::augment_subcommands(clap::Command::new("onioncell"));
        assert_eq!(command.get_subcommands().count(), 3);
    }

    #[test]
    fn unknown_keys_and_kinds_are_refused() {
        for text in [
            r#"{"kind":"navigate","url":"http://a.com/","x":1}"#,
            r#"{"kind":"fly"}"#,
            r#"{"kind":"navigate"}"#,
        ] {
            assert!(serde_json::from_str::<Op>(text).is_err(), "{text}");
        }
        let op: Op = serde_json::from_str(r#"{"kind":"navigate","url":"http://a.com/"}"#).unwrap();
        assert_eq!(op.url(), Some("http://a.com/"));
    }
}
