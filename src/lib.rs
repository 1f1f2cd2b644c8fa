//! A browser in a cell whose only way out is Tor.
//!
//! The map, from the outside in (a module knows only those below it):
//!
//! - [`frontend`]: who calls: the command line, `doctor`, `leaktest`, `gateway`.
//! - [`run`]: brings up gateway, cell and browser, and tears them down in reverse.
//! - [`config`]: flags, environment and files become one validated `Config`.
//! - [`browser`]: drives Chromium over its debugging pipe.
//! - [`gateway`]: the one socket Chromium can reach: names, judges, carries, records.
//! - [`cell`]: where Chromium lives: user and network namespace, Landlock, seccomp.
//! - [`policy`]: which hosts may be reached. Values to values, no I/O but loading its file.
//! - [`workspace`]: the only opener of the caller's files.
//! - [`protocol`]: ops, replies, errors and how they are written.

pub mod browser;
pub mod cell;
pub mod config;
pub mod frontend;
pub mod gateway;
pub mod policy;
pub mod protocol;
pub mod run;
pub mod workspace;
