//! stub during the merge
use crate::{
    config::Flags,
    protocol::{error::Failure, render::Format},
};
pub const HOST_COMMAND: &str = "leaktest-host";
#[derive(Debug, clap::Args)]
pub struct LeaktestOptions {}
pub fn host_main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
pub(super) async fn run(_: &Flags, _: Format, _: LeaktestOptions) -> Result<(String, u8), Failure> {
    Ok((String::new(), 0))
}
