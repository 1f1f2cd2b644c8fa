//! Hints make Chromium look names up and connect before anybody asks for anything.

use super::Action::Markup;
use super::{Page, Vector, markup, script, vector};

pub(super) const VECTORS: &[Vector] = &[
    markup(
        "dns-prefetch",
        "<link rel=dns-prefetch>",
        "<link rel=dns-prefetch href='//$NAME/'>",
    ),
    markup(
        "preconnect-name",
        "<link rel=preconnect> by name",
        "<link rel=preconnect href='http://$NAME/'>",
    ),
    markup(
        "preconnect-ipv4",
        "<link rel=preconnect> by address",
        "<link rel=preconnect href='http://$V4/'>",
    ),
    markup(
        "preconnect-localhost",
        "<link rel=preconnect> to this machine",
        "<link rel=preconnect href='http://localhost:$PORT/'>",
    ),
    script(
        "preconnect-header",
        "a Link header that asks for a preconnect",
        "return frame({src: '/link/$LABEL'})",
    ),
    markup(
        "preload",
        "<link rel=preload>",
        "<link rel=preload as=image href='http://$NAME/a.png'>",
    ),
    markup(
        "prefetch",
        "<link rel=prefetch>",
        "<link rel=prefetch href='http://$NAME/next'>",
    ),
    markup(
        "modulepreload",
        "<link rel=modulepreload>",
        "<link rel=modulepreload href='http://$NAME/a.js'>",
    ),
    vector(
        "speculation-prefetch",
        "speculation rules: prefetch",
        Markup(
            Page::Secure,
            r#"<script type=speculationrules>{"prefetch": [{"urls": ["https://$NAME/"], "eagerness": "immediate"}]}</script>"#,
        ),
    ),
    vector(
        "speculation-prerender",
        "speculation rules: prerender",
        Markup(
            Page::Secure,
            r#"<script type=speculationrules>{"prerender": [{"urls": ["https://$NAME/"], "eagerness": "immediate"}]}</script>"#,
        ),
    ),
    vector(
        "preconnect-secure",
        "<link rel=preconnect> to an https origin (HTTPS records)",
        Markup(Page::Secure, "<link rel=preconnect href='https://$NAME/'>"),
    ),
    markup(
        "manifest",
        "the web app manifest",
        "<link rel=manifest href='http://$NAME/app.webmanifest'>",
    ),
];
