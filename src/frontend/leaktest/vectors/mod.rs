//! What the leak test tries, as data: a name, a sentence, an action.
//!
//! A vector's position gives it a label, addresses and a port of its own ([`super::aim`]), so that
//! a packet or a request says which vector it belongs to.

mod browser;
mod hints;
mod requests;
mod secure;
mod webrtc;

/// One attempt to reach the network past the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    pub name: &'static str,
    /// What it tries, in words.
    pub tries: &'static str,
    pub action: Action,
}

/// How a vector is set off. Text in it may use the placeholders of [`super::aim::Aim::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Markup in the page.
    Markup(Page, &'static str),
    /// The body of an async function that the page runs; what it returns is the page's side of the
    /// story. `assets/runner.js` has the helpers.
    Script(Page, &'static str),
    /// A tab of its own navigates there.
    Navigate(&'static str),
    /// A browser context with proxy settings of its own navigates to `url`.
    Context {
        proxy: &'static str,
        bypass: Option<&'static str>,
        url: &'static str,
    },
    /// The page's debugging target is told to look for Cast devices.
    Cast,
    /// Nothing is done: Chromium does it by itself while it runs, or as a side effect.
    Watch,
}

/// The two pages: some features exist only in a secure context, and a secure page may not make
/// plain requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Plain,
    Secure,
}

impl Page {
    pub fn path(self) -> &'static str {
        match self {
            Page::Plain => "/plain",
            Page::Secure => "/secure",
        }
    }

    pub fn url(self, domain: &str) -> String {
        let scheme = match self {
            Page::Plain => "http",
            Page::Secure => "https",
        };
        format!("{scheme}://{domain}{}", self.path())
    }
}

/// All vectors, each with its number.
pub fn all() -> impl Iterator<Item = (u8, &'static Vector)> {
    [
        webrtc::VECTORS,
        hints::VECTORS,
        requests::VECTORS,
        secure::VECTORS,
        browser::VECTORS,
    ]
    .into_iter()
    .flatten()
    .zip(1..)
    .map(|(vector, number)| (number, vector))
}

/// The number of the vector of that name.
pub fn number(name: &str) -> Option<u8> {
    all()
        .find(|(_, vector)| vector.name == name)
        .map(|(number, _)| number)
}

const fn vector(name: &'static str, tries: &'static str, action: Action) -> Vector {
    Vector {
        name,
        tries,
        action,
    }
}

const fn markup(name: &'static str, tries: &'static str, html: &'static str) -> Vector {
    vector(name, tries, Action::Markup(Page::Plain, html))
}

const fn script(name: &'static str, tries: &'static str, body: &'static str) -> Vector {
    vector(name, tries, Action::Script(Page::Plain, body))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_at_least_45_vectors_with_names_of_their_own() {
        let names: HashSet<_> = all().map(|(_, vector)| vector.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 45, "{}", names.len());
        assert!(all().count() < 200, "numbers are an address's last byte");
    }

    #[test]
    fn names_are_plain_words() {
        for (_, vector) in all() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(vector.name.chars().all(plain), "{}", vector.name);
            assert!(!vector.tries.is_empty() && !vector.tries.ends_with('.'));
        }
    }
}
