//! Drives Chromium over its debugging pipe.

pub mod cdp;
pub mod managed;
mod ops;
pub mod profile;
pub mod session;
pub mod switches;
pub mod version;

pub use session::{OpError, Session};
