//! What the lab's tor daemons are told: torrc(5) and the state file, as text.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;

use super::topology::{AUTHORITY, RELAYS};

pub const OR_PORT: u16 = 5001;
pub const DIR_PORT: u16 = 7000;

/// Seconds between consensuses. Long, so that a lab's whole life falls into one period of the onion services' directory.
pub const VOTING_INTERVAL: u64 = 300;
/// C tor ignores the parameter in a testing network and takes 24 voting intervals; clients that do not know of testing
/// networks have to be told the same (rend-spec-v3, TIME-PERIODS; hs_get_time_period_num).
pub const HSDIR_INTERVAL_MINUTES: u64 = VOTING_INTERVAL * 24 / 60;
/// The shortest that tor accepts (dirvote.h: MIN_VOTE_SECONDS_TESTING, MIN_DIST_SECONDS_TESTING).
pub const VOTE_SECONDS: u64 = 2;
pub const DIST_SECONDS: u64 = 2;
/// The authority's configuration, with its next consensus due at `valid_after`.
pub fn authority(valid_after: u64) -> Result<String> {
    let mut text = relay_lines("authority", AUTHORITY);
    let exits: Vec<&str> = RELAYS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| name.starts_with("exit"))
        .collect();
    write!(
        text,
        "DirPort {AUTHORITY}:{DIR_PORT}
ContactInfo lab
ExitPolicy reject *:*
AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
TestingV3AuthInitialVotingInterval {VOTING_INTERVAL}
TestingV3AuthInitialVoteDelay {VOTE_SECONDS}
TestingV3AuthInitialDistDelay {DIST_SECONDS}
TestingV3AuthVotingStartOffset {offset}
V3AuthVotingInterval {VOTING_INTERVAL}
V3AuthVoteDelay {VOTE_SECONDS}
V3AuthDistDelay {DIST_SECONDS}
ConsensusParams hsdir_interval={HSDIR_INTERVAL_MINUTES}
TestingDirAuthVoteGuard *
TestingDirAuthVoteHSDir *
TestingDirAuthVoteExit {exits}
TestingMinExitFlagThreshold 0
AuthDirVoteStableGuaranteeMinUptime 0
AuthDirVoteStableGuaranteeMTBF 0
MinUptimeHidServDirectoryV2 0
",
        offset = valid_after % VOTING_INTERVAL,
        exits = exits.join(","),
    )?;
    Ok(text)
}

pub fn relay(scratch: &Path, name: &str, address: Ipv4Addr) -> Result<String> {
    let mut text = relay_lines(name, address);
    if name.starts_with("exit") {
        write!(
            text,
            "ExitRelay 1
ExitPolicy accept *:*
ServerDNSResolvConfFile {}
ServerDNSDetectHijacking 0
ServerDNSAllowBrokenConfig 1
ServerDNSTestAddresses
ServerDNSSearchDomains 0
",
            scratch.join("resolv.conf").display()
        )?;
    } else {
        text.push_str("ExitRelay 0\nExitPolicy reject *:*\n");
    }
    Ok(text)
}

fn relay_lines(name: &str, address: Ipv4Addr) -> String {
    format!("Nickname {name}\nAddress {address}\nORPort {address}:{OR_PORT}\nSocksPort 0\n")
}

/// A relay's state file that says that it has carried a lot. Relays are chosen by what they carried; without a past, the
/// authority alone would have a figure above 0 in the first consensus, and be chosen as guard and rendezvous point at
/// once, which no relay permits.
pub fn past_bandwidth() -> Result<String> {
    const DAY: u32 = 86_400;
    const BYTES_PER_SECOND: u64 = 100_000_000;
    let format = time::macros::format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    let ends = (time::OffsetDateTime::now_utc() - time::Duration::MINUTE).format(&format)?;
    let mut text = String::new();
    for way in ["Read", "Write"] {
        write!(
            text,
            "BWHistory{way}Ends {ends}\nBWHistory{way}Interval {DAY}\n\
             BWHistory{way}Values {}\nBWHistory{way}Maxima {BYTES_PER_SECOND}\n",
            u64::from(DAY) * 1_000_000
        )?;
    }
    Ok(text)
}

/// What all have in common. A testing network allows private addresses and shared subnets; the real one does not, and
/// neither does this.
pub fn complete(scratch: &Path, dir_authority: &str, name: &str, own: &str) -> String {
    let dir = scratch.join(name);
    format!(
        "TestingTorNetwork 1
{dir_authority}DataDirectory {dir}
Log notice file {dir}/log
AssumeReachable 1
PathsNeededToBuildCircuits 0.25
ExitPolicyRejectPrivate 1
ExtendAllowPrivateAddresses 0
ClientRejectInternalAddresses 1
ClientDNSRejectInternalAddresses 1
EnforceDistinctSubnets 1
ShutdownWaitLength 0
AvoidDiskWrites 1
NumCPUs 1
{own}",
        dir = dir.display()
    )
}
