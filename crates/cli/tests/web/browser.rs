//! Debian's Chromium without a window, through its DevTools protocol on two pipes: nothing is downloaded, and no port is opened.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use memtide_testing::{Mortal, skip};
use serde_json::{Value, json};

use crate::common::PLENTY;

/// The names under which distributions have it.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// The interval between two looks at a page.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a page does before its own scripts run: it notes violations of its policy.
const NOTES: &str = "window.violations = []; document.addEventListener('securitypolicyviolation', event => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));";

/// A browser with one page.
pub struct Browser {
    _child: Mortal,
    to: ChildStdin,
    from: Receiver<Value>,
    events: VecDeque<Value>,
    asked: u64,
    session: Option<String>,
    /// The addresses that the page has asked for.
    pub requests: Vec<String>,
    /// What it complained about.
    pub complaints: Vec<String>,
}

/// How a page is shown.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The width and the height of the window.
    pub window: (u32, u32),
    /// Light letters on a dark ground.
    pub is_dark: bool,
}

/// On a desk.
pub const DESK: Look = Look { window: (1280, 900), is_dark: false };
/// In a hand.
pub const PHONE: Look = Look { window: (390, 844), is_dark: false };

impl Browser {
    /// Starts it with its files in `directory`; skips the test if there is none.
    pub fn start(directory: &Path) -> Self {
        let is_there = |name: &&&str| {
            let asked =
                Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success())
        };
        let Some(name) = NAMES.iter().find(is_there) else {
            skip("it needs Chromium: `make test-pages` installs it");
        };
        let profile = directory.join("profile");
        // The protocol is on descriptors 3 and 4. As root, Chromium has no sandbox of its own.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.args(["-c", script, name, "--headless=new", "--remote-debugging-pipe", "--no-sandbox"]);
        command.args([
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display())).env("HOME", directory).env("TZ", "UTC");
        let mut child = Mortal::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (to, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(output).split(0);
            for message in messages.map_while(Result::ok) {
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (events, requests, complaints) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut browser =
            Self { _child: child, to, from, events, asked: 0, session: None, requests, complaints };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser.ask("Page.addScriptToEvaluateOnNewDocument", json!({ "source": NOTES }));
        browser
    }

    /// The answer to a command of the protocol.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(&[message.to_string().as_bytes(), &[0]].concat()).unwrap();
        loop {
            let heard = self.from.recv_timeout(PLENTY).unwrap_or_else(|_| panic!("{method}: no answer"));
            if heard["id"] == self.asked {
                assert!(heard.get("error").is_none(), "{method}: {}", heard["error"]);
                return heard["result"].clone();
            }
            self.hear(heard);
        }
    }

    fn hear(&mut self, event: Value) {
        let told = &event["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => self.requests.push(text(&told["request"]["url"])),
            Some("Runtime.exceptionThrown") => self.complaints.push(told["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if told["entry"]["level"] == "error" => {
                self.complaints.push(format!(
                    "{} {}",
                    text(&told["entry"]["text"]),
                    text(&told["entry"]["url"])
                ));
            }
            _ => {}
        }
        self.events.push_back(event);
        if self.events.len() > 100 {
            self.events.pop_front();
        }
    }

    /// Opens an address in a window like this.
    pub fn open(&mut self, url: &str, look: Look) {
        self.look(look);
        self.ask("Page.navigate", json!({ "url": url }));
    }

    /// Shows the page in this way.
    pub fn look(&mut self, look: Look) {
        let (width, height) = look.window;
        let is_phone = width < 600;
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone }),
        );
        let scheme = if look.is_dark { "dark" } else { "light" };
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
    }

    /// The value of an expression, which may be a promise.
    pub fn value(&mut self, expression: &str) -> Value {
        // The page's policy also counts for what a test runs in it.
        let asked = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
            "userGesture": true,
            "allowUnsafeEvalBlockedByCSP": false,
        });
        let answer = self.ask("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until the expression is true.
    pub fn until(&mut self, what: &str, expression: &str) {
        let begun = Instant::now();
        while self.value(expression) != true {
            if begun.elapsed() > PLENTY {
                let body = self.value("document.body.innerText");
                panic!(
                    "still waiting: {what}\n{expression}\n{}\n{:?}",
                    body.as_str().unwrap_or_default(),
                    self.complaints
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Presses a key, as a keyboard does.
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "ArrowDown" => 40,
            "ArrowLeft" => 37,
            other => panic!("{other}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let told = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": if kind == "keyDown" { text } else { "" } });
            self.ask("Input.dispatchKeyEvent", told);
        }
    }

    /// Keeps a picture of the whole page.
    pub fn picture(&mut self, name: &str) {
        let shown =
            self.ask("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": false }));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        std::fs::create_dir_all(&directory).unwrap();
        let bytes = from_base64(shown["data"].as_str().unwrap());
        assert!(bytes.starts_with(b"\x89PNG"), "{name}");
        std::fs::write(directory.join(format!("{name}.png")), bytes).unwrap();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut held, mut bits) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).unwrap());
        }
    }
    bytes
}
