//! The result of a leak test, for people and for programs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::verdict::{self, Finding};

/// Packets of one vector that are written out; the rest are counted.
const SHOWN: usize = 3;

/// A whole leak test: the cell, and the control beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub cell: Vec<Finding>,
    pub control: Vec<Finding>,
    /// What this system could not give; the test is weaker by it.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    Contained,
    Leaked(usize),
    /// The detector did not see what it had to see; the reason.
    Blind(String),
}

impl Report {
    pub fn conclusion(&self) -> Conclusion {
        // A leak is a leak, also for a detector that misses others.
        match (
            verdict::leaked(&self.cell).count(),
            verdict::blindness(&self.control),
        ) {
            (0, None) => Conclusion::Contained,
            (0, Some(reason)) => Conclusion::Blind(reason),
            (leaks, _) => Conclusion::Leaked(leaks),
        }
    }

    /// The exit status of `onioncell leaktest`.
    pub fn exit_status(&self) -> u8 {
        u8::from(self.conclusion() != Conclusion::Contained)
    }

    /// One JSON object. The verdicts of the cell are under `vectors`.
    pub fn to_json(&self) -> serde_json::Value {
        let (word, reason) = match self.conclusion() {
            Conclusion::Contained => ("contained", None),
            Conclusion::Leaked(_) => ("LEAKED", None),
            Conclusion::Blind(reason) => ("blind", Some(reason)),
        };
        let control: Vec<_> = verdict::leaked(&self.control)
            .map(|finding| serde_json::json!({ "name": finding.name, "packets": finding.packets.len() }))
            .collect();
        serde_json::json!({
            "conclusion": word,
            "reason": reason,
            "vectors": self.cell,
            "control": { "leaked": control },
            "notes": self.notes,
        })
    }

    /// A line for each vector, then the control, then the conclusion.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let width = self
            .cell
            .iter()
            .map(|finding| finding.name.len())
            .max()
            .unwrap_or_default();
        // Writing to a String cannot fail.
        for finding in &self.cell {
            let word = match finding.verdict {
                verdict::Verdict::Contained => "contained",
                verdict::Verdict::LEAKED => "LEAKED",
            };
            let _ = write!(text, "{word:<9}  {:<width$}  {}", finding.name, finding.how);
            if let Some(page) = &finding.page {
                // A page's words are a page's words: nothing in them may move the cursor.
                let _ = write!(text, " (page: {})", page.escape_debug());
            }
            text.push('\n');
            for packet in finding.packets.iter().take(SHOWN) {
                let _ = writeln!(text, "           {packet}");
            }
        }
        let leaked: Vec<_> = verdict::leaked(&self.control).collect();
        let packets: usize = leaked.iter().map(|finding| finding.packets.len()).sum();
        let names: Vec<&str> = leaked.iter().map(|finding| finding.name.as_str()).collect();
        let _ = writeln!(
            text,
            "\ncontrol (Chromium with only --proxy-server): {} of {} vectors leaked, {packets} packets: {}",
            leaked.len(),
            self.control.len(),
            names.join(", "),
        );
        for note in &self.notes {
            let _ = writeln!(text, "note: {}", note.escape_debug());
        }
        let _ = match self.conclusion() {
            Conclusion::Contained => writeln!(
                text,
                "STATUS contained: {} vectors, no packet",
                self.cell.len()
            ),
            Conclusion::Leaked(leaks) => writeln!(text, "STATUS LEAKED: {leaks} vectors"),
            Conclusion::Blind(reason) => writeln!(text, "STATUS detector blind: {reason}"),
        };
        text
    }
}
