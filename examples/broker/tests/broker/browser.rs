//! Headless Chromium, by way of ChromeDriver.

use crate::clients::available;
use crate::http;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::panic::catch_unwind;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything that a page does. Browsers are slow to start where others work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Without a sandbox of its own (tests may run as root), and without a word to anyone but the page's server.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1240,1000",
];

/// A browser with one window. Ended when dropped.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// `None` if there is no browser here, and none is required.
    pub(crate) fn start() -> Option<Self> {
        if !available("chromedriver", &["--version"]) {
            return None;
        }
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start chromedriver");
        let stdout = BufReader::new(driver.stdout.take().expect("piped"));
        let port = stdout.lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let mut browser = Self {
            driver,
            address: ([127, 0, 0, 1], port.expect("the driver's port")).into(),
            session: String::new(),
        };
        let wanted = json!({
            "goog:chromeOptions": { "args": ARGUMENTS },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.ask("POST", "/session", &wanted);
        let id = session["sessionId"].as_str().expect("an id");
        browser.session = format!("/session/{id}");
        Some(browser)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let (status, answer) = http::ask(self.address, method, &path, &body.to_string());
        assert_eq!(status, 200, "{method} {path}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        answer["value"].clone()
    }

    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    /// What this script returns in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// Waits until the script returns true.
    pub(crate) fn wait_until(&self, script: &str) {
        let begun = Instant::now();
        while self.run(script) != json!(true) {
            let text = self.run("return document.body.innerText");
            assert!(begun.elapsed() < PATIENCE, "never: {script}\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Light or dark, as the user of the browser likes it.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let command =
            json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.ask("POST", "/goog/cdp/execute", &command);
    }

    /// As wide as a telephone, and as high as a page may be, or as it began.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.ask(
            "POST",
            "/window/rect",
            &json!({ "width": width, "height": height }),
        );
    }

    /// What the browser had to say of the page: errors of scripts, and what the page's policy kept it from.
    pub(crate) fn complaints(&self) -> Value {
        self.ask("POST", "/se/log", &json!({ "type": "browser" }))
    }

    /// A picture of the window: PNG, in base64.
    pub(crate) fn screenshot(&self) -> String {
        let picture = self.ask("GET", "/screenshot", &json!({}));
        picture.as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser with its session. If it does not answer any more, there is nothing to be done.
        if !self.session.is_empty() {
            let _ = catch_unwind(|| http::ask(self.address, "DELETE", &self.session, "{}"));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
