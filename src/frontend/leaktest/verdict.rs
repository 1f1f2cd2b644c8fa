//! From what was seen to what it means. Values to values.

use serde::{Deserialize, Serialize};

use super::aim;
use super::drive::Outcomes;
use super::packet::{Packet, Transport};
use super::vectors;
use super::web::Asked;

/// All that one run left behind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    pub packets: Vec<Packet>,
    pub asked: Vec<Asked>,
    pub outcomes: Outcomes,
    /// The browser's proxy on loopback, where it has one: traffic with it is no leak.
    pub proxy_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "contained")]
    Contained,
    /// No packet, and nothing else either, not even from the control: it proves nothing.
    #[serde(rename = "inert")]
    Inert,
    LEAKED,
}

/// What became of one vector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    pub tries: String,
    pub verdict: Verdict,
    /// How it was contained, or how many packets got out.
    pub how: String,
    /// What the page saw.
    pub page: Option<String>,
    /// How often its proxy was asked for something.
    pub requests: usize,
    pub packets: Vec<Packet>,
}

impl Finding {
    /// Whether the browser did anything on the network for it.
    fn is_live(&self) -> bool {
        self.requests > 0 || !self.packets.is_empty()
    }
}

/// Packets that belong to no vector are reported under this name.
pub const UNATTRIBUTED: &str = "unattributed";

/// The control is believed if it leaked at least this many vectors …
const CONTROL_LEAKS: usize = 5;
/// … and these among them: UDP past the proxy, and names in the clear.
const CONTROL_MUST_LEAK: &[&str] = &["stun-udp-name", "stun-udp-ipv4"];

/// Judges one run, vector by vector; what belongs to none comes last.
pub fn judge(evidence: &Evidence, domain: &str) -> Vec<Finding> {
    let leaks: Vec<(Option<u8>, &Packet)> = evidence
        .packets
        .iter()
        .filter(|packet| !expected(packet, evidence.proxy_port))
        .map(|packet| (aim::owner_of_packet(packet, domain), packet))
        .collect();
    let packets_of = |owner: Option<u8>| -> Vec<Packet> {
        let mut packets: Vec<Packet> = Vec::new();
        for (_, packet) in leaks.iter().filter(|(known, _)| *known == owner) {
            packets.push((*packet).clone());
        }
        packets
    };
    let mut findings: Vec<Finding> = vectors::all()
        .map(|(number, vector)| {
            let asked = evidence.asked.iter().filter(|asked| {
                aim::owner_of_request(&asked.host, asked.port, domain) == Some(number)
            });
            finding(
                vector.name,
                vector.tries,
                packets_of(Some(number)),
                asked,
                evidence.outcomes.get(vector.name),
            )
        })
        .collect();
    let stray = packets_of(None);
    if !stray.is_empty() {
        findings.push(finding(
            UNATTRIBUTED,
            "packets of no known vector",
            stray,
            [].iter(),
            None,
        ));
    }
    findings
}

/// Traffic that is part of the test: with the control's proxy, and the kernel's answers to packets
/// that were captured themselves.
fn expected(packet: &Packet, proxy_port: Option<u16>) -> bool {
    let with_proxy = proxy_port.is_some()
        && packet.transport == Transport::Tcp
        && [packet.source_port, packet.destination_port].contains(&proxy_port);
    packet.interface == "lo" && (with_proxy || packet.transport == Transport::Unreachable)
}

fn finding<'a>(
    name: &str,
    tries: &str,
    packets: Vec<Packet>,
    asked: impl Iterator<Item = &'a Asked>,
    page: Option<&String>,
) -> Finding {
    let asked: Vec<&Asked> = asked.collect();
    let requests = asked.len();
    let how = if packets.is_empty() {
        contained(&asked)
    } else {
        format!("{} packets", packets.len())
    };
    Finding {
        name: name.to_owned(),
        tries: tries.to_owned(),
        verdict: if packets.is_empty() {
            Verdict::Contained
        } else {
            Verdict::LEAKED
        },
        how,
        page: page.cloned(),
        requests,
        packets,
    }
}

fn contained(asked: &[&Asked]) -> String {
    let mut how: Vec<String> = asked
        .iter()
        .map(|asked| match &asked.denied {
            Some(reason) => format!("gateway denied {}:{}: {reason}", asked.host, asked.port),
            None => format!("gateway was asked for {}:{}", asked.host, asked.port),
        })
        .collect();
    how.sort();
    how.dedup();
    if how.is_empty() {
        "no packet".to_owned()
    } else {
        how.join("; ")
    }
}

/// Takes the word "contained" from each vector that nobody did anything for: neither this browser at
/// its gateway, nor the control at its proxy or on the network.
pub fn tell_inert(findings: &mut [Finding], control: &[Finding]) {
    let live_in_control = |name: &str| {
        let mut same = control.iter().filter(|finding| finding.name == name);
        same.any(Finding::is_live)
    };
    for finding in findings {
        if !finding.is_live() && !live_in_control(&finding.name) {
            finding.verdict = Verdict::Inert;
            finding.how = "nothing was sent, by the control neither".to_owned();
        }
    }
}

/// How many findings have that verdict.
pub fn count(findings: &[Finding], verdict: Verdict) -> usize {
    let same = findings.iter().filter(|finding| finding.verdict == verdict);
    same.count()
}

