//! What a session can do, a file for each family of ops.

mod capture;
mod navigate;
mod read;

use std::time::Duration;

/// For ops that act on the page as it is.
const ACT_BUDGET: Duration = Duration::from_secs(10);
