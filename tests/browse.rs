//! The main job: pages over Tor, and nothing else leaves.

use std::net::{IpAddr, UdpSocket};

use crate::lab::{self, Lab, Options, topology};
use crate::user::{User, assert_only_tor, shared_lab};

/// Where the lab's exits come from.
fn is_exit(address: IpAddr) -> bool {
    topology::RELAYS
        .iter()
        .any(|(name, relay)| name.starts_with("exit") && address == IpAddr::from(*relay))
}

#[test]
fn a_page_comes_through_an_exit_and_every_packet_goes_to_a_relay() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("first.site.example");
    let user = User::new(lab);
    let mark = lab.capture().mark();

    let reply = user
        .run(&["--allow", "first.site.example", "navigate", &site.url("/")])
        .ok();

    assert_eq!(reply["op"], "navigate");
    assert_eq!(reply["http_status"], 200);
    assert_eq!(reply["external"]["url"], site.url("/"));
    let hits = site.hits();
    assert!(
        !hits.is_empty() && hits.iter().all(|hit| is_exit(hit.peer.ip())),
        "{hits:?}"
    );
    assert!(!lab.capture().to_tor_since(mark).is_empty());
    assert_only_tor(lab, mark);

    // The ledger has that connection and no other, and says which rule let it through.
    let ledger = user.ledger();
    assert_eq!(ledger.len(), 1, "{ledger:?}");
    let row = &ledger[0];
    assert_eq!(
        (&row["host"], &row["port"]),
        (&"first.site.example".into(), &80.into())
    );
    assert_eq!(row["verdict"], "allow");
    assert!(row["bytes_down"].as_u64() > Some(0), "{row}");
}

#[test]
fn the_capture_would_have_seen_a_packet_outside_tor() {
    if !lab::required() {
        return;
    }
    // Not the shared lab: there it would be seen by every other test, too.
    let lab = Lab::start(Options {
        tor: false,
        onion: false,
        ..Options::default()
    });
    let mark = lab.capture().mark();
    lab.home().enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket
            .send_to(b"control", (topology::WEB[1], 4444))
            .unwrap();
    });
    let seen = lab.capture().outside_tor_since(mark);
    assert!(
        seen.iter()
            .any(|packet| format!("{packet:?}").contains("4444")),
        "{seen:?}"
    );
}

#[test]
fn an_onion_site_is_read() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    lab.onion_web()
        .page("*", "/text", "<title>Onion</title><p>only in the dark");
    let onion = lab.onion();
    let url = format!("http://{onion}/text");
    let reply = user
        .run(&["--allow", onion, "extract_text", "--url", &url])
        .ok();
    assert_eq!(reply["external"]["text"], "only in the dark");
    assert_eq!(reply["external"]["title"], "Onion");
}

#[test]
fn a_secure_site_needs_an_authority_that_the_operator_trusts() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("secure.site.example");
    let user = User::new(lab);
    let ca = lab.ca_pem().to_str().unwrap();
    let go = [
        "--allow",
        "secure.site.example",
        "navigate",
        &site.https_url("/"),
    ];
    let (_, message) = user.run(&go).error();
    assert!(message.contains("ERR_CERT_AUTHORITY_INVALID"), "{message}");
    assert!(site.hits().is_empty());
    let reply = user.run(&[&["--trust-ca", ca], &go[..]].concat()).ok();
    assert_eq!(reply["external"]["url"], site.https_url("/"));
    assert!(is_exit(site.hits()[0].peer.ip()));
}

