//! Controls a headless Chromium.

mod devtools;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::devtools::Connection;

/// Limit for a condition to become true.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Limit for the browser to exit.
const END: Duration = Duration::from_secs(10);
/// Environment variable with the path of the browser, for a browser that is not on the PATH.
const VARIABLE: &str = "SLUICE_CHROMIUM";
/// Disables background features and network requests. Chromium writes its DevTools port to a file. A container has
/// no user namespaces for the sandbox, and the pages are our own.
const OPTIONS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--remote-debugging-port=0",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--mute-audio",
    "about:blank",
];

/// A browser process of one test. Dropping this value ends it.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    port: u16,
    browser: RefCell<Connection>,
    folder: tempfile::TempDir,
}

impl Chromium {
    /// Starts a browser. Without one, prints that `test` is skipped and returns `None`.
    pub fn find(test: &str) -> Option<Chromium> {
        let Some(path) = path() else {
            // Not `eprintln!`: the test harness captures it.
            let mut stderr = std::io::stderr();
            let advice = format!("on Debian, apt-get install chromium, or set {VARIABLE}");
            writeln!(stderr, "SKIPPED {test}: no Chromium; {advice}").expect("standard error is open");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("sluice-chromium-").tempdir().expect("a folder");
        let mut command = Command::new(&path);
        command.args(OPTIONS).arg(format!("--user-data-dir={}", folder.path().display()));
        command.env("TZ", "UTC").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (port, path) = listening(&mut child, &folder.path().join("DevToolsActivePort"));
        let browser = RefCell::new(Connection::open(port, &path));
        Some(Chromium { child, port, browser, folder })
    }

    /// Opens a new page of `width` pixels, with the dark or the light colour scheme.
    pub fn page(&self, width: u32, dark: bool) -> PageView {
        let target = self.browser.borrow_mut().call("Target.createTarget", &json!({ "url": "about:blank" }));
        let id = target["targetId"].as_str().expect("a target has an id");
        let page = RefCell::new(Connection::open(self.port, &format!("/devtools/page/{id}")));
        let sight = PageView { page };
        sight.size(width, if width > 600 { 900 } else { 740 });
        let features = json!([
            { "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        sight.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
        sight.call("Network.enable", &json!({}));
        sight
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        self.browser.get_mut().end();
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Chromium's child processes still write there for a moment.
        while self.folder.path().exists() && start.elapsed() < END {
            let _ = std::fs::remove_dir_all(self.folder.path());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Waits for the file in which Chromium writes its DevTools port and path.
fn listening(child: &mut Child, file: &Path) -> (u16, String) {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some((port, path)) = text.split_once('\n').filter(|(_, path)| path.len() > 1) {
            return (port.parse().expect("a port"), path.trim().to_owned());
        }
        let ended = child.try_wait().expect("a child can be asked");
        assert!(ended.is_none() && start.elapsed() < WAIT_LIMIT, "Chromium does not start: {ended:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn path() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        return Some(PathBuf::from(given));
    }
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];
    let paths = std::env::split_paths(&folders);
    paths.flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

/// Codes and numbers of the keys that tests press.
const KEYS: [(&str, u32); 6] =
    [("Tab", 9), ("Enter", 13), ("ArrowLeft", 37), ("ArrowUp", 38), ("ArrowRight", 39), ("ArrowDown", 40)];

/// One page of the browser.
#[derive(Debug)]
pub struct PageView {
    page: RefCell<Connection>,
}

impl PageView {
    fn call(&self, method: &str, params: &Value) -> Value {
        self.page.borrow_mut().call(method, params)
    }

    fn size(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Opens a URL and waits until the page has drawn `selector`.
    pub fn open(&self, url: &str, selector: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
        self.until(&format!("Boolean(document.querySelector({}))", Value::from(selector)));
        let mut page = self.page.borrow_mut();
        page.bytes_when_drawn = page.bytes;
    }

    /// Evaluates an expression and returns its value.
    pub fn value(&self, expression: &str) -> Value {
        let mut answer =
            self.call("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Brings the page to the front and waits until an expression is true. Chromium does not draw a background
    /// page.
    pub fn until(&self, expression: &str) {
        let start = Instant::now();
        self.call("Page.bringToFront", &json!({}));
        while self.value(expression) != Value::Bool(true) {
            let body = || self.value("document.body.innerText");
            assert!(start.elapsed() < WAIT_LIMIT, "never: {expression}\n{}", body());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key, such as `Tab`.
    pub fn press(&self, key: &str) {
        let (_, number) = KEYS.iter().find(|(name, _)| *name == key).expect("a key that is known");
        let mut event =
            json!({ "type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": number });
        if key == "Enter" {
            (event["type"], event["text"]) = ("keyDown".into(), "\r".into());
        }
        self.call("Input.dispatchKeyEvent", &event);
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Presses Tab `most` times and returns the name of the focused element after each press.
    pub fn tab_stops(&self, most: usize) -> Vec<String> {
        let name = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText)";
        let next = |_| {
            self.press("Tab");
            self.value(name).as_str().unwrap_or_default().lines().next().unwrap_or_default().to_owned()
        };
        (0..most).map(next).collect()
    }

    /// Panics if an element is wider than the screen, if a URL of another host was requested, or if too many bytes
    /// were loaded.
    pub fn is_narrow_and_small(&self, what: &str) {
        let overflow = self.value("document.scrollingElement.scrollWidth - innerWidth");
        assert!(
            overflow.as_i64().is_some_and(|px| px <= 0),
            "{what}: {overflow} px too wide: {}",
            self.value(WIDER)
        );
        let own = self.value("location.origin");
        let page = self.page.borrow();
        let (urls, bytes) = (&page.urls, page.bytes_when_drawn);
        assert!(urls.len() >= 6, "{what}: {urls:?}");
        let own = own.as_str().expect("an origin is text");
        assert!(urls.iter().all(|url| url.starts_with(own)), "{what}: {urls:?}");
        assert!((10_000..100_000).contains(&bytes), "{what}: {bytes} bytes");
    }

    /// Returns a PNG of the whole page in base 64.
    pub fn picture(&self) -> String {
        let size = self.value("[innerWidth, document.documentElement.scrollHeight]");
        let of = |at: usize| size[at].as_u64().and_then(|px| u32::try_from(px).ok()).expect("pixels");
        self.size(of(0), of(1));
        // The new size makes Chromium redraw the page before the screenshot.
        let mut answer = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        answer["data"].take().as_str().expect("a picture is text").to_owned()
    }

    /// Returns the accessibility tree of the page: one line per node with role, name and value, indented by depth.
    pub fn structure(&self) -> String {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree has nodes");
        let by_id: BTreeMap<&str, &Value> = nodes.iter().map(|node| (id(node), node)).collect();
        let mut text = String::new();
        describe(&by_id, id(&nodes[0]), (0, ""), &mut text);
        text
    }
}

/// Elements that are wider than the screen.
const WIDER: &str = "[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1 \
     && !one.closest('.scroll')).map((one) => one.tagName + '.' + one.getAttribute('class')).slice(0, 5)";

/// Roles that screen readers skip, and boxes that repeat their text.
const LEFT_OUT: [&str; 6] = ["generic", "none", "InlineTextBox", "ListMarker", "LabelText", "StaticText"];

fn describe(by_id: &BTreeMap<&str, &Value>, id: &str, (depth, above): (usize, &str), text: &mut String) {
    let Some(node) = by_id.get(id) else { return };
    let role = node["role"]["value"].as_str().unwrap_or("none");
    let raw = node["name"]["value"].as_str().unwrap_or_default();
    let is_text = role == "StaticText" && !raw.trim().is_empty() && raw != above;
    let shown = node["ignored"] != true && (!LEFT_OUT.contains(&role) || is_text);
    if shown {
        let value = node["value"]["value"].as_str().map_or_else(String::new, |value| format!(" = {value}"));
        let name = raw.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(text, "{}{role} {name}{value}", "  ".repeat(depth)).expect("a String takes all");
    }
    for child in node["childIds"].as_array().into_iter().flatten() {
        let within = if shown { (depth + 1, raw) } else { (depth, above) };
        describe(by_id, child.as_str().expect("an id"), within, text);
    }
}

/// Returns the id of a node of the tree.
fn id(node: &Value) -> &str {
    node["nodeId"].as_str().expect("a node has an id")
}
