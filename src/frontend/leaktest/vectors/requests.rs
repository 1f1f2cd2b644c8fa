//! Requests of a page: every way to make one, every way to write an address.

use super::{Vector, script};

pub(super) const VECTORS: &[Vector] = &[
    script("fetch-name", "fetch by name", "return get('http://$NAME/')"),
    script(
        "fetch-https",
        "fetch over TLS by name",
        "return get('https://$NAME/')",
    ),
    script(
        "fetch-ipv4",
        "fetch from an IPv4 address",
        "return get('http://$V4/')",
    ),
    script(
        "fetch-ipv6",
        "fetch from an IPv6 address",
        "return get('http://[$V6]/')",
    ),
    script(
        "fetch-ipv4-mapped",
        "fetch from an IPv4-mapped address",
        "return get('http://[::ffff:$V4]/')",
    ),
    script(
        "fetch-decimal",
        "fetch from an address written as one number",
        "return get('http://$DEC/')",
    ),
    script(
        "fetch-octal",
        "fetch from an address in octal",
        "return get('http://$OCT/')",
    ),
    script(
        "fetch-hex",
        "fetch from an address in hexadecimal",
        "return get('http://$HEX/')",
    ),
    script(
        "fetch-localhost",
        "fetch from localhost",
        "return get('http://localhost:$PORT/')",
    ),
    script(
        "fetch-sub-localhost",
        "fetch from a name below localhost",
        "return get('http://$LABEL.localhost:$PORT/')",
    ),
    script(
        "fetch-loopback",
        "fetch from 127.0.0.1",
        "return get('http://127.0.0.1:$PORT/')",
    ),
    script(
        "fetch-loopback-other",
        "fetch from another loopback address",
        "return get('http://127.77.0.1:$PORT/')",
    ),
    script(
        "fetch-loopback-ipv6",
        "fetch from ::1",
        "return get('http://[::1]:$PORT/')",
    ),
    script(
        "fetch-zero",
        "fetch from 0.0.0.0",
        "return get('http://0.0.0.0:$PORT/')",
    ),
    script(
        "fetch-lan-192",
        "fetch from 192.168.0.0/16",
        "return get('http://$LAN/')",
    ),
    script(
        "fetch-lan-10",
        "fetch from 10.0.0.0/8",
        "return get('http://$TEN/')",
    ),
    script(
        "fetch-lan-172",
        "fetch from 172.16.0.0/12",
        "return get('http://$B16/')",
    ),
    script(
        "fetch-cgn",
        "fetch from 100.64.0.0/10",
        "return get('http://$CGN/')",
    ),
    script(
        "fetch-link-local",
        "fetch from 169.254.0.0/16",
        "return get('http://$LLA/')",
    ),
    script(
        "fetch-link-local-ipv6",
        "fetch from fe80::/10",
        "return get('http://[$LL6]/')",
    ),
    script(
        "fetch-ula",
        "fetch from fc00::/7",
        "return get('http://[$ULA]/')",
    ),
    script(
        "fetch-metadata",
        "fetch from the cloud's metadata address",
        "return get('http://169.254.169.254/')",
    ),
    script(
        "fetch-single-label",
        "fetch from a name without a dot",
        "return get('http://$LABEL/')",
    ),
    script(
        "fetch-dot-local",
        "fetch from a .local name",
        "return get('http://$LABEL.local/')",
    ),
    script(
        "fetch-dot-internal",
        "fetch from an .internal name",
        "return get('http://$LABEL.internal/')",
    ),
    script(
        "fetch-router",
        "fetch from a home router's name",
        "return get('http://$LABEL.home.arpa/')",
    ),
    script(
        "fetch-own-lan",
        "fetch from this machine's address on the LAN",
        "return get('http://$OWN:$PORT/')",
    ),
    script(
        "fetch-keepalive",
        "fetch that outlives its page",
        "return get('http://$NAME/', {method: 'POST', keepalive: true, body: 'x'})",
    ),
    script("xhr", "XMLHttpRequest", "return xhr('http://$NAME/')"),
    script(
        "beacon",
        "navigator.sendBeacon",
        "return navigator.sendBeacon('http://$NAME/', 'x')",
    ),
    script(
        "ping",
        "<a ping>",
        "return click('a', {href: '/empty', ping: 'http://$NAME/'})",
    ),
    script(
        "eventsource",
        "EventSource",
        "return source('http://$NAME/')",
    ),
    script(
        "websocket-name",
        "WebSocket by name",
        "return socket('ws://$NAME/')",
    ),
    script(
        "websocket-ipv4",
        "WebSocket by address",
        "return socket('ws://$V4/')",
    ),
    script(
        "websocket-lan",
        "WebSocket to the local network",
        "return socket('ws://$LAN/')",
    ),
    script(
        "websocket-localhost",
        "WebSocket to this machine",
        "return socket('ws://localhost:$PORT/')",
    ),
    script(
        "websocket-tls",
        "WebSocket over TLS",
        "return socket('wss://$NAME/')",
    ),
    script(
        "image",
        "<img>",
        "return add('img', {src: 'http://$NAME/a.png'})",
    ),
    script(
        "video",
        "<video>",
        "return add('video', {src: 'http://$NAME/a.webm', preload: 'auto', muted: '', autoplay: ''})",
    ),
    script(
        "script",
        "<script src>",
        "return add('script', {src: 'http://$NAME/a.js'})",
    ),
    script(
        "stylesheet-import",
        "@import in a style sheet",
        "return frame({srcdoc: '<style>@import url(http://$NAME/a.css)</style>'})",
    ),
    script(
        "font",
        "@font-face",
        "return new FontFace('f', 'url(http://$NAME/a.woff2)').load().then(() => 'loaded')",
    ),
    script("iframe", "<iframe>", "return frame({src: 'http://$NAME/'})"),
    script(
        "object",
        "<object>",
        "return add('object', {data: 'http://$NAME/a.pdf', type: 'application/pdf'})",
    ),
    script(
        "form-post",
        "a form posted into a frame",
        "return form('http://$NAME/')",
    ),
    script(
        "meta-refresh",
        "<meta http-equiv=refresh>",
        r#"return frame({srcdoc: '<meta http-equiv=refresh content="0;url=http://$NAME/">'})"#,
    ),
    script(
        "window-open",
        "window.open",
        "return popup('http://$NAME/')",
    ),
    script(
        "download",
        "a download",
        "return click('a', {href: 'http://$NAME/a.bin', download: 'a.bin'})",
    ),
    script(
        "redirect-public",
        "a redirect to an address",
        "return get('/redirect?http://$V4/')",
    ),
    script(
        "redirect-lan",
        "a redirect to the local network",
        "return get('/redirect?http://$LAN/')",
    ),
    script(
        "redirect-localhost",
        "a redirect to this machine",
        "return get('/redirect?http://localhost:$PORT/')",
    ),
    script(
        "worker",
        "importScripts in a worker",
        "return worker('importScripts(\"http://$NAME/a.js\")')",
    ),
    script(
        "worker-fetch-lan",
        "fetch in a worker from the local network",
        "return worker('fetch(\"http://$LAN/\")')",
    ),
    script(
        "shared-worker",
        "fetch in a shared worker",
        "return sharedWorker('http://$NAME/')",
    ),
    script(
        "csp-report",
        "the report of a Content-Security-Policy violation",
        "return frame({src: '/csp/$LABEL'})",
    ),
];
