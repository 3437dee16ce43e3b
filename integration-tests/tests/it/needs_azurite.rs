//! The command against Azure's emulator: Azurite, which checks signatures.
//!
//! `FOREREAD_TEST_AZURITE` is its address. All of these emulators have the same account and key.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::support::{Samples, assert_digests, foreread, needed, number, output, run};
use foreread_tier_testing::NEVER;

const ACCOUNT: &str = "devstoreaccount1";

/// Published by Microsoft, not secret.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A new container.
struct Container {
    endpoint: String,
    name: String,
}

impl Container {
    fn new(what: &str) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let endpoint = needed("FOREREAD_TEST_AZURITE");
        let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("{what}-{nanos}-{}", MADE.fetch_add(1, Ordering::Relaxed));
        let container = Self { endpoint, name };
        container.put("", "restype=container", "", b"");
        container
    }

    fn url(&self, path: &str) -> String {
        format!("az://{}/{path}", self.name)
    }

    /// `foreread` with these arguments, without other settings of storage or credentials.
    fn foreread(&self, arguments: &[&str]) -> Command {
        let mut command = foreread(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AZURE_") {
                command.env_remove(name);
            }
        }
        command.env("AZURE_STORAGE_USE_EMULATOR", "true").env("AZURITE_BLOB_STORAGE_URL", &self.endpoint);
        command
    }

    fn add(&self, path: &str, bytes: &[u8]) {
        self.put(&format!("/{}", escape(path)), "", "x-ms-blob-type:BlockBlob\n", bytes);
    }

    /// Every file of a directory, hidden ones too, below `prefix`.
    fn upload(&self, samples: &Samples, prefix: &str) {
        samples.each_file(|path, bytes| self.add(&format!("{prefix}{path}"), bytes));
    }

    /// Sends a PUT that is signed with the account's key (Shared Key).
    fn put(&self, path: &str, query: &str, headers: &str, body: &[u8]) {
        let printed =
            output(Command::new("date").args(["-u", "+%a, %d %b %Y %H:%M:%S GMT"]).env("LC_ALL", "C"));
        let now = String::from_utf8(printed.stdout).unwrap().trim().to_owned();
        let headers = format!("{headers}x-ms-date:{now}\nx-ms-version:2021-12-02\n");
        let length = if body.is_empty() { String::new() } else { body.len().to_string() };
        let path = format!("/{ACCOUNT}/{}{path}", self.name);
        let (separator, arguments) = if query.is_empty() {
            ("", String::new())
        } else {
            ("?", format!("\n{}", query.replace('=', ":")))
        };
        let to_sign = format!("PUT\n\n\n{length}\n\n\n\n\n\n\n\n\n{headers}/{ACCOUNT}{path}{arguments}");
        let mut mac = Hmac::<Sha256>::new_from_slice(&STANDARD.decode(KEY).unwrap()).unwrap();
        mac.update(to_sign.as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let host = self.endpoint.strip_prefix("http://").unwrap();
        let head = format!(
            "PUT {path}{separator}{query} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nConnection: \
             close\r\n{}\
             Authorization: SharedKey {ACCOUNT}:{signature}\r\n\r\n",
            body.len(),
            headers.replace('\n', "\r\n")
        );
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 201"), "{path}: {answer}");
    }
}

fn escape(path: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(byte);
    path.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// A catalog of `url` in a new directory.
fn indexed(container: &Container, url: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("catalog.foreread").to_str().unwrap().to_owned();
    run(&mut container.foreread(&["index", url, "-o", &catalog])).ok();
    (directory, catalog)
}

#[test]
#[ignore = "needs Azurite"]
// semantics: BUCKET-6
fn container_of_azurite_equals_the_disk() {
    let container = Container::new("load");
    let samples = Samples::awkward(240, 5_000);
    container.upload(&samples, "set one/ü+/");
    container.add("set one/ü+2/other", b"no sample");
    // The directory placeholder of Azure's tools.
    container.add("set one/ü+/a", b"");
    let (_directory, catalog) = indexed(&container, &container.url("set one/ü+/"));
    let load = ["load", &catalog, "--report=json", "--digest", "--epochs=2", "--memory=64MB"];
    let report = run(&mut container.foreread(&load)).json();
    assert_digests(&samples, &report);
    assert_eq!(number(&report, "/samples"), 240);
}

#[test]
#[ignore = "needs Azurite"]
// semantics: BUCKET-6
fn replaced_blob_of_azurite_is_named() {
    let container = Container::new("replaced");
    for name in ["a", "b", "c"] {
        container.add(name, b"old");
    }
    let (_directory, catalog) = indexed(&container, &container.url(""));
    container.add("b", b"new");
    let line = run(&mut container.foreread(&["load", &catalog, "--epochs=1"])).fails(1);
    assert!(line.contains("b: changed since it was indexed") && line.contains(&container.name), "{line}");
}

#[test]
#[ignore = "needs Azurite"]
// semantics: BUCKET-6
fn refusals_of_azurite_name_the_container_and_the_remedy() {
    let container = Container::new("refused");
    container.add("a", b"x");
    let (directory, catalog) = indexed(&container, &container.url(""));
    let out = directory.path().join("other.foreread").to_str().unwrap().to_owned();
    let line = run(&mut container.foreread(&["index", "az://no-such-container/x", "-o", &out])).fails(1);
    assert!(line.contains("no-such-container") && line.contains("no such bucket"), "{line}");
    let wrong = STANDARD.encode("no key of this account");
    let mut load = container.foreread(&["load", &catalog, "--epochs=1"]);
    load.env("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT).env("AZURE_STORAGE_ACCOUNT_KEY", &wrong);
    let line = run(&mut load).fails(1);
    assert!(line.contains(&container.name) && line.contains("AZURE_STORAGE_ACCOUNT_KEY"), "{line}");
    assert!(!line.contains(&wrong), "{line}");
}
