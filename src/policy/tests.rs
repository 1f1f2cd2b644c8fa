//! The policy as a whole: order of the rules, texts, files, and what no input may achieve.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use proptest::prelude::*;

use super::*;

const ONION: &str = "2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion";

fn policy(toml: &str) -> Policy {
    Policy::from_toml(toml, "test.toml", &Overrides::default()).unwrap()
}

fn flags(allow: &[&str], deny: &[&str], allow_public_web: bool) -> Policy {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let overrides = Overrides {
        allow: owned(allow),
        deny: owned(deny),
        allow_public_web,
    };
    Policy::load(None, &overrides).unwrap()
}

fn error(toml: &str) -> String {
    Policy::from_toml(toml, "test.toml", &Overrides::default())
        .unwrap_err()
        .to_string()
}

fn judge(policy: &Policy, host: &str, port: u16) -> Verdict {
    policy.judge(&Target {
        host: Host::parse(host).unwrap(),
        port,
    })
}

/// "ALLOW: rule" or "DENY: reason".
fn said(policy: &Policy, host: &str, port: u16) -> String {
    match judge(policy, host, port) {
        Verdict::Allow(rule) => format!("ALLOW: {rule}"),
        Verdict::Deny(denial) => format!("DENY: {denial}"),
    }
}

/// The most permissive policy that can be written.
fn permissive() -> Policy {
    flags(
        &["*.google.com", "*.co.uk", "8.8.8.8", "accounts.google.com"],
        &[],
        true,
    )
}

#[test]
fn the_default_policy_denies_everything_and_names_the_flag() {
    let policy = Policy::load(None, &Overrides::default()).unwrap();
    assert_eq!(
        said(&policy, "example.com", 443),
        "DENY: default_action=deny and no rule matched origin example.com:443"
    );
    let Verdict::Deny(denial) = judge(&policy, "example.com", 443) else {
        panic!("allowed")
    };
    assert_eq!(denial.hint().as_deref(), Some("--allow example.com"));
    let Verdict::Deny(denial) = judge(&policy, "127.0.0.1", 443) else {
        panic!("allowed")
    };
    assert_eq!(denial.hint(), None);
}

#[test]
fn deny_beats_allow_beats_default() {
    let policy = flags(&["*.example.com", "other.org"], &["bad.example.com"], false);
    for (host, expected) in [
        (
            "www.example.com",
            "ALLOW: matches allowed pattern *.example.com",
        ),
        (
            "a.b.example.com",
            "ALLOW: matches allowed pattern *.example.com",
        ),
        (
            "WWW.EXAMPLE.COM.",
            "ALLOW: matches allowed pattern *.example.com",
        ),
        (
            "example.com",
            "DENY: origin example.com:443 not in allow list",
        ),
        (
            "notexample.com",
            "DENY: origin notexample.com:443 not in allow list",
        ),
        (
            "www.example.com.evil.org",
            "DENY: origin www.example.com.evil.org:443 not in allow list",
        ),
        (
            "bad.example.com",
            "DENY: matches denied pattern bad.example.com",
        ),
        (
            "x.bad.example.com",
            "ALLOW: matches allowed pattern *.example.com",
        ),
        ("other.org", "ALLOW: matches allowed pattern other.org"),
        (
            "www.other.org",
            "DENY: origin www.other.org:443 not in allow list",
        ),
    ] {
        assert_eq!(said(&policy, host, 443), expected, "{host}");
    }
    let open = flags(&[], &["*.ads.example"], true);
    assert_eq!(
        said(&open, "example.com", 443),
        "ALLOW: default_action=allow"
    );
    assert_eq!(
        said(&open, "x.ads.example", 443),
        "DENY: matches denied pattern *.ads.example"
    );
    assert_eq!(said(&open, "example.com", 0), "DENY: port 0 blocked");
}

