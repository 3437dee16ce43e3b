//! Hosts that give copies to each other over the loopback interface.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foreread_preload::layout;
use tempfile::TempDir;

use super::copies::FoundCopy;
use super::*;

const TEXT: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

/// A source with one file.
#[derive(Debug, Default)]
struct OneFile {
    content: Vec<u8>,
    identity: layout::Identity,
    /// Added to the checksum.
    damage: u32,
    given: AtomicU64,
    has_ended: AtomicBool,
}

impl OneFile {
    fn new(length: usize) -> Self {
        let content: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
        let identity = layout::Identity { inode: 7, size: length as u64, ..layout::Identity::default() };
        Self { content, identity, ..Self::default() }
    }

    fn request(&self, path: &str) -> CopyRequest {
        CopyRequest::new(3, path.as_bytes(), &self.identity).unwrap()
    }
}

impl CopySource for OneFile {
    fn copy_of(&self, request: &CopyRequest) -> Option<FoundCopy> {
        if request.path != b"train/1" || !request.is_for(&self.identity) {
            return None;
        }
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&self.content, 0).unwrap();
        let crc32c = crc32c::crc32c(&self.content).wrapping_add(self.damage);
        Some(FoundCopy { file, size: self.identity.size, crc32c })
    }

    fn given(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

/// Two hosts: one that gives, and one that gets.
struct Pair {
    source: Arc<OneFile>,
    giving: OtherNodes,
    getting: OtherNodes,
    getting_source: Arc<OneFile>,
    directory: TempDir,
}

impl Drop for Pair {
    fn drop(&mut self) {
        for source in [&self.source, &self.getting_source] {
            source.has_ended.store(true, Ordering::Relaxed);
        }
    }
}

impl Pair {
    fn new(source: OneFile, token: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let start = |name: &str, token: &str, source: &Arc<OneFile>| {
            let cache = directory.path().join(name);
            std::fs::create_dir(&cache).unwrap();
            let settings = NodeSettings::new(Token::new(token).unwrap(), directory.path().join("hosts"));
            let source: Arc<dyn CopySource> = Arc::<OneFile>::clone(source);
            OtherNodes::start(&settings, &cache, source).unwrap()
        };
        let (source, getting_source) = (Arc::new(source), Arc::new(OneFile::default()));
        let giving = start("giving", TEXT, &source);
        let getting = start("getting", token, &getting_source);
        let pair = Self { source, giving, getting, getting_source, directory };
        let begun = Instant::now();
        while pair.getting.links.candidates(&pair.request()).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the hosts do not find each other");
            std::thread::sleep(POLL);
        }
        pair
    }

    fn request(&self) -> CopyRequest {
        self.source.request("train/1")
    }

    /// The content that the second host gets.
    fn fetch(&self, request: CopyRequest) -> Option<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        let crc32c = self.getting.fetch(request, &file)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(crc32c, crc32c::crc32c(&content));
        Some(content)
    }

    /// The same with several attempts, because a machine with other work misses short timeouts.
    fn fetch_often(&self, request: &CopyRequest) -> Option<Vec<u8>> {
        (0..20).find_map(|_| {
            let fetched = self.fetch(request.clone());
            if fetched.is_none() {
                self.forgive();
            }
            fetched
        })
    }

    /// Has the second host try a host that failed again.
    fn forgive(&self) {
        for host in self.getting.directory.others().unwrap() {
            self.getting.links.set_addresses(host, Vec::new());
            self.getting.links.set_addresses(host, self.getting.directory.addresses(host));
        }
    }

    fn is_avoided(&self) -> bool {
        self.getting.links.candidates(&self.request()).is_empty()
    }

    /// The copies that were given, after the last one has been counted.
    fn given(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(300));
        self.source.given.load(Ordering::Relaxed)
    }
}

#[test]
// semantics: FILES-10
fn copies_come_from_hosts_that_have_them() {
    for length in [1, 1000, messages::MAX_PIECE, 5 * messages::MAX_PIECE + 1] {
        let pair = Pair::new(OneFile::new(length), TEXT);
        assert_eq!(pair.fetch_often(&pair.request()).as_ref(), Some(&pair.source.content), "{length}");
        assert!(pair.given() >= 1);
    }
}

