//! Document URLs: what `navigate` opens and `policy check` is asked about.

use url::Url;

use super::origin::Scheme;
use super::{Denial, Host, Policy, Rule, Target, Verdict};

/// A URL that the policy allows. Open this one and not the text it came from: the browser's
/// parser then sees only what was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    url: Url,
    target: Target,
    rule: Rule,
}

impl PublicUrl {
    pub fn url(&self) -> &Url {
        &self.url
    }

    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn rule(&self) -> &Rule {
        &self.rule
    }
}

/// A URL that the policy refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy denied: {denial} (url={url})")]
pub struct UrlDenied {
    /// For messages: without credentials, and control characters escaped.
    pub url: String,
    pub denial: Denial,
}

impl Policy {
    /// Judges a document's URL before it loads. The gateway judges its connections again.
    pub fn check_url(&self, text: &str) -> Result<PublicUrl, UrlDenied> {
        let url = Url::parse(text).map_err(|error| UrlDenied {
            url: text.escape_debug().to_string(),
            denial: Denial::InvalidUrl(error.to_string()),
        })?;
        match self.judge_url(&url) {
            Ok((target, rule)) => Ok(PublicUrl { url, target, rule }),
            Err(denial) => Err(UrlDenied {
                url: shown(url),
                denial,
            }),
        }
    }

    fn judge_url(&self, url: &Url) -> Result<(Target, Rule), Denial> {
        let scheme: Scheme = url
            .scheme()
            .parse()
            .map_err(|_| Denial::Scheme(url.scheme().to_owned()))?;
        let host = Host::parse(url.host_str().unwrap_or_default())
            .map_err(|error| Denial::InvalidUrl(error.to_string()))?;
        let port = url.port().unwrap_or(scheme.default_port());
        let target = Target { host, port };
        match self.decide(&target, Some(scheme)) {
            Verdict::Allow(rule) => Ok((target, rule)),
            Verdict::Deny(denial) => Err(denial),
        }
    }
}

/// The URL as messages and logs may hold it.
fn shown(mut url: Url) -> String {
    // Both fail only for URLs that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}
