//! A real browser: Chromium without a window, controlled through its WebDriver.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::Method;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use super::{SECOND, eventually};

/// How long the browser may take to show something. This is long, because other tests run at the same time.
const SEEN: Duration = Duration::from_secs(60);

/// Only one browser runs at a time, because each has many processes.
static ONE: Mutex<()> = Mutex::new(());

/// The settings of a browser.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub width: u32,
    pub height: u32,
    /// The language of the browser, such as `en` or `zh-CN`.
    pub language: &'static str,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting { width: 1280, height: 900, language: "en" }
    }
}

/// The browser's WebDriver. When the WebDriver ends, the browser ends.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A browser with one tab. Only one test uses it.
pub struct Browser {
    _driver: Driver,
    runtime: tokio::runtime::Runtime,
    client: Client,
    _profile: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

/// A WebDriver command. It returns what the browser has logged since the previous command of this kind.
#[derive(Debug)]
struct BrowserLog;

impl WebDriverCompatibleCommand for BrowserLog {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"type": "browser"}).to_string()))
    }
}

/// Returns the source of axe-core, which `make tools` installs.
fn axe() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/axe/package/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}: make tools", path.display()))
}

impl Browser {
    pub fn start(setting: Setting) -> Browser {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let Setting { width, height, language } = setting;
        let profile = tempfile::tempdir().unwrap();
        // chromedriver chooses a port that is free on IPv4, and ends if the same port is not free on IPv6.
        let started = (0..5).find_map(|_| {
            let driver = Command::new("chromedriver")
                .args(["--port=0"])
                .env("HOME", profile.path())
                .env("LANGUAGE", language.replace('-', "_"))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("chromedriver can be run: make tools");
            let mut driver = Driver(driver);
            let mut output_lines = BufReader::new(driver.0.stdout.take().unwrap()).lines();
            let port: Option<u16> = output_lines.by_ref().find_map(|line| {
                line.unwrap().rsplit_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
            });
            port.map(|port| (driver, output_lines, port))
        });
        let (driver, output_lines, port) = started.expect("chromedriver tells its port");
        // A thread reads the output of chromedriver to the end, so that chromedriver never waits for a full pipe.
        std::thread::spawn(move || output_lines.for_each(drop));
        let arguments = vec![
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            // Without animations, a test never sees an unfinished change of the page.
            "--force-prefers-reduced-motion".to_owned(),
            format!("--window-size={width},{height}"),
            format!("--lang={language}"),
            format!("--user-data-dir={}", profile.path().join("profile").display()),
        ];
        let wanted = json!({
            "browserName": "chrome",
            "timeouts": {"script": 100_000},
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {
                "args": arguments,
                "prefs": {"intl.accept_languages": language},
                // The screen of a phone is narrower than the narrowest window that the browser allows.
                "mobileEmulation": (width < 500).then(|| json!({
                    "deviceMetrics": {"width": width, "height": height, "pixelRatio": 1.0, "mobile": false, "touch": false},
                })),
            },
        });
        let mut wanted: Capabilities = serde_json::from_value(wanted).unwrap();
        let options = wanted["goog:chromeOptions"].as_object_mut().unwrap();
        options.retain(|_, option| !option.is_null());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(wanted);
            builder.connect(&format!("http://127.0.0.1:{port}")).await.expect("a session")
        });
        Browser { _driver: driver, runtime, client, _profile: profile, _one: one }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { tokio::time::timeout(120 * SECOND, work).await.expect("in two minutes") })
    }

    pub fn go(&self, url: &str) {
        self.wait(self.client.goto(url)).unwrap();
    }

    pub fn run(&self, script: &str) -> Value {
        self.wait(self.client.execute(script, vec![])).unwrap()
    }

    /// Waits until the script returns a true value.
    pub fn until(&self, what: &str, script: &str) {
        let ask = || (self.run(&format!("return Boolean({script})")) == true).then_some(());
        let output_lines =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(SEEN, what, ask)));
        if output_lines.is_err() {
            panic!("{what}: not so within {SEEN:?}; the page: {}", self.text("body"));
        }
    }

    /// Waits until an element shows this text.
    pub fn see(&self, css: &str, text: &str) {
        let script = format!(
            "[...document.querySelectorAll({})].some(e => e.innerText.includes({}))",
            json!(css),
            json!(text)
        );
        self.until(&format!("{text:?} in {css}"), &script);
    }

    pub fn text(&self, css: &str) -> String {
        let script = format!("return document.querySelector({})?.innerText ?? ''", json!(css));
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on the element, as a person does.
    pub fn click(&self, css: &str) {
        self.until(&format!("{css} is there"), &format!("document.querySelector({})", json!(css)));
        self.wait(async { self.client.find(Locator::Css(css)).await?.click().await })
            .unwrap_or_else(|e| panic!("cannot click on {css}: {e}"));
    }

    /// Clicks on the button or link with this name. If the page has just replaced the element, the element is searched
    /// again.
    pub fn press(&self, name: &str) {
        let quoted = json!(name);
        let mark = format!(
            "const all = [...document.querySelectorAll('dialog[open] button, dialog[open] a, button, a, summary')];
             const named = e => (e.getAttribute('aria-label') || e.innerText).trim() === {quoted} && e.getClientRects().length > 0;
             document.querySelectorAll('[data-test]').forEach(e => e.removeAttribute('data-test'));
             all.find(e => named(e) && !e.disabled)?.setAttribute('data-test', 'press')"
        );
        eventually(SEEN, &format!("a button {name:?} that can be pressed"), || {
            self.run(&mark);
            self.wait(async { self.client.find(Locator::Css("[data-test=press]")).await?.click().await }).ok()
        });
    }

    /// Replaces the text of a field.
    pub fn fill(&self, css: &str, text: &str) {
        self.until(&format!("{css} is there"), &format!("document.querySelector({})", json!(css)));
        self.wait(async {
            let field = self.client.find(Locator::Css(css)).await?;
            field.clear().await?;
            field.send_keys(text).await
        })
        .unwrap_or_else(|e| panic!("cannot fill {css}: {e}"));
    }

    /// Presses a key in the element that has the focus. WebDriver has a code for each key: `\u{e015}` is the arrow
    /// down.
    pub fn key(&self, key: &str) {
        self.wait(async { self.client.active_element().await?.send_keys(key).await })
            .unwrap_or_else(|e| panic!("cannot press {key:?}: {e}"));
    }

    /// Returns the errors and warnings on the browser's console. Among them are violations of the content security
    /// policy, and resources that could not be loaded.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.wait(self.client.issue_cmd(BrowserLog)).unwrap();
        let is_bad = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        let entries = log.as_array().unwrap().iter().filter(is_bad);
        entries.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the accessibility problems that axe-core finds, as `rule: element`.
    pub fn barriers(&self) -> Vec<String> {
        self.run(&axe());
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ['violations'] }).then(
              found => done(found.violations.filter(v => ['serious', 'critical'].includes(v.impact))
                .flatMap(v => v.nodes.map(n => `${v.id}: ${n.html.slice(0, 160)} (${n.any.map(a => a.message).join('; ').slice(0, 200)})`))),
              e => done([String(e)]))";
        let found = self.wait(self.client.execute_async(script, vec![])).unwrap();
        serde_json::from_value(found).unwrap()
    }

    /// Saves a picture of the whole page.
    pub fn picture(&self, to: &Path) {
        let png = self.wait(self.client.screenshot()).unwrap();
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, png).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let closed = self.client.clone().close();
        let _ = self.runtime.block_on(async { tokio::time::timeout(5 * SECOND, closed).await });
    }
}

/// Returns the folder of the pictures.
pub fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/screenshots")
}
