//! What Chromium offers to secure contexts only, and what only TLS brings about.

use super::Action::Script;
use super::{Page, Vector, vector};

const fn secure(name: &'static str, tries: &'static str, body: &'static str) -> Vector {
    vector(name, tries, Script(Page::Secure, body))
}

pub(super) const VECTORS: &[Vector] = &[
    secure(
        "webtransport-name",
        "WebTransport (QUIC) by name",
        "return transport('https://$NAME:443/')",
    ),
    secure(
        "webtransport-ipv4",
        "WebTransport (QUIC) to an IPv4 address",
        "return transport('https://$V4:443/')",
    ),
    secure(
        "http3-alt-svc",
        "HTTP/3, offered by an Alt-Svc header",
        "await get('/alt-svc/$LABEL'); return get('/alt-svc/$LABEL')",
    ),
    secure(
        "service-worker",
        "fetch in a service worker",
        "return serviceWorker('https://$NAME/')",
    ),
    secure(
        "background-fetch",
        "background fetch",
        "return (await registration()).backgroundFetch.fetch('f', ['https://$NAME/a.bin']).then(() => 'accepted')",
    ),
    secure(
        "push",
        "a push subscription",
        "return (await registration()).pushManager.subscribe({userVisibleOnly: true, applicationServerKey: pushKey}).then(() => 'subscribed')",
    ),
    secure(
        "geolocation",
        "the network location provider",
        "return new Promise((done, fail) => navigator.geolocation.getCurrentPosition(() => done('located'), fail))",
    ),
    secure(
        "fedcm",
        "an identity provider's configuration (FedCM)",
        "return navigator.credentials.get({identity: {providers: [{configURL: 'https://$NAME/fedcm.json', clientId: 'c', nonce: 'n'}]}}).then(() => 'signed in')",
    ),
    secure(
        "payment-manifest",
        "a payment method's manifest",
        "return new PaymentRequest([{supportedMethods: 'https://$NAME/pay'}], {total: {label: 't', amount: {currency: 'USD', value: '1'}}}).canMakePayment()",
    ),
    secure(
        "webauthn-related-origin",
        "another site's list of WebAuthn origins",
        "return navigator.credentials.get({publicKey: {challenge: new Uint8Array(32), rpId: '$LABEL.example'}}).then(() => 'signed in')",
    ),
    secure(
        "attribution",
        "attribution reporting",
        "return add('img', {attributionSrc: 'https://$NAME/attribution', src: 'https://$NAME/a.png'})",
    ),
    secure(
        "fetch-target-loopback",
        "a plain request to this machine, declared local",
        "return get('http://127.0.0.1:$PORT/', {targetAddressSpace: 'loopback'})",
    ),
    secure(
        "fetch-target-local",
        "a plain request to the local network, declared local",
        "return get('http://$LAN/', {targetAddressSpace: 'local'})",
    ),
    secure(
        "network-error-logging",
        "Network Error Logging",
        "return get('/nel/$LABEL').then(() => get('https://$NAME/'))",
    ),
    secure(
        "websocket-secure",
        "WebSocket from a secure page",
        "return socket('wss://$V4/')",
    ),
    secure(
        "certificate-fetch",
        "the issuer, the revocation list and the status of a certificate that is not trusted",
        "return get('https://$DOMAIN:$PORT/')",
    ),
];