#[test]
fn a_scheme_in_a_pattern_is_a_port_at_the_gateway_and_a_scheme_in_a_url() {
    let policy = flags(
        &[
            "https://a.example",
            "http://b.example",
            "https://c.example:8443",
        ],
        &[],
        false,
    );
    for (host, port, allowed) in [
        ("a.example", 443, true),
        ("a.example", 80, false),
        ("b.example", 80, true),
        ("b.example", 443, false),
        ("c.example", 8443, true),
        ("c.example", 443, false),
    ] {
        assert_eq!(
            judge(&policy, host, port).is_allowed(),
            allowed,
            "{host}:{port}"
        );
    }
    assert!(policy.check_url("https://c.example:8443/x").is_ok());
    assert_eq!(
        policy
            .check_url("http://c.example:8443/x")
            .unwrap_err()
            .to_string(),
        "policy denied: origin http://c.example:8443 not in allow list (url=http://c.example:8443/x)"
    );
    // What a URL check allows, the gateway allows: a denied scheme counts as its port.
    let open = flags(&[], &["http://d.example:8443"], true);
    assert!(!judge(&open, "d.example", 8443).is_allowed());
    assert!(open.check_url("https://d.example:8443/").is_err());
    assert!(open.check_url("https://d.example/").is_ok());
}

#[test]
fn never_reachable_comes_first_in_every_spelling() {
    let policy = permissive();
    for (host, reason) in [
        ("0177.0.0.1", "loopback IP blocked"),
        ("0x7f.1", "loopback IP blocked"),
        ("127.1", "loopback IP blocked"),
        ("2130706433", "loopback IP blocked"),
        ("127.0.0.1.", "loopback IP blocked"),
        ("１２７.０.０.１", "loopback IP blocked"),
        ("①27.0.0.1", "loopback IP blocked"),
        ("::1", "loopback IP blocked"),
        ("[::1]", "loopback IP blocked"),
        ("::ffff:127.0.0.1", "loopback IP blocked"),
        ("::ffff:7f00:1", "loopback IP blocked"),
        ("2002:7f00:1::", "loopback IP blocked"),
        ("64:ff9b::7f00:1", "loopback IP blocked"),
        ("169.254.169.254", "cloud metadata endpoint blocked"),
        ("2852039166", "cloud metadata endpoint blocked"),
        ("[::ffff:a9fe:a9fe]", "cloud metadata endpoint blocked"),
        ("fd00:ec2::254", "cloud metadata endpoint blocked"),
        ("168.63.129.16", "cloud metadata endpoint blocked"),
        (
            "metadata.google.internal.",
            "cloud metadata endpoint blocked",
        ),
        ("192.168.0.1", "RFC 1918 private IP blocked"),
        ("169.254.1.1", "link-local IP blocked"),
        ("fe80::1", "link-local IP blocked"),
        ("100.64.0.1", "RFC 6598 CGN blocked"),
        ("fd12::1", "IPv6 ULA blocked"),
        ("0", "unspecified IP blocked"),
        ("224.0.0.251", "multicast IP blocked"),
        ("ＬＯＣＡＬＨＯＳＴ", "special-use name blocked: localhost"),
        ("Foo.LocalHost.", "special-use name blocked: foo.localhost"),
        ("loc\u{ad}alhost", "special-use name blocked: localhost"),
        ("router", "single-label name blocked"),
        (
            "clients2.google.com",
            "browser service blocked: clients2.google.com",
        ),
        (
            "expyuzz4wqqyqhjn.onion",
            "malformed onion address blocked: version 2 onion services were switched off in 2021",
        ),
    ] {
        assert_eq!(
            said(&policy, host, 443),
            format!("DENY: {reason}"),
            "{host}"
        );
    }
    // The control: the same policy lets public hosts through.
    for host in [
        "8.8.8.8",
        "1.1.1.1",
        "2606:4700:4700::1111",
        "example.com",
        "127.0.0.1.nip.io",
        ONION,
    ] {
        assert!(judge(&policy, host, 443).is_allowed(), "{host}");
    }
}

