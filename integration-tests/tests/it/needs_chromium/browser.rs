//! Headless Chromium, driven by its DevTools protocol over a pipe.
//!
//! Decision: not by `--dump-dom` and virtual time, because a stream of events never ends, and
//! virtual time waits for that. The price is a client of the protocol: messages are JSON that end
//! with a zero byte.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use base64::Engine;
use foreread_tier_testing::{NEVER, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser with one page.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// The number of the last request.
    last: u64,
    session: Option<String>,
    /// Errors of the page's scripts and of its security policy.
    errors: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    pub fn start(program: &OsStr) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Descriptors 3 and 4 are those of the protocol.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >&2"]).arg(program);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ]);
        command.arg("--remote-debugging-pipe").arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let errors = Vec::new();
        let mut browser = Self { child, input, messages, last: 0, session: None, errors, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(domain, &json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and returns its result.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.input.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(NEVER).expect("Chromium answers");
            self.note(&message);
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// Keeps errors of the page.
    fn note(&mut self, message: &Value) {
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(message["params"].to_string()),
            Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                self.errors.push(message["params"]["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Exceptions, and refused requests of the page, since the start.
    pub fn errors(&self) -> Vec<String> {
        self.errors.clone()
    }

    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let done = self.call("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}));
        assert!(done["exceptionDetails"].is_null(), "{expression}: {done}");
        done["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        // While a page is replaced, there is nothing to look at.
        let guarded = format!("(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()");
        until(expression, || self.evaluate(&guarded) == Value::Bool(true));
    }

    /// The colours that the user prefers.
    pub fn set_scheme(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &features);
    }

    pub fn set_width(&mut self, width: u64) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// A PNG picture of the whole page.
    pub fn picture(&mut self) -> Vec<u8> {
        let taken = self.call("Page.captureScreenshot", &json!({"captureBeyondViewport": true}));
        base64::engine::general_purpose::STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
