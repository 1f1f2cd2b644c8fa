//! The claims of onioncell, each a test that tries to break it. All parts are real: Chromium, Tor, the
//! kernel, packet captures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

/// An internet in network namespaces: Tor network, DNS, sites, an onion service, a neighbour, captures.
mod lab;
/// Runs the program in the lab's home.
mod user;

/// A browser that nobody asks anything of: three minutes.
mod at_rest;
/// The main job: pages over Tor, and nothing else leaves.
mod browse;
/// `--isolation container`, and systems without user namespaces.
mod container;
/// What the caller reads when something is wrong, and what is left behind: nothing.
mod errors;
/// Every escape from the cell, tried in Chromium's place.
mod escape;
/// The gateway over real sockets: served, refused, recorded.
mod gateway;
/// `--headed`: the same page in a window.
mod headed;
/// The lab does what the other tests rely on.
mod lab_selftest;
/// `onioncell leaktest`: every vector contained, beside a control that leaks.
mod leaktest;
/// Everything that goes away in mid-load: Tor, the gateway, the launcher.
mod outage;
/// The embedded Tor client: isolation, recovery, exits and onion services.
mod tor;