#[test]
fn onion_services_are_subject_to_the_rules_like_any_host() {
    assert!(!judge(&Policy::default(), ONION, 80).is_allowed());
    assert!(judge(&flags(&[ONION], &[], false), &ONION.to_uppercase(), 80).is_allowed());
    let beneath = flags(&[&format!("*.{ONION}")], &[], false);
    assert!(judge(&beneath, &format!("www.{ONION}"), 80).is_allowed());
    assert!(!judge(&beneath, ONION, 80).is_allowed());
}

#[test]
fn a_site_that_the_browser_also_asks_needs_a_pattern() {
    let open = flags(&[], &[], true);
    let Verdict::Deny(denial) = judge(&open, "accounts.google.com", 443) else {
        panic!("allowed")
    };
    assert_eq!(
        denial.to_string(),
        "browser service blocked: accounts.google.com"
    );
    assert_eq!(
        denial.hint().as_deref(),
        Some("--allow accounts.google.com")
    );
    assert!(!judge(&open, "redirector.gvt1.com", 443).is_allowed());
    assert!(judge(&open, "www.google.com", 443).is_allowed());
    for pattern in ["accounts.google.com", "*.google.com"] {
        let named = flags(&[pattern], &[], true);
        assert!(
            judge(&named, "accounts.google.com", 443).is_allowed(),
            "{pattern}"
        );
        assert!(
            !judge(&named, "clients2.google.com", 443).is_allowed(),
            "{pattern}"
        );
    }
}

#[test]
fn a_url_is_judged_by_scheme_host_and_port() {
    let policy = flags(&["example.com"], &[], false);
    let url = policy.check_url(" HTTPS://Example.COM:443/a b ").unwrap();
    assert_eq!(url.as_str(), "https://example.com/a%20b");
    assert_eq!(url.target().to_string(), "example.com:443");
    assert_eq!(url.rule(), &Rule::Allowed("example.com".to_owned()));
    for (url, message) in [
        (
            "ftp://example.com/",
            "policy denied: scheme \"ftp\" not in allow list (url=ftp://example.com/)",
        ),
        (
            "file:///etc/passwd",
            "policy denied: scheme \"file\" not in allow list (url=file:///etc/passwd)",
        ),
        (
            "javascript:alert(1)",
            "policy denied: scheme \"javascript\" not in allow list (url=javascript:alert(1))",
        ),
        (
            "ws://example.com/",
            "policy denied: scheme \"ws\" not in allow list (url=ws://example.com/)",
        ),
        (
            "http://0x7f.1/",
            "policy denied: loopback IP blocked (url=http://127.0.0.1/)",
        ),
        (
            "http://[::ffff:127.0.0.1]:80/",
            "policy denied: loopback IP blocked (url=http://[::ffff:7f00:1]/)",
        ),
        (
            "https://example.com@evil.org/",
            "policy denied: origin https://evil.org not in allow list (url=https://evil.org/)",
        ),
        (
            "https://u:secret@evil.org:8443/",
            "policy denied: origin https://evil.org:8443 not in allow list (url=https://evil.org:8443/)",
        ),
        (
            "http://evil.org\\@example.com/",
            "policy denied: origin http://evil.org not in allow list (url=http://evil.org/@example.com/)",
        ),
        (
            "https://example.com:0/",
            "policy denied: port 0 blocked (url=https://example.com:0/)",
        ),
        (
            "https://",
            "policy denied: invalid URL: empty host (url=https://)",
        ),
        (
            "example.com",
            "policy denied: invalid URL: relative URL without a base (url=example.com)",
        ),
        (
            "http://a b\n/",
            "policy denied: invalid URL: invalid international domain name (url=http://a b\\n/)",
        ),
    ] {
        assert_eq!(
            policy.check_url(url).unwrap_err().to_string(),
            message,
            "{url}"
        );
    }
    assert_eq!(
        Policy::default()
            .check_url("https://example.com/")
            .unwrap_err()
            .to_string(),
        "policy denied: default_action=deny and no rule matched origin https://example.com (url=https://example.com/)"
    );
}