#[test]
fn connection_that_was_idle_is_made_again() {
    let pair = Pair::new(OneFile::new(1000), TEXT);
    assert!(pair.fetch_often(&pair.request()).is_some());
    // The other host closes it after five seconds.
    std::thread::sleep(Duration::from_secs(6));
    assert!(pair.fetch_often(&pair.request()).is_some());
    assert!(!pair.is_avoided());
}

#[test]
// semantics: FILES-10
fn other_identity_and_other_paths_get_no_copy() {
    let pair = Pair::new(OneFile::new(1000), TEXT);
    assert!(pair.fetch_often(&pair.request()).is_some());
    let given = pair.given();
    let changed = layout::Identity { changed: [1, 0], ..pair.source.identity };
    for request in [
        CopyRequest::new(3, b"train/1", &changed).unwrap(),
        pair.source.request("train/2"),
        pair.source.request("../train/1"),
    ] {
        assert_eq!(pair.fetch(request), None);
    }
    assert_eq!(pair.given(), given);
}

#[test]
// semantics: FILES-10
fn other_token_gets_no_copy() {
    let pair = Pair::new(OneFile::new(1000), "9a1c3e5f70b2d4866a8c0e1f3b5d7092");
    assert_eq!(pair.fetch(pair.request()), None);
    assert!(pair.is_avoided() && pair.given() == 0);
}

#[test]
// semantics: FILES-10
fn wrong_checksum_is_no_copy_and_the_host_is_avoided() {
    let pair = Pair::new(OneFile { damage: 1, ..OneFile::new(300_000) }, TEXT);
    assert_eq!(pair.fetch(pair.request()), None);
    assert!(pair.is_avoided());
}

#[test]
// semantics: FILES-10
fn host_that_ends_costs_one_failed_request() {
    let pair = Pair::new(OneFile::new(1000), TEXT);
    assert!(pair.fetch_often(&pair.request()).is_some());
    // As after a kill: its file stays.
    pair.source.has_ended.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    assert_eq!(pair.fetch(pair.request()), None);
    assert!(begun.elapsed() < Duration::from_secs(20) && pair.is_avoided(), "{:?}", begun.elapsed());
    assert_eq!(std::fs::read_dir(pair.directory.path().join("hosts")).unwrap().count(), 2);
    pair.getting.leave();
    pair.giving.leave();
    assert_eq!(std::fs::read_dir(pair.directory.path().join("hosts")).unwrap().count(), 0);
}

#[test]
// semantics: FILES-10
fn strangers_get_nothing_and_displace_no_host() {
    let pair = Pair::new(OneFile::new(1000), TEXT);
    assert!(pair.fetch_often(&pair.request()).is_some());
    let addresses = pair.getting.directory.addresses(pair.getting.directory.others().unwrap()[0]);
    let address = addresses[0].to_string();
    let silent: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    assert!(silent.len() > 100);
    // A connection that is there already is served.
    assert!(pair.fetch_often(&pair.request()).is_some());
    drop(silent);
    std::thread::sleep(Duration::from_millis(200));
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // It may be closed while it is written.
    let _ = stream.write_all(&[b'x'; 5000]);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    assert_eq!(received, b"");
}

#[test]
fn settings_come_from_the_environment_of_the_job() {
    let of = |variables: &[(&str, &str)]| {
        let get =
            |name: &str| variables.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        NodeSettings::of(&get)
    };
    let token = (TOKEN, TEXT);
    for other in [&[][..], &[token], &[(MEET, "/shared")], &[token, (MEET, "node1:7000")]] {
        assert!(of(other).unwrap().is_none(), "{other:?}");
    }
    let settings = of(&[token, (MEET, "/shared")]).unwrap().unwrap();
    let name = settings.directory.to_str().unwrap();
    assert!(name.starts_with("/shared/foreread-") && name.ends_with(".hosts"), "{name}");
    let weak = of(&[(TOKEN, "hunter2"), (MEET, "/shared")]).unwrap_err().to_string();
    assert!(weak.starts_with("FOREREAD_TOKEN cannot be used: a token needs 128"), "{weak}");
}
