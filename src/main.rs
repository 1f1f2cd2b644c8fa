//! Parse, run, print the error once.

use std::process::ExitCode;

fn main() -> ExitCode {
    onioncell::frontend::main()
}
