//! Chromium's command line: one list, a reason beside each entry.
//!
//! The second line of defence: the cell holds without any of these (see the leak test's control).
//! A caller can neither add nor override one. Three that follow from where Chromium lives (profile,
//! shared memory, sandbox) are added by [`crate::cell::Plan`].

/// What the command line depends on.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The gateway's port inside the cell.
    pub gateway_port: u16,
    /// Major version, for a User-Agent that does not say "Headless".
    pub major_version: u32,
    pub headed: bool,
}

/// Which command line Chromium gets. The leak test alone asks for another than ours, to show that
/// the cell holds without it; no caller of the program can.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Switches<'a> {
    Ours,
    /// [`bare`], and no managed policies.
    Bare {
        trusted_key: &'a str,
    },
}

/// The window every onioncell has, so that none can be told from another by it.
pub const VIEWPORT: (u32, u32) = (1280, 900);

struct Switch {
    text: &'static str,
    #[expect(
        dead_code,
        reason = "the reason is for whoever reads or changes the list"
    )]
    because: &'static str,
}

const fn switch(text: &'static str, because: &'static str) -> Switch {
    Switch { text, because }
}

/// Switches that are the same for everybody.
const FIXED: &[Switch] = &[
    switch(
        "--remote-debugging-pipe",
        "driven over fds 3 and 4; no port exists",
    ),
    switch(
        "--no-startup-window",
        "no page before the driver asks for one",
    ),
    switch(
        "--proxy-bypass-list=<-loopback>",
        "Chromium sends loopback addresses around a proxy unless told not to",
    ),
    switch(
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.*",
        "no name is ever resolved here; the exclusion is the gateway, as --proxy-server writes it",
    ),
    switch(
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "a page sees no ICE candidates, and gathering ends instead of hanging",
    ),
    switch("--disable-quic", "UDP cannot be carried"),
    switch("--no-pings", "no hyperlink auditing"),
    switch(
        "--disable-background-networking",
        "no requests of the browser's own",
    ),
    switch(
        "--disable-component-update",
        "no requests of the browser's own",
    ),
    switch(
        "--component-updater=url-source=http://127.0.0.1:9/u",
        "the update check survives the switch above; it may ask nobody",
    ),
    switch(
        "--gaia-url=http://127.0.0.1:9/",
        "ListAccounts is asked at start whatever the sign-in settings; it may ask nobody",
    ),
    switch("--disable-domain-reliability", "no reports to Google"),
    switch("--disable-sync", "no account"),
    switch("--disable-default-apps", "no web store"),
    switch("--disable-extensions", "no code but Chromium's"),
    switch("--disable-breakpad", "no crash uploads"),
    switch("--disable-crash-reporter", "no crash handler process"),
    switch(
        "--disable-field-trial-config",
        "the same features everywhere",
    ),
    switch(
        "--disable-client-side-phishing-detection",
        "no model downloads",
    ),
    switch("--no-first-run", "no welcome page"),
    switch("--no-default-browser-check", "no desktop integration"),
    switch("--no-service-autorun", "no background mode"),
    switch("--no-experiments", "the same features everywhere"),
    switch("--password-store=basic", "no D-Bus key ring"),
    switch("--use-mock-keychain", "no D-Bus key ring"),
    switch(
        "--disable-gpu",
        "pages look the same on every machine, and no GPU driver is loaded",
    ),
    switch("--mute-audio", "no sound device"),
    switch("--lang=en-US", "the same language for everybody"),
    switch("--accept-lang=en-US,en", "the same language for everybody"),
    switch(
        "--force-color-profile=srgb",
        "the same colours for everybody",
    ),
    switch(
        "--force-device-scale-factor=1",
        "the same pixels for everybody",
    ),
    switch(
        "--font-render-hinting=none",
        "the same glyphs for everybody",
    ),
    switch("--hide-scrollbars", "screenshots show the page"),
    switch(
        "--disable-back-forward-cache",
        "a page that was left runs no more",
    ),
    switch(
        "--disable-backgrounding-occluded-windows",
        "no window is ever in front",
    ),
    switch(
        "--disable-renderer-backgrounding",
        "a tab works at full speed behind another",
    ),
    switch(
        "--disable-background-timer-throttling",
        "a tab works at full speed behind another",
    ),
    switch(
        "--disable-hang-monitor",
        "no dialog that nobody could answer",
    ),
    switch(
        "--disable-prompt-on-repost",
        "no dialog that nobody could answer",
    ),
    switch(
        "--disable-popup-blocking",
        "pop-ups become tabs, judged like any page",
    ),
    switch("--disable-infobars", "no bar that shifts the page"),
    switch(
        "--disable-features=MediaRouter,DialMediaRouteProvider,OptimizationHints,\
         OptimizationGuideModelDownloading,Translate,InterestFeedContentSuggestions,\
         CertificateTransparencyComponentUpdater,AutofillServerCommunication,\
         PrivacySandboxSettings4,GlobalMediaControls,CalculateNativeWinOcclusion,\
         AsyncDns,DnsHttpssvc,HttpsUpgrades",
        "each looks for devices, models or names on the network, or for a page at another port \
         than the caller named",
    ),
];

/// The command line after the program's name.
pub fn arguments(setup: Setup) -> Vec<String> {
    let mut arguments: Vec<String> = FIXED.iter().map(|s| s.text.to_owned()).collect();
    let (width, height) = VIEWPORT;
    arguments.extend([
        format!("--proxy-server=socks5://127.0.0.1:{}", setup.gateway_port),
        format!("--user-agent={}", user_agent(setup.major_version)),
        format!("--window-size={width},{height}"),
    ]);
    if setup.headed {
        arguments.push("--window-position=0,0".to_owned());
    } else {
        arguments.push("--headless=new".to_owned());
    }
    arguments
}

/// What Chromium needs to run behind a proxy at all, and nothing that protects: the leak test's
/// control, in a cell and without. `trusted_key` is the base64 of a SHA-256 of a certificate's key.
pub(crate) fn bare(gateway_port: u16, trusted_key: &str) -> Vec<String> {
    vec![
        "--headless=new".to_owned(),
        "--remote-debugging-pipe".to_owned(),
        "--no-startup-window".to_owned(),
        format!("--proxy-server=socks5://127.0.0.1:{gateway_port}"),
        format!("--ignore-certificate-errors-spki-list={trusted_key}"),
    ]
}

/// The reduced form that Chromium itself sends, without the word "Headless".
pub fn user_agent(major_version: u32) -> String {
    format!(
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
         Chrome/{major_version}.0.0.0 Safari/537.36"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::collections::HashSet;

    fn setup(headed: bool) -> Vec<String> {
        arguments(Setup {
            gateway_port: 1080,
            major_version: 156,
            headed,
        })
    }

    #[test]
    fn no_switch_is_given_twice() {
        let arguments = setup(false);
        let names: HashSet<_> = arguments
            .iter()
            .map(|argument| argument.split('=').next())
            .collect();
        assert_eq!(names.len(), arguments.len());
    }

    #[test]
    fn the_sandbox_stays_on() {
        assert!(!setup(false).iter().any(|a| a.contains("sandbox")));
    }

    #[test]
    fn every_switch_is_one_word_to_the_shell_of_the_cell() {
        for argument in setup(true) {
            assert!(argument.starts_with("--"), "{argument}");
            assert!(
                !argument.contains('\n') && !argument.contains("  "),
                "{argument}"
            );
        }
    }
}
