//! The lab does what other tests rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod lab;

use lab::{Lab, Options};

#[test]
fn up() {
    if !lab::required() { return; }
    let lab = Lab::start(Options::default());
    eprintln!("{:?}", lab.took());
    for p in lab.capture().packets() { eprintln!("{p}"); }
}
