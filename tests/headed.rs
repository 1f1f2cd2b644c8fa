//! `--headed`: the same page in a window that somebody could watch.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::user::{Ran, Running, User, shared_lab};

/// How long a window may take to show the page.
const BOUND: Duration = Duration::from_secs(30);

/// An X server with a screen in memory, whose pixels can be read from a file.
struct Screen {
    server: Child,
    display: String,
    pixels: tempfile::TempDir,
}

impl Screen {
    fn start() -> Option<Self> {
        let pixels = tempfile::tempdir().unwrap();
        let server = Command::new("Xvfb")
            .args([
                "-noreset",
                "-displayfd",
                "1",
                "-nolisten",
                "tcp",
                "-screen",
                "0",
                "1600x1200x24",
            ])
            .arg("-fbdir")
            .arg(pixels.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut server) = server else {
            let missing = "a window needs Xvfb (Debian: apt install xvfb)";
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
            eprintln!("SKIPPED: {missing}");
            return None;
        };
        // It writes its number when it is ready.
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut number)
            .unwrap();
        let display = format!(":{}", number.trim());
        Some(Self {
            server,
            display,
            pixels,
        })
    }

    /// Whether a row of this colour can be seen, about as wide as the page. A picture's header is a
    /// multiple of four bytes long, as are its pixels (XWDFile.h).
    fn shows(&self, [red, green, blue]: [u8; 3]) -> bool {
        let screen = std::fs::read(self.pixels.path().join("Xvfb_screen0")).unwrap();
        let row = [blue, green, red, 0xff].repeat(1200);
        screen.windows(row.len()).step_by(4).any(|seen| seen == row)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // SIGTERM, so that it takes its socket and lock file with it.
        // SAFETY: signals a child that has not been waited for.
        unsafe { libc::kill(i32::try_from(self.server.id()).unwrap(), libc::SIGTERM) };
        let _ = self.server.wait();
    }
}

fn run(user: &User<'_>, display: Option<&str>, arguments: &[&str]) -> Ran {
    let mut command = user.command(&[&["--headed"], arguments].concat());
    command.envs(display.map(|name| ("DISPLAY", name)));
    Running::from(command).finish()
}

/// Width and height, from the header of a PNG (its specification, 11.2.2 IHDR).
fn png_size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn a_window_shows_the_page_and_the_page_sees_what_it_sees_without_one() {
    let Some(lab) = shared_lab() else { return };
    let Some(screen) = Screen::start() else {
        return;
    };
    let site = lab.site("window.site.example");
    let sizes = "<body style='background:#12c457'><script>document.body.textContent = \
        [innerWidth, innerHeight, devicePixelRatio, screen.width, screen.height].join(' ')</script>";
    lab.web().page("window.site.example", "/sizes", sizes);
    lab.web().page(
        "window.site.example",
        "/shown",
        &format!("{sizes}<iframe src='/endless'></iframe>"),
    );
    let user = User::new(lab);
    let allow = ["--allow", "window.site.example"];
    let url = site.url("/sizes");
    let text = [&allow[..], &["extract_text", "--url", &url]].concat();
    let headless = user.run(&text).ok();
    let headed = run(&user, Some(&screen.display), &text).ok();
    let seen = headed["external"]["text"].as_str().unwrap();
    assert_eq!(seen, "1280 900 1 1280 900");
    assert_eq!(headed["external"]["text"], headless["external"]["text"]);

    let picture = [
        &allow[..],
        &["screenshot", "--path", "window.png", "--url", &url],
    ]
    .concat();
    run(&user, Some(&screen.display), &picture).ok();
    assert_eq!(png_size(&user.workspace().join("window.png")), (1280, 900));

    // Somebody who looks at the screen sees it, while it is there.
    const COLOUR: [u8; 3] = [0x12, 0xc4, 0x57];
    assert!(!screen.shows(COLOUR));
    let shown = site.url("/shown");
    let mut command = user.command(&[&["--headed"], &allow[..], &["navigate", &shown]].concat());
    command.env("DISPLAY", &screen.display);
    let running = Running::from(command);
    let began = Instant::now();
    while !screen.shows(COLOUR) {
        assert!(began.elapsed() < BOUND, "the window never showed the page");
        // A screen has no event for whoever looks at its pixels.
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(running);
}

#[test]
fn without_a_display_the_error_says_so() {
    let Some(lab) = shared_lab() else { return };
    let user = User::new(lab);
    let go = [
        "--allow",
        "a.site.example",
        "navigate",
        "http://a.site.example/",
    ];
    for (display, reason) in [
        (None, "DISPLAY is not set"),
        (Some("elsewhere:0"), "a display of this machine"),
        (
            Some(":59999"),
            ":59999 does not answer at /tmp/.X11-unix/X59999",
        ),
    ] {
        let ran = run(&user, display, &go);
        let (code, message) = ran.error();
        assert_eq!((ran.status, code.as_str()), (2, "usage"), "{message}");
        assert!(message.contains(reason), "{message}");
    }
}