#[test]
fn the_shipped_files_load_and_mean_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("policy");
    let load = |name: &str| Policy::load(Some(&root.join(name)), &Overrides::default()).unwrap();
    let default = load("default.toml");
    assert_eq!(
        said(&default, "example.com", 443),
        "DENY: default_action=deny and no rule matched origin example.com:443"
    );
    let open = load("open-web.toml");
    assert_eq!(
        said(&open, "example.com", 443),
        "ALLOW: default_action=allow"
    );
    assert!(!judge(&open, "10.0.0.1", 443).is_allowed());
    assert!(!judge(&open, "accounts.google.com", 443).is_allowed());
}

#[test]
fn flags_are_laid_over_the_file() {
    let text = "allowed_origins = ['a.example']\ndenied_origins = ['b.example']";
    let overrides = Overrides {
        allow: vec!["b.example".to_owned(), "c.example".to_owned()],
        deny: vec!["a.example".to_owned()],
        allow_public_web: false,
    };
    let policy = Policy::from_toml(text, "test.toml", &overrides).unwrap();
    assert!(!judge(&policy, "a.example", 80).is_allowed());
    assert!(!judge(&policy, "b.example", 80).is_allowed());
    assert!(judge(&policy, "c.example", 80).is_allowed());
    assert!(!judge(&policy, "d.example", 80).is_allowed());
    let open = Overrides {
        allow_public_web: true,
        ..Overrides::default()
    };
    let policy = Policy::from_toml("default_action = 'deny'", "test.toml", &open).unwrap();
    assert!(judge(&policy, "d.example", 80).is_allowed());
}

