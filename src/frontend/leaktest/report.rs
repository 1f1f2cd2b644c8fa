//! The result of a leak test, for people and for programs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::verdict::{self, Finding, Verdict};

/// Packets of one vector that are written out; the rest are counted.
const SHOWN: usize = 3;

/// A whole leak test: the cell, the cell without its other defences, and the control beside them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub cell: Vec<Finding>,
    /// The cell with neither switches nor policies: what the kernel alone holds.
    pub kernel_alone: Vec<Finding>,
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
        let leaks =
            verdict::leaked(&self.cell).count() + verdict::leaked(&self.kernel_alone).count();
        match (leaks, verdict::blindness(&self.control)) {
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
        let leaks = |findings: &[Finding]| -> Vec<serde_json::Value> {
            verdict::leaked(findings)
                .map(|finding| serde_json::json!({ "name": finding.name, "packets": finding.packets.len() }))
                .collect()
        };
        let count = |verdict| verdict::count(&self.cell, verdict);
        serde_json::json!({
            "conclusion": word,
            "reason": reason,
            "contained": count(Verdict::Contained),
            "inert": count(Verdict::Inert),
            "leaked": count(Verdict::LEAKED),
            "vectors": self.cell,
            "kernel_alone": {
                "leaked": leaks(&self.kernel_alone),
                "packets": packets(&self.kernel_alone),
                "requests": requests(&self.kernel_alone),
            },
            "control": {
                "leaked": leaks(&self.control),
                "packets": packets(&self.control),
                "requests": requests(&self.control),
            },
            "notes": self.notes,
        })
    }

    /// A line for each vector, then the other two runs, then the conclusion.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let width = self
            .cell
            .iter()
            .map(|finding| finding.name.len())
            .max()
            .unwrap_or_default();
        for finding in &self.cell {
            line(&mut text, finding, width);
        }
        let _ = writeln!(
            text,
            "\nkernel alone (no switches, no policies): {} packets, {} requests at the gateway",
            packets(&self.kernel_alone),
            requests(&self.kernel_alone),
        );
        for finding in verdict::leaked(&self.kernel_alone) {
            line(&mut text, finding, width);
        }
        let leaked: Vec<_> = verdict::leaked(&self.control).collect();
        let names: Vec<&str> = leaked.iter().map(|finding| finding.name.as_str()).collect();
        let _ = writeln!(
            text,
            "control (Chromium with only --proxy-server, no cell): {} of {} vectors leaked, {} packets: {}",
            leaked.len(),
            self.control.len(),
            packets(&self.control),
            names.join(", "),
        );
        for note in &self.notes {
            let _ = writeln!(text, "note: {}", note.escape_debug());
        }
        let _ = match self.conclusion() {
            Conclusion::Contained => writeln!(
                text,
                "STATUS contained: {} contained, {} inert (the control did not send anything either), 0 leaked",
                verdict::count(&self.cell, Verdict::Contained),
                verdict::count(&self.cell, Verdict::Inert),
            ),
            Conclusion::Leaked(_) => writeln!(
                text,
                "STATUS LEAKED: {} leaked, {} with the kernel alone",
                verdict::leaked(&self.cell).count(),
                verdict::leaked(&self.kernel_alone).count(),
            ),
            Conclusion::Blind(reason) => writeln!(text, "STATUS detector blind: {reason}"),
        };
        text
    }
}

fn line(text: &mut String, finding: &Finding, width: usize) {
    let word = match finding.verdict {
        Verdict::Contained => "contained",
        Verdict::Inert => "inert",
        Verdict::LEAKED => "LEAKED",
    };
    // Writing to a String cannot fail.
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

fn packets(findings: &[Finding]) -> usize {
    findings.iter().map(|finding| finding.packets.len()).sum()
}

fn requests(findings: &[Finding]) -> usize {
    findings.iter().map(|finding| finding.requests).sum()
}
