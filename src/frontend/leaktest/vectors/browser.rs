//! What comes from Chromium itself, and from whoever holds its debugging pipe.

use super::Action::{Cast, Context, Navigate, Watch};
use super::{Vector, vector};

const DIRECT: &str = "direct://";

const fn context(
    name: &'static str,
    tries: &'static str,
    proxy: &'static str,
    url: &'static str,
) -> Vector {
    vector(
        name,
        tries,
        Context {
            proxy,
            bypass: None,
            url,
        },
    )
}

pub(super) const VECTORS: &[Vector] = &[
    vector(
        "navigate-ipv4",
        "navigation to an address",
        Navigate("http://$V4/"),
    ),
    vector(
        "navigate-localhost",
        "navigation to this machine",
        Navigate("http://localhost:$PORT/"),
    ),
    vector(
        "navigate-lan",
        "navigation to the local network",
        Navigate("http://$LAN/"),
    ),
    vector(
        "navigate-view-source",
        "navigation to view-source:",
        Navigate("view-source:http://$NAME/"),
    ),
    vector(
        "navigate-single-label",
        "navigation to a name without a dot",
        Navigate("http://$LABEL/"),
    ),
    context(
        "context-direct-name",
        "a context without a proxy, by name",
        DIRECT,
        "http://$NAME/",
    ),
    context(
        "context-direct-https",
        "a context without a proxy, over TLS",
        DIRECT,
        "https://$NAME/",
    ),
    context(
        "context-direct-ipv4",
        "a context without a proxy, by IPv4 address",
        DIRECT,
        "http://$V4/",
    ),
    context(
        "context-direct-ipv6",
        "a context without a proxy, by IPv6 address",
        DIRECT,
        "http://[$V6]/",
    ),
    context(
        "context-direct-lan",
        "a context without a proxy, to the local network",
        DIRECT,
        "http://$LAN/",
    ),
    context(
        "context-direct-dot-local",
        "a context without a proxy, to a .local name",
        DIRECT,
        "http://$LABEL.local/",
    ),
    context(
        "context-direct-localhost",
        "a context without a proxy, to this machine",
        DIRECT,
        "http://127.0.0.1:$PORT/",
    ),
    context(
        "context-foreign-socks",
        "a context with a SOCKS proxy elsewhere",
        "socks5://$V4:1080",
        "http://leak.example/",
    ),
    context(
        "context-foreign-http",
        "a context with an HTTP proxy elsewhere",
        "http://$NAME:8080",
        "http://leak.example/",
    ),
    context(
        "context-foreign-https",
        "a context with an HTTPS proxy elsewhere",
        "https://$NAME:8443",
        "http://leak.example/",
    ),
    vector(
        "context-bypass",
        "a context whose bypass list names everything",
        Context {
            proxy: "socks5://$V4:1080",
            bypass: Some("*"),
            url: "http://$NAME/",
        },
    ),
    vector("cast", "the search for Cast devices (SSDP, mDNS)", Cast),
    vector("page-name-lookup", "a lookup of the page's own name", Watch),
    vector("proxy-discovery", "a search for a proxy (WPAD)", Watch),
    vector("intranet-probe", "lookups of made-up single labels", Watch),
    vector(
        "printer-discovery",
        "a search for printers (CUPS, IPP)",
        Watch,
    ),
    vector(
        "background-services",
        "updates, accounts, safe browsing, field trials, network time, DNS over HTTPS",
        Watch,
    ),
];