#[test]
fn an_error_names_the_file_the_line_and_what_is_wrong() {
    for (toml, place, what) in [
        (
            "\n\nallowed_orgins = []",
            "test.toml:3: ",
            "unknown field `allowed_orgins`",
        ),
        (
            "default_action = 'maybe'",
            "test.toml:1: ",
            "unknown variant `maybe`",
        ),
        ("\nevaluate = 'yes'", "test.toml:2: ", "expected a boolean"),
        (
            "allowed_origins = 'example.com'",
            "test.toml:1: ",
            "expected a sequence",
        ),
        (
            "[loopback]\nport = 1",
            "test.toml:2: ",
            "unknown field `port`",
        ),
        ("[loopback]\nports = [70000]", "test.toml:2: ", "70000"),
        ("denied_origins = [", "test.toml:1: ", "array"),
        (
            "evaluate = false\nevaluate = false",
            "test.toml:2: ",
            "duplicate",
        ),
        (
            "allowed_origins = [\n 'a.example',\n '*.com',\n]",
            "test.toml:3: allowed_origins: ",
            "pattern \"*.com\": it would cover a whole top-level domain",
        ),
        (
            "denied_origins = ['ftp://x.example']",
            "test.toml:1: denied_origins: ",
            "pattern \"ftp://x.example\"",
        ),
    ] {
        let error = error(toml);
        assert!(
            error.starts_with(place) && error.contains(what),
            "{toml}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    let overrides = Overrides {
        allow: vec!["*".to_owned()],
        ..Overrides::default()
    };
    let error = Policy::load(None, &overrides).unwrap_err().to_string();
    assert!(error.starts_with("--allow: pattern \"*\": "), "{error}");
}

#[test]
fn a_value_that_this_version_would_not_act_on_is_refused_by_key() {
    for (toml, key) in [
        ("default_action = 'ask'", "default_action = 'ask'"),
        ("subresources = \"public\"", "subresources = \"public\""),
        ("dns = 'pinned'", "dns = 'pinned'"),
        ("evaluate = true", "evaluate = true"),
        ("[loopback]\nports = [8080]", "loopback.ports = [8080]"),
        (
            "[workspace_files]\nenabled = true",
            "workspace_files.enabled = true",
        ),
    ] {
        let error = error(toml);
        assert!(
            error.contains(&format!("{key} is not available in this version")),
            "{error}"
        );
    }
    // The control: the values that it does act on.
    policy(
        "default_action = 'deny'\nsubresources = 'listed'\ndns = 'exit'\nevaluate = false\n\
         [loopback]\nports = []\n[workspace_files]\nenabled = false",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: &Path| Policy::load(Some(path), &Overrides::default());
    let missing = dir.path().join("missing.toml");
    let error = load(&missing).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot read policy {}: ", missing.display())),
        "{error}"
    );
    assert!(load(dir.path()).is_err());
    assert!(matches!(
        load(Path::new("/dev/zero")),
        Err(PolicyError::TooLarge(_))
    ));
    let binary = dir.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    assert!(load(&binary).is_err());
    let good = dir.path().join("good.toml");
    std::fs::write(&good, "allowed_origins = ['example.com']").unwrap();
    assert!(judge(&load(&good).unwrap(), "example.com", 80).is_allowed());
}

#[test]
fn ten_thousand_patterns_each_match_what_they_name_and_nothing_else() {
    let allow: Vec<String> = (0..10_000)
        .map(|i| match i % 4 {
            0 => format!("host{i}.example"),
            1 => format!("*.tree{i}.example"),
            2 => format!("https://tls{i}.example"),
            _ => format!("11.{}.{}.1", i / 256, i % 256),
        })
        .collect();
    let policy = Policy::load(
        None,
        &Overrides {
            allow,
            ..Overrides::default()
        },
    )
    .unwrap();
    for i in 0..10_000 {
        let allowed = |host: String, port| judge(&policy, &host, port).is_allowed();
        assert_eq!(allowed(format!("host{i}.example"), 80), i % 4 == 0);
        assert!(!allowed(format!("a.host{i}.example"), 80));
        assert_eq!(allowed(format!("a.tree{i}.example"), 80), i % 4 == 1);
        assert!(!allowed(format!("tree{i}.example"), 80));
        assert_eq!(allowed(format!("tls{i}.example"), 443), i % 4 == 2);
        assert!(!allowed(format!("tls{i}.example"), 80));
        assert_eq!(
            allowed(format!("11.{}.{}.1", i / 256, i % 256), 80),
            i % 4 == 3
        );
    }
}

/// Whether an address is public, said a second time and differently: by the standard library where
/// it has a stable opinion, by arithmetic where it has none.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => is_public_v4(a),
        IpAddr::V6(a) => {
            let s = a.segments();
            let ietf = s[0] == 0x2001 && s[1] < 0x200;
            let documentation =
                (s[0] == 0x2001 && s[1] == 0xdb8) || (s[0] == 0x3fff && s[1] < 0x1000);
            let returned = s[0] == 0x2002 || s[0] == 0x3ffe;
            let as112 = s[..3] == [0x2620, 0x4f, 0x8000];
            (0x2000..0x4000).contains(&s[0]) && !ietf && !documentation && !returned && !as112
        }
    }
}

fn is_public_v4(a: Ipv4Addr) -> bool {
    let o = a.octets();
    let special = matches!(
        (o[0], o[1], o[2]),
        (192, 0, 0) | (192, 31, 196) | (192, 52, 193) | (192, 88, 99) | (192, 175, 48)
    );
    let shared = o[0] == 100 && o[1] & 0xc0 == 64;
    let benchmark = o[0] == 198 && o[1] & 0xfe == 18;
    !(a.is_private()
        || a.is_loopback()
        || a.is_link_local()
        || a.is_documentation()
        || a.is_broadcast()
        || a.is_unspecified()
        || o[0] == 0
        || o[0] >= 224
        || special
        || shared
        || benchmark
        || o == [168, 63, 129, 16])
}

