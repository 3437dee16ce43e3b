//! A minimal S3 client for the tests: it creates buckets, puts objects and sets policies. It also
//! reads the requests in the gateway's log.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use foreread_tier_testing::{NEVER, until};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Samples, foreread, output};

/// A user of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayUser {
    pub name: &'static str,
    pub access: String,
    pub secret: String,
}

/// The gateway, as the variable describes it.
#[derive(Debug)]
pub struct Gateway {
    endpoint: String,
    region: String,
    log: String,
    /// May do everything.
    pub full: GatewayUser,
    /// May do the actions that buckets allow.
    pub reader: GatewayUser,
}

/// A request as the gateway's log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    pub status: u16,
}

impl Gateway {
    pub fn new(description: &str) -> Self {
        let description: Value = serde_json::from_str(description).unwrap();
        let text = |pointer: &str| description.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        let user = |name: &'static str| GatewayUser {
            name,
            access: text(&format!("/{name}/access_key")),
            secret: text(&format!("/{name}/secret_key")),
        };
        Self {
            endpoint: text("/endpoint"),
            region: text("/region"),
            log: text("/log"),
            full: user("full"),
            reader: user("reader"),
        }
    }

    /// A new bucket of the full user.
    pub fn bucket(&self, what: &str) -> Bucket<'_> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("{what}-{}-{nanos}-{made}", std::process::id());
        let bucket = Bucket { of: self, name };
        bucket.send("PUT", "", "", b"");
        bucket
    }

    /// `foreread` with these arguments and a user's keys, without other settings of storage or
    /// credentials.
    pub fn foreread(&self, who: &GatewayUser, arguments: &[&str]) -> Command {
        let mut command = self.unsigned(arguments);
        command.env_remove("AWS_SKIP_SIGNATURE");
        command.env("AWS_ACCESS_KEY_ID", &who.access).env("AWS_SECRET_ACCESS_KEY", &who.secret);
        command
    }

    /// The same without keys, and unsigned.
    pub fn unsigned(&self, arguments: &[&str]) -> Command {
        let mut command = foreread(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        command.env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true");
        command.env("AWS_ENDPOINT_URL", &self.endpoint).env("AWS_REGION", &self.region);
        command.env("AWS_ALLOW_HTTP", "true").env("AWS_SKIP_SIGNATURE", "true");
        command
    }

    fn host(&self) -> &str {
        self.endpoint.strip_prefix("http://").unwrap()
    }

    /// Sends a signed request (AWS Signature Version 4) and returns status and body. `more` are
    /// headers that are not signed, each with the end of its line.
    fn send(
        &self,
        who: &GatewayUser,
        method: &str,
        path: &str,
        query: &str,
        more: &str,
        body: &[u8],
    ) -> (u16, String) {
        let date = output(Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"])).stdout;
        let now = String::from_utf8(date).unwrap().trim().to_owned();
        let day = &now[..8];
        let headers =
            format!("host:{}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{now}\n", self.host());
        let names = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{names}\nUNSIGNED-PAYLOAD");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let to_sign = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let mut key = format!("AWS4{}", who.secret).into_bytes();
        for part in [day, &self.region, "s3", "aws4_request"] {
            key = keyed(&key, part);
        }
        let signature = hex(&keyed(&key, &to_sign));
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let head = format!(
            "{method} {path}{query} HTTP/1.1\r\nHost: {}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\
             x-amz-date: {now}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\
             Authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, \
             Signature={signature}\r\n\r\n",
            self.host(),
            body.len(),
            who.access
        );
        let mut stream = TcpStream::connect(self.host()).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{method} {path}: {answer}")), answer)
    }
}

/// A bucket of the full user.
#[derive(Debug)]
pub struct Bucket<'a> {
    of: &'a Gateway,
    pub name: String,
}

impl Bucket<'_> {
    pub fn url(&self, path: &str) -> String {
        format!("s3://{}/{path}", self.name)
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, query: &str, body: &[u8]) {
        self.ask_with(method, path, query, "", body);
    }

    #[track_caller]
    fn ask_with(&self, method: &str, path: &str, query: &str, more: &str, body: &[u8]) {
        let path = format!("/{}{}{}", self.name, if path.is_empty() { "" } else { "/" }, escape(path));
        let (status, answer) = self.of.send(&self.of.full, method, &path, query, more, body);
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.send("PUT", path, "", bytes);
    }

    /// An object in a storage class from which it cannot be read.
    pub fn put_archived(&self, path: &str, bytes: &[u8]) {
        self.ask_with("PUT", path, "", "x-amz-storage-class: GLACIER\r\n", bytes);
    }

    pub fn delete(&self, path: &str) {
        self.send("DELETE", path, "", b"");
    }

    /// Every file of a directory, hidden ones too, below `prefix`.
    pub fn upload(&self, samples: &Samples, prefix: &str) {
        samples.each_file(|path, bytes| self.put(&format!("{prefix}{path}"), bytes));
    }

    /// Lets `who` read objects, and nothing else.
    pub fn let_read(&self, who: &GatewayUser) {
        let policy = json!({"Version": "2012-10-17", "Statement": [{
            "Effect": "Allow",
            "Principal": {"AWS": [format!("arn:aws:iam:::user/{}", who.name)]},
            "Action": ["s3:GetObject"],
            "Resource": [format!("arn:aws:s3:::{}/*", self.name)],
        }]});
        self.send("PUT", "", "policy=", policy.to_string().as_bytes());
    }

    /// All requests for this bucket, in the order of answers.
    pub fn requested(&self) -> Vec<LoggedRequest> {
        // The log is written after the answers. Once the marker is there, all earlier requests are.
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let marker = format!("/{}/marker-{}", self.name, MARKS.fetch_add(1, Ordering::Relaxed));
        self.of.send(&self.of.full, "GET", &marker, "", "", b"");
        let mut requested = Vec::new();
        until("the marker is in the log", || {
            let log = String::from_utf8_lossy(&std::fs::read(&self.of.log).unwrap()).into_owned();
            requested = log.lines().filter_map(|line| self.logged(line)).collect();
            let end = requested.iter().position(|requested| requested.target == marker);
            requested.truncate(end.unwrap_or(0));
            end.is_some()
        });
        requested.retain(|requested| !requested.target.contains("/marker-"));
        requested
    }

    /// The request for this bucket in a line of the log:
    /// `... beast: 0x7f: 127.0.0.1 - full [date] "GET /bucket/key HTTP/1.1" 200 ...`.
    fn logged(&self, line: &str) -> Option<LoggedRequest> {
        let (_, line) = line.split_once(" beast: ")?;
        let (_, line) = line.split_once(" \"")?;
        let (request, rest) = line.split_once(" HTTP/1.1\" ")?;
        let (method, target) = request.split_once(' ')?;
        let of_this = target.strip_prefix('/')?.strip_prefix(&*self.name)?;
        (of_this.is_empty() || of_this.starts_with(['/', '?'])).then_some(())?;
        let status = rest.split(' ').next()?.parse().ok()?;
        Some(LoggedRequest { method: method.to_owned(), target: target.to_owned(), status })
    }
}

/// The number of requests for objects, by method.
pub fn of_objects(requested: &[LoggedRequest]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for requested in requested {
        let (path, _) = requested.target.split_once('?').unwrap_or((&requested.target, ""));
        if path.trim_matches('/').contains('/') {
            *counts.entry(&*requested.method).or_default() += 1;
        }
    }
    counts
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path in S3's escaping.
fn escape(path: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(byte);
    path.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