#[test]
fn a_host_that_is_not_allowed_is_never_asked() {
    let Some(lab) = shared_lab() else { return };
    let (open, closed) = (
        lab.site("open.site.example"),
        lab.site("closed.site.example"),
    );
    let page = format!(
        "<img src='{}'><iframe src='{}'></iframe><script src='{}'></script>ok",
        closed.url("/image"),
        closed.url("/frame"),
        open.url("/script"),
    );
    lab.web().page("open.site.example", "/", &page);
    let user = User::new(lab);
    user.run(&["--allow", "open.site.example", "navigate", &open.url("/")])
        .ok();
    assert_eq!(closed.hits().len(), 0);
    // The control: what is allowed was asked for in the same page.
    assert!(open.hits().iter().any(|hit| hit.path == "/script"));
    let denied = user
        .ledger()
        .into_iter()
        .find(|row| row["verdict"] == "deny")
        .unwrap();
    assert_eq!(denied["host"], "closed.site.example");

    let direct = user.run(&["--allow", "open.site.example", "navigate", &closed.url("/")]);
    let (code, message) = direct.error();
    assert_eq!((direct.status, code.as_str()), (3, "policy_denied"));
    let expected = format!(
        "policy denied: origin http://closed.site.example not in allow list (url={})",
        closed.url("/")
    );
    assert_eq!(message, expected);
}

#[test]
fn a_redirect_to_a_host_that_is_not_allowed_is_refused_by_the_gateway() {
    let Some(lab) = shared_lab() else { return };
    let (open, closed) = (
        lab.site("hop.site.example"),
        lab.site("landing.site.example"),
    );
    let target = closed.url("/");
    lab.web().route("hop.site.example", "/", move |_, reply| {
        reply.redirect(&target)
    });
    let user = User::new(lab);
    let ran = user.run(&["--allow", "hop.site.example", "navigate", &open.url("/")]);
    let (code, message) = ran.error();
    assert_eq!(code, "policy_denied", "{message}");
    assert_eq!(closed.hits().len(), 0);
    assert_eq!(open.hits().len(), 1);
}

#[test]
fn a_screenshot_lands_in_the_workspace_and_the_next_run_returns_to_the_page() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("picture.site.example");
    lab.web().page(
        "picture.site.example",
        "/",
        "<body style='background:#0a0'>green",
    );
    let user = User::new(lab);
    let allow = ["--allow", "picture.site.example"];
    user.run(&[&allow[..], &["navigate", &site.url("/")]].concat())
        .ok();
    let reply = user
        .run(&[&allow[..], &["screenshot", "--path", "pictures/a.png"]].concat())
        .ok();
    assert_eq!(reply["saved"], "pictures/a.png");
    let png = std::fs::read(user.workspace().join("pictures/a.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    // Width and height stand in the first chunk (PNG specification, IHDR).
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (1280, 900));

    let text = user.run(&[&allow[..], &["extract_text"]].concat()).ok();
    assert_eq!(text["external"]["text"], "green");
}

#[test]
fn cookies_survive_between_runs_unless_the_profile_is_ephemeral() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("cookie.site.example");
    lab.web().page(
        "cookie.site.example",
        "/",
        "<script>document.write(document.cookie || 'none'); \
         document.cookie = 'seen=yes; max-age=10000'</script>",
    );
    let user = User::new(lab);
    let read = |extra: &[&str]| {
        let url = site.url("/");
        let arguments = [
            &["--allow", "cookie.site.example"],
            extra,
            &["extract_text", "--url", &url],
        ];
        user.run(&arguments.concat()).ok()["external"]["text"].clone()
    };
    assert_eq!(read(&[]), "none");
    assert_eq!(read(&[]), "seen=yes");
    assert_eq!(read(&["--ephemeral"]), "none");
}

#[test]
fn a_tor_daemon_elsewhere_serves_as_well() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("upstream.site.example");
    let user = User::new(lab);
    let upstream = format!("socks5h://{}", lab.tor_client());
    let arguments = ["--allow", "upstream.site.example", "--egress", &upstream];
    let reply = user
        .run(&[&arguments[..], &["navigate", &site.url("/")]].concat())
        .ok();
    assert_eq!(reply["http_status"], 200);
    assert!(site.hits().iter().all(|hit| is_exit(hit.peer.ip())));
}

