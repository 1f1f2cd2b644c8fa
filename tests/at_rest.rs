//! A browser that nobody asks anything of. The longest test, so its name makes it the first to start.

use crate::user::{User, assert_only_tor, shared_lab};

/// Three minutes, in which the page waits for an image that never comes.
#[test]
fn an_idle_browser_asks_for_nothing_of_its_own() {
    let Some(lab) = shared_lab() else { return };
    let site = lab.site("idle.site.example");
    lab.web()
        .page("idle.site.example", "/", "<img src='/hang'>");
    let user = User::new(lab);
    let mark = lab.capture().mark();
    let arguments = [
        "--allow-public-web",
        "navigate",
        &site.url("/"),
        "--timeout-ms",
        "180000",
    ];
    let (code, _) = user.run(&arguments).error();
    assert_eq!(code, "timeout");
    let hosts: Vec<_> = user
        .ledger()
        .iter()
        .map(|row| row["host"].clone())
        .collect();
    assert!(
        !hosts.is_empty() && hosts.iter().all(|host| host == "idle.site.example"),
        "{hosts:?}"
    );
    assert_only_tor(lab, mark);
}
