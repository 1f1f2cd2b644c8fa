//! What the operator sees while the test runs: a line on stderr for each phase of each browser.

use std::time::Instant;

/// One browser's progress.
#[derive(Debug)]
pub(super) struct Progress {
    who: &'static str,
    start: Instant,
}

impl Progress {
    pub(super) fn new(who: &'static str) -> Self {
        Self {
            who,
            start: Instant::now(),
        }
    }

    pub(super) fn say(&self, what: &str) {
        let elapsed = self.start.elapsed().as_secs_f32();
        eprintln!("leaktest: {elapsed:4.1} s  {}: {what}", self.who);
    }
}