#[test]
fn every_onioncell_looks_alike_to_a_page() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("mirror.site.example");
    lab.web().page(
        "mirror.site.example",
        "/",
        "<script>document.write(JSON.stringify({ua: navigator.userAgent, lang: navigator.languages, \
         zone: Intl.DateTimeFormat().resolvedOptions().timeZone, online: navigator.onLine, \
         size: [innerWidth, innerHeight], webdriver: navigator.webdriver}))</script>",
    );
    let user = User::new(lab);
    let reply = user
        .run(&[
            "--allow",
            "mirror.site.example",
            "extract_text",
            "--url",
            &site.url("/"),
        ])
        .ok();
    let text = reply["external"]["text"].as_str().unwrap();
    let seen: serde_json::Value = serde_json::from_str(text).unwrap();
    let agent = seen["ua"].as_str().unwrap();
    assert!(
        !agent.contains("Headless") && agent.contains("Chrome/"),
        "{agent}"
    );
    assert_eq!(seen["lang"], serde_json::json!(["en-US", "en"]));
    assert_eq!(seen["zone"], "UTC");
    assert_eq!(seen["online"], true);
    assert_eq!(seen["size"], serde_json::json!([1280, 900]));
    let sent = site.hits()[0].header("user-agent").unwrap().to_owned();
    assert_eq!(sent, agent);
}

#[test]
fn pages_come_from_exits_of_the_country_that_was_named() {
    let Some(lab) = shared_lab() else { return };
    // What the GeoIP database says of the lab's two exits.
    for (country, exit) in [("FR", topology::RELAYS[2].1), ("nl", topology::RELAYS[3].1)] {
        let name = format!("{}.country.example", country.to_lowercase());
        let site = lab.site(&name);
        let go = [
            "--exit-country",
            country,
            "--allow",
            &name,
            "navigate",
            &site.url("/"),
        ];
        // One of four relays is that exit itself; a new user whose guard it is finds no way.
        let ok = (0..8).any(|_| User::new(lab).run(&go).status == 0);
        assert!(ok, "no page through {country}");
        let hits = site.hits();
        assert!(
            !hits.is_empty() && hits.iter().all(|hit| hit.peer.ip() == IpAddr::from(exit)),
            "{hits:?}"
        );
    }
    let none = lab.site("none.country.example");
    let go = [
        "--exit-country",
        "JP",
        "--allow",
        "none.country.example",
        "navigate",
    ];
    let (_, message) = User::new(lab)
        .run(&[&go[..], &[&none.url("/")]].concat())
        .error();
    assert!(message.contains("country"), "{message}");
    assert!(none.hits().is_empty());
}

#[test]
fn with_a_bridge_no_other_relay_is_contacted() {
    if !lab::required() {
        return;
    }
    // A lab of its own: the capture must have this run's packets only.
    let lab = Lab::start(Options {
        onion: false,
        ..Options::default()
    });
    let network = std::fs::read_to_string(lab.tor_network_toml()).unwrap();
    let network: toml::Table = network.parse().unwrap();
    let relay = topology::RELAYS[0].1.to_string();
    let caches = network["tor_network"]["fallback_caches"]
        .as_array()
        .unwrap();
    let (address, identity) = caches
        .iter()
        .map(|cache| {
            (
                cache["orports"][0].as_str().unwrap(),
                cache["rsa_identity"].as_str().unwrap(),
            )
        })
        .find(|(address, _)| address.starts_with(&relay))
        .unwrap();
    let site = lab.site("bridged.site.example");
    let user = User::new(&lab);
    let go = [
        "--allow",
        "bridged.site.example",
        "navigate",
        &site.url("/"),
    ];
    let line = format!("{address} {identity}");

    let mark = lab.capture().mark();
    user.run(&[&["--bridge", &line], &go[..]].concat()).ok();
    let contacted = |mark| {
        let packets = lab.capture().to_tor_since(mark);
        let ends = packets.iter().filter_map(|packet| packet.tcp_ends());
        ends.map(|(_, to)| to.ip().to_string())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(contacted(mark), [relay].into());
    assert_only_tor(&lab, mark);

    let (_, message) = user
        .run(&[&["--bridge", "not a bridge"], &go[..]].concat())
        .error();
    assert!(message.contains("bridge"), "{message}");
}
