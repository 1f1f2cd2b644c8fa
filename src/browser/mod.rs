//! Drives Chromium over its debugging pipe.

pub mod cdp;
