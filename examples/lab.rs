//! The tests' lab, by hand: an internet with a Tor network in network namespaces of this process.
//!
//! `lab` stays up until Ctrl-C; `lab [--pcap FILE] -- COMMAND ARGS…` runs the command in the lab's home and ends with its
//! status. Either way the last line is the verdict on what left home.
#![allow(clippy::print_stdout)]

#[path = "../tests/lab/mod.rs"]
mod lab;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lab::{Lab, Options, SITES};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let (pcap, command) = arguments()?;
    if !lab::required() {
        return Ok(ExitCode::FAILURE);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _guard = runtime.enter();
    // From here on a signal takes the lab down in order, also while it starts.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
    };
    let lab = Lab::try_start(Options::default())?;
    let status = if command.is_empty() {
        explain(&lab);
        runtime.block_on(stop);
        0
    } else {
        runtime.block_on(run_in_home(&lab, &command, stop))?
    };
    if let Some(file) = pcap {
        lab.capture()
            .write_pcap(&file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("lab: every packet of home is in {}", file.display());
    }
    let clean = verdict(&lab);
    Ok(match (status, clean) {
        (0, true) => ExitCode::SUCCESS,
        (0, false) => ExitCode::FAILURE,
        (status, _) => ExitCode::from(status),
    })
}

fn arguments() -> Result<(Option<PathBuf>, Vec<String>)> {
    let mut arguments = std::env::args().skip(1);
    let mut pcap = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--pcap" => pcap = Some(arguments.next().context("--pcap needs a file")?.into()),
            "--" => break,
            other => {
                bail!("unknown argument {other:?}; usage: lab [--pcap FILE] [-- COMMAND ARGS…]")
            }
        }
    }
    Ok((pcap, arguments.collect()))
}

/// How to use it from another terminal.
fn explain(lab: &Lab) {
    let enter = format!("nsenter --net={}", lab.home().path().display());
    let network = lab.tor_network_toml().display();
    println!(
        "The lab is up after {:.1} s. In another terminal, as root:\n",
        lab.took().as_secs_f32()
    );
    println!(
        "  {enter} onioncell --tor-network {network} --allow {} navigate http://{}/",
        SITES[0], SITES[0]
    );
    println!(
        "  {enter} onioncell --tor-network {network} --allow {o} navigate http://{o}/\n",
        o = lab.onion()
    );
    println!("Sites, http and https: {}", SITES.join(", "));
    println!(
        "  pages of each: / /second /headers /status/N /redirect/N /bytes/N /slow /endless /hang"
    );
    println!("Onion service:         {}", lab.onion());
    println!("CA certificate:        {}", lab.ca_pem().display());
    println!(
        "Neighbour, off limits: {}, {}",
        lab::topology::NEIGHBOUR,
        lab::topology::METADATA
    );
    println!(
        "Logs of the daemons:   {}/*/log\n\nCtrl-C takes it down.",
        lab.directory().display()
    );
}

async fn run_in_home(lab: &Lab, command: &[String], stop: impl Future<Output = ()>) -> Result<u8> {
    let mut inside = lab.home().command(&command[0]);
    inside.args(&command[1..]);
    inside.env("LAB_TOR_NETWORK", lab.tor_network_toml());
    inside.env("LAB_ONION", lab.onion());
    inside.env("LAB_SITE", SITES[0]);
    inside.env("LAB_SITES", SITES.join(","));
    inside.env("LAB_CA_PEM", lab.ca_pem());
    inside.env("LAB_CA_DER", lab.ca_der_base64());
    inside.env("LAB_CA_SPKI", lab.ca_spki_hash());
    inside.env("LAB_HOME_NETNS", lab.home().path());
    let mut child = tokio::process::Command::from(inside)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {}", command[0]))?;
    tokio::select! {
        status = child.wait() => {
            let status = status?;
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            Ok(u8::try_from(code).unwrap_or(1))
        }
        () = stop => Ok(130),
    }
}

/// Whether all that left home went to Tor relays.
fn verdict(lab: &Lab) -> bool {
    let capture = lab.capture();
    let outside = capture.outside_tor();
    let tor = capture.to_tor_since(lab::capture::Mark::START).len();
    if outside.is_empty() && tor == 0 {
        println!("lab: no packet left home");
        return true;
    }
    if outside.is_empty() {
        println!("lab: {tor} packets left home, all of them to Tor relays");
        return true;
    }
    println!(
        "lab: {} packets left home OUTSIDE Tor ({tor} to Tor relays):",
        outside.len()
    );
    for packet in &outside {
        println!("  {packet}");
    }
    false
}
