//! Chromium's managed policies: one list, a reason beside each entry.
//!
//! Chromium reads them only from /etc/chromium/policies/managed: the image has the file there, and
//! where the cell has a mount namespace it puts a directory of its own in that place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

/// Where Chromium looks; fixed in the binary.
pub const DIRECTORY: &str = "/etc/chromium/policies/managed";
/// The file's name there.
pub const FILE: &str = "onioncell.json";

/// Name, value, reason.
fn table() -> Vec<(&'static str, Value, &'static str)> {
    const NO_REQUEST: &str = "asks a service of the browser's maker";
    vec![
        // The network.
        (
            "ProxySettings",
            json!({"ProxyMode": "fixed_servers", "ProxyServer": "socks5://127.0.0.1:1080", "ProxyBypassList": "<-loopback>"}),
            "the same proxy as the switch says: no page or setting changes it",
        ),
        (
            "WebRtcIPHandling",
            json!("disable_non_proxied_udp"),
            "no UDP around the proxy",
        ),
        ("QuicAllowed", json!(false), "UDP cannot be carried"),
        (
            "DnsOverHttpsMode",
            json!("off"),
            "names are resolved by the exit alone",
        ),
        (
            "BuiltInDnsClientEnabled",
            json!(false),
            "names are resolved by the exit alone",
        ),
        (
            "AdditionalDnsQueryTypesEnabled",
            json!(false),
            "names are resolved by the exit alone",
        ),
        (
            "NetworkPredictionOptions",
            json!(2),
            "no connection that nobody asked for",
        ),
        (
            "IntranetRedirectBehavior",
            json!(1),
            "no look-ups of random single labels",
        ),
        (
            "DefaultDirectSocketsSetting",
            json!(2),
            "no raw TCP or UDP for web apps",
        ),
        (
            "EnableMediaRouter",
            json!(false),
            "no search for Cast and DIAL devices",
        ),
        ("PrintingEnabled", json!(false), "no search for printers"),
        // Services.
        ("ComponentUpdatesEnabled", json!(false), NO_REQUEST),
        ("SafeBrowsingProtectionLevel", json!(0), NO_REQUEST),
        ("SearchSuggestEnabled", json!(false), NO_REQUEST),
        ("AlternateErrorPagesEnabled", json!(false), NO_REQUEST),
        ("SpellCheckServiceEnabled", json!(false), NO_REQUEST),
        ("TranslateEnabled", json!(false), NO_REQUEST),
        ("MetricsReportingEnabled", json!(false), NO_REQUEST),
        ("DomainReliabilityAllowed", json!(false), NO_REQUEST),
        ("BrowserNetworkTimeQueriesEnabled", json!(false), NO_REQUEST),
        ("PasswordLeakDetectionEnabled", json!(false), NO_REQUEST),
        (
            "EnableOnlineRevocationChecks",
            json!(false),
            "tells a third party which site is visited",
        ),
        ("SyncDisabled", json!(true), NO_REQUEST),
        ("BrowserSignin", json!(0), NO_REQUEST),
        ("ChromeVariations", json!(2), NO_REQUEST),
        (
            "ExtensionInstallBlocklist",
            json!(["*"]),
            "no code but Chromium's",
        ),
        (
            "BackgroundModeEnabled",
            json!(false),
            "nothing runs after the last window",
        ),
        // What pages may ask for: nobody is there to answer.
        (
            "DefaultGeolocationSetting",
            json!(2),
            "the machine has no place",
        ),
        (
            "DefaultNotificationsSetting",
            json!(2),
            "no push service is asked",
        ),
        (
            "DefaultSensorsSetting",
            json!(2),
            "the machine has no sensors",
        ),
        ("DefaultSerialGuardSetting", json!(2), "no devices"),
        ("DefaultWebBluetoothGuardSetting", json!(2), "no devices"),
        ("DefaultWebUsbGuardSetting", json!(2), "no devices"),
        ("DefaultWebHidGuardSetting", json!(2), "no devices"),
        (
            "DefaultFileSystemReadGuardSetting",
            json!(2),
            "files come through the workspace alone",
        ),
        (
            "DefaultFileSystemWriteGuardSetting",
            json!(2),
            "files come through the workspace alone",
        ),
        ("AudioCaptureAllowed", json!(false), "no devices"),
        ("VideoCaptureAllowed", json!(false), "no devices"),
        (
            "ScreenCaptureAllowed",
            json!(false),
            "no screen but the page",
        ),
        // The driver speaks over the pipe, so tools must stay available to it.
        (
            "PasswordManagerEnabled",
            json!(false),
            "no prompt that nobody could answer",
        ),
        (
            "AutofillAddressEnabled",
            json!(false),
            "no prompt that nobody could answer",
        ),
        (
            "AutofillCreditCardEnabled",
            json!(false),
            "no prompt that nobody could answer",
        ),
    ]
}

/// The policies as Chromium reads them.
pub fn policies() -> Map<String, Value> {
    table()
        .into_iter()
        .map(|(name, value, _)| (name.to_owned(), value))
        .collect()
}

/// The same, as the text of the file, with certificates that Chromium shall trust besides its own.
pub fn file(trusted: &[Certificate]) -> String {
    let mut policies = policies();
    if !trusted.is_empty() {
        let certificates = trusted.iter().map(|certificate| json!(certificate.0));
        policies.insert("CACertificates".to_owned(), certificates.collect());
    }
    let mut text = format!("{:#}", Value::Object(policies));
    text.push('\n');
    text
}

/// A certificate authority's certificate: DER in base64, as the CACertificates policy takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate(String);

impl Certificate {
    /// Every certificate in a PEM text (RFC 7468); `None` if there is none or one is malformed.
    pub fn parse_pem(text: &str) -> Option<Vec<Self>> {
        let mut found = Vec::new();
        let mut rest = text;
        while let Some((_, after)) = rest.split_once("-----BEGIN CERTIFICATE-----") {
            let (body, after) = after.split_once("-----END CERTIFICATE-----")?;
            let base64: String = body.split_whitespace().collect();
            let der = BASE64.decode(&base64).ok()?;
            // A certificate is a DER sequence (RFC 5280).
            if der.first() != Some(&0x30) {
                return None;
            }
            found.push(Self(base64));
            rest = after;
        }
        (!found.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_in_the_repository_is_this_list() {
        let committed = include_str!("../../policy/chromium.json");
        assert_eq!(
            committed,
            file(&[]),
            "write it anew: onioncell policy chromium > policy/chromium.json"
        );
    }

    #[test]
    fn certificates_are_read_whole_or_not_at_all() {
        let pem = |body: &str| {
            format!("x\n-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
        };
        let two = pem("MIIB\nMIIC") + &pem("MAAA");
        let parsed = Certificate::parse_pem(&two).unwrap();
        assert_eq!(parsed.len(), 2);
        assert!(file(&parsed).contains("\"CACertificates\": [\n    \"MIIBMIIC\""));
        for bad in [
            "",
            "MIIB",
            &pem("&&&&"),
            &pem("AAAA"),
            "-----BEGIN CERTIFICATE-----\nMIIB",
        ] {
            assert_eq!(Certificate::parse_pem(bad), None, "{bad}");
        }
    }

    #[test]
    fn no_policy_is_listed_twice() {
        assert_eq!(policies().len(), table().len());
    }
}