/// Why the control is not believed, if it is not.
pub fn blindness(control: &[Finding]) -> Option<String> {
    let leaked: Vec<&str> = leaked(control)
        .map(|finding| finding.name.as_str())
        .collect();
    if let Some(missing) = CONTROL_MUST_LEAK.iter().find(|name| !leaked.contains(name)) {
        return Some(format!("the control did not leak {missing}"));
    }
    let looked_up = leaked_packets(control).any(|packet| packet.question.is_some());
    if !looked_up {
        return Some("the control looked up no name in the clear".to_owned());
    }
    (leaked.len() < CONTROL_LEAKS).then(|| {
        format!(
            "the control leaked {} vectors, fewer than {CONTROL_LEAKS}",
            leaked.len()
        )
    })
}

/// The findings that are leaks.
pub fn leaked(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::LEAKED)
}

fn leaked_packets(findings: &[Finding]) -> impl Iterator<Item = &Packet> {
    findings.iter().flat_map(|finding| &finding.packets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::frontend::leaktest::aim::{DOMAIN, HOST_V4, RESOLVER};
    use crate::frontend::leaktest::packet::Question;
    use std::net::IpAddr;

    fn packet(interface: &str, transport: Transport, destination: &str, port: u16) -> Packet {
        Packet {
            interface: interface.into(),
            transport,
            source: IpAddr::V4(HOST_V4),
            source_port: Some(40_000),
            destination: destination.parse().unwrap(),
            destination_port: Some(port),
            question: None,
        }
    }

    fn lookup(name: &str) -> Packet {
        Packet {
            question: Some(Question {
                name: name.into(),
                kind: 1,
            }),
            ..packet("eth0", Transport::Udp, &RESOLVER.to_string(), 53)
        }
    }

    fn names(findings: &[Finding]) -> Vec<&str> {
        leaked(findings)
            .map(|finding| finding.name.as_str())
            .collect()
    }

    #[test]
    fn without_packets_every_vector_is_contained() {
        let findings = judge(&Evidence::default(), DOMAIN);
        assert_eq!(findings.len(), vectors::all().count());
        assert!(names(&findings).is_empty());
    }

    #[test]
    fn a_vector_that_the_control_did_nothing_for_proves_nothing() {
        let asked = |host: &str| Asked {
            host: host.into(),
            port: 80,
            denied: None,
        };
        let control = Evidence {
            packets: vec![lookup("v01.leaktest.example")],
            asked: vec![asked("v02.leaktest.example")],
            ..Default::default()
        };
        let cell = Evidence {
            asked: vec![asked("v03.leaktest.example")],
            packets: vec![lookup("v04.leaktest.example")],
            ..Default::default()
        };
        let mut findings = judge(&cell, DOMAIN);
        tell_inert(&mut findings, &judge(&control, DOMAIN));
        let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts[..3], [Verdict::Contained; 3]);
        assert_eq!(verdicts[3], Verdict::LEAKED);
        assert!(
            verdicts[4..]
                .iter()
                .all(|verdict| *verdict == Verdict::Inert)
        );
    }

    #[test]
    fn one_packet_is_a_leak_of_its_vector_and_of_no_other() {
        let evidence = Evidence {
            packets: vec![lookup("v01.leaktest.example")],
            ..Default::default()
        };
        let findings = judge(&evidence, DOMAIN);
        assert_eq!(names(&findings), ["stun-udp-name"]);
    }

    #[test]
    fn a_packet_of_no_vector_is_a_leak_all_the_same() {
        let evidence = Evidence {
            packets: vec![packet("eth0", Transport::Tcp, "8.8.8.8", 80)],
            ..Default::default()
        };
        assert_eq!(names(&judge(&evidence, DOMAIN)), [UNATTRIBUTED]);
    }

    #[test]
    fn only_the_proxy_on_loopback_is_expected() {
        let mut evidence = Evidence {
            packets: vec![packet("lo", Transport::Tcp, "127.0.0.1", 33_000)],
            proxy_port: Some(33_000),
            ..Default::default()
        };
        assert!(names(&judge(&evidence, DOMAIN)).is_empty());
        evidence
            .packets
            .push(packet("eth0", Transport::Tcp, "8.8.8.8", 33_000));
        assert_eq!(names(&judge(&evidence, DOMAIN)), [UNATTRIBUTED]);
        evidence.packets.pop();
        evidence.proxy_port = None;
        assert_eq!(names(&judge(&evidence, DOMAIN)), [UNATTRIBUTED]);
    }

    #[test]
    fn what_the_gateway_was_asked_for_is_told() {
        let evidence = Evidence {
            asked: vec![Asked {
                host: "169.254.169.254".into(),
                port: 80,
                denied: Some("cloud metadata endpoint blocked".into()),
            }],
            ..Default::default()
        };
        let findings = judge(&evidence, DOMAIN);
        let metadata = findings
            .iter()
            .find(|finding| finding.name == "fetch-metadata")
            .unwrap();
        assert_eq!(metadata.verdict, Verdict::Contained);
        assert_eq!(
            metadata.how,
            "gateway denied 169.254.169.254:80: cloud metadata endpoint blocked"
        );
    }

    #[test]
    fn a_control_that_leaks_too_little_is_not_believed() {
        let stun = packet("eth0", Transport::Udp, "93.184.215.22", 3478);
        let mut evidence = Evidence::default();
        let blind = |evidence: &Evidence| blindness(&judge(evidence, DOMAIN));
        assert!(blind(&evidence).is_some());
        evidence.packets.push(stun);
        assert!(blind(&evidence).unwrap().contains("stun-udp-name"));
        evidence.packets.push(lookup("v01.leaktest.example"));
        assert!(blind(&evidence).unwrap().contains("fewer than"));
        for label in ["v07", "v08", "v09"] {
            evidence
                .packets
                .push(lookup(&format!("{label}.leaktest.example")));
        }
        assert_eq!(blind(&evidence), None);
    }
}
