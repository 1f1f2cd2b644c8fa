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

/// The main job: pages over Tor, and nothing else leaves.
mod browse;
/// What the caller reads when something is wrong, and what is left behind: nothing.
mod errors;
/// Every escape from the cell, tried in Chromium's place.
mod escape;
/// The gateway over real sockets: served, refused, recorded.
mod gateway;
/// The lab does what the other tests rely on.
mod lab_selftest;
/// Everything that goes away in mid-load: Tor, the gateway, the launcher.
mod outage;
/// The embedded Tor client: circuits of sessions, a network that comes back, a state that is shared.
mod tor;
