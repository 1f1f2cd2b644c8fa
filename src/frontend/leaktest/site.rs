//! The test's site: what each path answers. Values to values; whoever serves it, in the test's own
//! gateway or on a web server, serves the same pages.

use std::fmt::Write as _;

use super::aim::Aim;
use super::vectors::{self, Action, Page};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// An answer of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Response {
    fn new(status: u16, content_type: &str, body: impl Into<String>) -> Self {
        Self {
            status,
            headers: vec![
                ("Content-Type", content_type.to_owned()),
                ("Cache-Control", "no-store".to_owned()),
            ],
            body: body.into(),
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The answer as HTTP/1.1, for one exchange.
    pub fn to_http(&self) -> String {
        let mut text = format!("HTTP/1.1 {} -\r\n", self.status);
        for (name, value) in &self.headers {
            // Writing to a String cannot fail.
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let _ = write!(
            text,
            "Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.body.len()
        );
        text + &self.body
    }
}

/// Asked for after `?run` has done all that a page does by itself.
pub const DONE: &str = "/done";
/// A picture in a page with `?run`. A server that answers it after [`DONE`] has come keeps the page
/// loading until then.
pub const HOLD: &str = "/hold";

/// Answers a request for `path` (with its query) on the site `domain`. A page with the query `run`
/// runs its vectors by itself.
pub fn respond(path: &str, domain: &str) -> Response {
    if let Some(location) = path.strip_prefix("/redirect?") {
        // A line break would end the header.
        let location: String = location.chars().filter(|c| !c.is_control()).collect();
        return Response::new(302, TEXT, "").with("Location", location);
    }
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    for page in [Page::Plain, Page::Secure] {
        if path == page.path() {
            let mut html = page_html(page, domain);
            if query == "run" {
                html += &format!(
                    "<img src={HOLD}>\n<script>leaktest().then(() => fetch('{DONE}'))</script>\n"
                );
            }
            return Response::new(200, HTML, html);
        }
    }
    match path {
        DONE | HOLD => Response::new(200, TEXT, ""),
        "/empty" => Response::new(200, HTML, "<!doctype html><title>empty</title>"),
        "/runner.js" => Response::new(200, SCRIPT, include_str!("assets/runner.js")),
        "/worker.js" => Response::new(200, SCRIPT, include_str!("assets/worker.js")),
        _ => special(path, domain).unwrap_or_else(|| Response::new(404, TEXT, "not found")),
    }
}

/// Pages whose headers are the point: `/<what>/<label of the vector>`.
fn special(path: &str, domain: &str) -> Option<Response> {
    let (what, label) = path.strip_prefix('/')?.split_once('/')?;
    let number = label.strip_prefix('v')?.parse().ok()?;
    let aim = Aim { number, domain };
    let elsewhere = aim.fill("$NAME");
    let page = |body: &str| Response::new(200, HTML, format!("<!doctype html>{body}"));
    Some(match what {
        "link" => page("").with("Link", format!("<http://{elsewhere}/>; rel=preconnect")),
        "csp" => page("<img src=/blocked.png>").with(
            "Content-Security-Policy",
            format!("img-src 'none'; report-uri http://{elsewhere}/report"),
        ),
        "nel" => page("")
            .with(
                "Report-To",
                format!(r#"{{"group":"n","max_age":600,"endpoints":[{{"url":"https://{elsewhere}/nel"}}]}}"#),
            )
            .with("NEL", r#"{"report_to":"n","max_age":600,"include_subdomains":true,"success_fraction":1}"#),
        "alt-svc" => page("").with("Alt-Svc", format!(r#"h3=":443"; ma=600, h3="{elsewhere}:443"; ma=600"#)),
        _ => return None,
    })
}

/// One of the two pages: its markup vectors in the body, its script vectors in a table.
fn page_html(page: Page, domain: &str) -> String {
    let mut markup = String::new();
    let mut scripts = String::new();
    for (number, vector) in vectors::all() {
        let aim = Aim { number, domain };
        // Writing to a String cannot fail.
        match vector.action {
            Action::Markup(on, html) if on == page => {
                let _ = writeln!(markup, "{}", aim.fill(html));
            }
            Action::Script(on, body) if on == page => {
                let _ = writeln!(
                    scripts,
                    "vectors.set('{}', async () => {{ {} }});",
                    vector.name,
                    aim.fill(body)
                );
            }
            _ => {}
        }
    }
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>leak test</title>\n\
         <script src=/runner.js></script>\n<body>\n{markup}<script>\n{scripts}</script>\n</html>\n"
    )
}

/// Every page that needs no query, for a web server that holds files.
pub fn site(domain: &str) -> Vec<(String, Response)> {
    let fixed = ["/plain", "/secure", "/empty", "/runner.js", "/worker.js"];
    fixed
        .iter()
        .map(|path| ((*path).to_owned(), respond(path, domain)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_page_vector_is_on_exactly_one_page() {
        let pages =
            [Page::Plain, Page::Secure].map(|page| respond(page.path(), "site.example").body);
        for (number, vector) in vectors::all() {
            let needle = match vector.action {
                Action::Markup(_, html) => Aim {
                    number,
                    domain: "site.example",
                }
                .fill(html),
                Action::Script(..) => format!("vectors.set('{}',", vector.name),
                _ => continue,
            };
            let count: usize = pages.iter().map(|page| page.matches(&needle).count()).sum();
            assert_eq!(count, 1, "{}", vector.name);
        }
    }

    #[test]
    fn every_path_that_a_vector_asks_the_site_for_exists() {
        let mut checked = 0;
        for (number, vector) in vectors::all() {
            let Action::Script(_, body) = vector.action else {
                continue;
            };
            let filled = Aim {
                number,
                domain: "site.example",
            }
            .fill(body);
            for quoted in filled
                .split('\'')
                .filter(|text| text.starts_with('/') && !text.starts_with("//"))
            {
                assert_ne!(respond(quoted, "site.example").status, 404, "{quoted}");
                checked += 1;
            }
        }
        assert!(checked > 5, "{checked}");
        assert_eq!(respond("/nowhere", "site.example").status, 404);
    }

    #[test]
    fn a_redirect_cannot_smuggle_a_header() {
        let answer = respond("/redirect?http://a/\r\nSet-Cookie: a=b", "site.example").to_http();
        assert!(!answer.contains("\r\nSet-Cookie"), "{answer}");
        assert!(answer.contains("\r\nLocation: http://a/"), "{answer}");
    }
}
