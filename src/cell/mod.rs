//! Where Chromium lives: a place from which the kernel lets it reach one socket, the gateway's.
//!
//! - [`plan`] says what a cell is, as plain data; nothing in it touches the system.
//! - [`probe`](mod@probe) asks, in a throw-away process, what this system can give, and [`choose`] decides.
//! - [`spawn`] starts `cell-init` (this program, re-executed while it has one thread), which carries
//!   the plan out in the order that [`init`](mod@init) reads, and stays as the supervisor of what it started.
//! - `user`, `net`, `mount`, `landlock`, `seccomp`, `fd`: one file per facility of the kernel.

mod choose;
mod error;
mod fd;
mod init;
mod landlock;
mod launch;
mod mount;
mod net;
pub mod plan;
mod probe;
mod seccomp;
mod supervise;
mod user;
mod wire;

pub use choose::{Requested, choose, chromium_sandbox};
pub use error::{CellError, Failure};
pub use init::{INIT_COMMAND, init};
pub use launch::{Cell, Exit, Supervisor, harden_launcher, spawn, spawn_with};
pub use plan::{Chromium, Display, Ids, Isolation, Plan};
pub use probe::{Answer, Capabilities, Limits, probe, probe_with};
pub use user::{CELL_IDS, give};