/// Text near what attackers write: numbers in odd bases, colons, dots of several alphabets.
fn spelling() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<u8>().prop_map(|n| n.to_string()),
        any::<u8>().prop_map(|n| format!("0{n:o}")),
        any::<u32>().prop_map(|n| format!("0x{n:x}")),
        any::<u32>().prop_map(|n| n.to_string()),
        "[0-9a-fxA-F:.％%。．①-⑨０-９\\[\\]]{0,6}",
        Just("localhost".to_owned()),
        Just("127".to_owned()),
        Just("ffff".to_owned()),
    ];
    let dot = prop_oneof![
        Just("."),
        Just(":"),
        Just("::"),
        Just("。"),
        Just("．"),
        Just("%2e")
    ];
    prop::collection::vec((part, dot), 1..9)
        .prop_map(|parts| {
            parts
                .into_iter()
                .map(|(part, dot)| part + dot)
                .collect::<String>()
        })
        .prop_flat_map(|text| {
            let cut = text.trim_end_matches(['.', ':', '。', '．']).to_owned();
            prop_oneof![Just(text), Just(format!("[{cut}]")), Just(cut)]
        })
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    let prefixes = prop::sample::select(vec![
        0u128,
        0xffff << 32,
        0xffff << 48,
        0x0064_ff9b << 96,
        0x0064_ff9b_0001 << 80,
        0x2001 << 112,
        0x2001_0db8 << 96,
        0x2002 << 112,
        0x3fff << 112,
        0xfd00 << 112,
        0xfe80 << 112,
    ]);
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits >> 3 | 1 << 125).into()),
        (prefixes, any::<u32>())
            .prop_map(|(p, low)| Ipv6Addr::from_bits(p | u128::from(low)).into()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_spelling_reaches_an_address_that_is_not_public(text in spelling(), port: u16) {
        if let Ok(host) = Host::parse(&text) {
            let allowed = permissive().judge(&Target { host: host.clone(), port }).is_allowed();
            match host {
                Host::Address(address) => prop_assert_eq!(allowed, port != 0 && is_public(address)),
                Host::Name(name) => if allowed {
                    // What is left as a name is one to every resolver: it ends in a letter label.
                    let top = name.rsplit('.').next().unwrap();
                    prop_assert!(top.starts_with(|c: char| c.is_ascii_lowercase()), "{}", name);
                    prop_assert!(name.parse::<IpAddr>().is_err());
                },
            }
        }
    }

    #[test]
    fn every_address_is_judged_as_the_second_opinion_says(address in any_address()) {
        let target = Target { host: address.into(), port: 443 };
        prop_assert_eq!(permissive().judge(&target).is_allowed(), is_public(address), "{}", address);
    }

    #[test]
    fn what_is_shown_parses_back(text in prop_oneof![spelling(), any::<String>(), "[a-zA-Zà-ÿ0-9.-]{1,40}"]) {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host.clone()));
            let target = Target { host, port: 1 };
            prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
        }
    }

    #[test]
    fn addresses_parse_back_with_and_without_brackets(address in any_address()) {
        let host = Host::from(address);
        prop_assert_eq!(Host::parse(&address.to_string()), Ok(host.clone()));
        prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
    }

    #[test]
    fn no_input_panics_and_a_url_is_never_allowed_where_its_connection_is_not(text: String, other in spelling()) {
        let policy = permissive();
        let _ = Pattern::parse(&text);
        let _ = Policy::from_toml(&text, "random", &Overrides::default());
        for url in [text.clone(), format!("http://{text}"), format!("http://{other}"), format!("https://{other}:1/")] {
            if let Ok(url) = policy.check_url(&url) {
                prop_assert!(policy.judge(url.target()).is_allowed());
            }
        }
    }

    #[test]
    fn a_pattern_matches_the_host_that_it_names(name in "[a-z]{1,8}\\.[a-z]{2,8}\\.[a-z]{2,6}") {
        if Pattern::parse(&name).is_ok() {
            let exact = flags(&[&name], &[], false);
            prop_assert!(judge(&exact, &name, 443).is_allowed());
            let sub = format!("x.{name}");
            prop_assert!(!judge(&exact, &sub, 443).is_allowed());
            let beneath = flags(&[&format!("*.{name}")], &[], false);
            prop_assert!(!judge(&beneath, &name, 443).is_allowed());
            prop_assert!(judge(&beneath, &sub, 443).is_allowed());
        }
    }
}
