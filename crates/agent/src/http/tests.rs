//! The HTTP interface on real sockets: answers, headers, files, and their end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AgentError;
use foreread_host::status::{AgentStatus, JobStatus};
use foreread_tier_testing::until;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;

/// A name that a page must not interpret.
const HOSTILE: &str = "<img src=x onerror=\"alert(1)\">\n</script>";

struct Served {
    server: Option<HttpServer>,
    directory: TempDir,
    files: HttpFiles,
    runtime: Runtime,
}

impl Served {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listeners = HttpListeners::bind(directory.path(), Some("127.0.0.1:0".parse().unwrap())).unwrap();
        let looks = AtomicU64::new(0);
        let server = listeners.serve(runtime.handle(), move || AgentStatus {
            process: 41,
            hits: looks.fetch_add(1, Ordering::Relaxed),
            jobs: vec![JobStatus { name: HOSTILE.to_owned(), ..JobStatus::default() }],
            ..AgentStatus::default()
        });
        let files = HttpFiles::of(&directory.path().join("node.sock"));
        Self { server: Some(server), directory, files, runtime }
    }

    fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.server.as_ref().unwrap().address().unwrap()).unwrap()
    }

    fn unix(&self) -> UnixStream {
        UnixStream::connect(self.files.socket()).unwrap()
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.files.token()).unwrap().trim().to_owned()
    }

    /// The answer of the Unix socket.
    fn get(&self, path: &str) -> Answer {
        request(self.unix(), "GET", path, "")
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request with more header lines, and reads to the end.
fn request(mut stream: impl Read + Write, method: &str, path: &str, more: &str) -> Answer {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// The names of all fields of a value, each with its place.
fn fields(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                found.push(format!("{place}.{name}"));
                fields(value, &format!("{place}.{name}"), found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, place, found)),
        _ => {}
    }
}

#[test]
fn documented_examples_have_exactly_the_fields() {
    let document = include_str!("../../../../docs/agent.md");
    let examples = document.split("```json\n").skip(1).map(|text| text.split("```").next().unwrap());
    let examples: Vec<Value> = examples.map(|text| serde_json::from_str(text).unwrap()).collect();
    let status: AgentStatus = serde_json::from_value(examples[0].clone()).unwrap();
    let mut history = history::StatusHistory::default();
    let point = history.add(&status, Default::default(), std::time::Instant::now());
    let shown = [serde_json::to_value(&status).unwrap(), serde_json::from_str(&point).unwrap()];
    assert_eq!(examples.len(), 2);
    for (example, shown) in examples.iter().zip(&shown) {
        let (mut documented, mut real) = (Vec::new(), Vec::new());
        fields(example, "", &mut documented);
        fields(shown, "", &mut real);
        assert_eq!(documented, real);
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn each_path_answers_with_its_type_and_strict_headers() {
    let served = Served::new();
    let paths = [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
        ("/uPlot.js", "text/javascript"),
        ("/uPlot.css", "text/css"),
        ("/api/v1/status", "application/json"),
        ("/api/v1/history", "application/json"),
        ("/metrics", "text/plain; version=0.0.4"),
    ];
    for (path, media_type) in paths {
        let answer = served.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains(&format!("content-type: {media_type}")), "{path}: {}", answer.head);
        assert!(!answer.body.is_empty(), "{path}");
        let head = request(served.unix(), "HEAD", path, "");
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
    }
    for path in paths.iter().map(|(path, _)| *path).chain(["/nothing", "/api/v2/status", "/%2e%2e/etc"]) {
        let head = served.get(path).head;
        for header in [
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "content-security-policy: default-src 'none'",
        ] {
            assert!(head.contains(header), "{path}: {head}");
        }
        assert!(!head.contains("access-control"), "{path}: {head}");
    }
    assert_eq!(served.get("/nothing").status, 404);
    let status: Value = serde_json::from_str(&served.get("/api/v1/status").body).unwrap();
    assert_eq!((&status["process"], &status["jobs"][0]["name"]), (&41.into(), &HOSTILE.into()));
    let history: Value = serde_json::from_str(&served.get("/api/v1/history").body).unwrap();
    assert_eq!(history["points"][0]["jobs"][0]["name"], HOSTILE);
}

#[test]
// semantics: AGENT-20
fn loopback_port_gives_nothing_without_the_token() {
    let served = Served::new();
    for path in
        ["/", "/page.js", "/metrics", "/api/v1/status", "/api/v1/history", "/api/v1/events", "/nothing"]
    {
        for more in ["", "Authorization: Bearer wrong\r\n", "Cookie: foreread-agent-0=wrong\r\n"] {
            let answer = request(served.tcp(), "GET", path, more);
            assert_eq!((answer.status, answer.body.as_str()), (401, ""), "{path} {more}");
        }
    }
    let bearer = format!("Authorization: Bearer {}\r\n", served.token());
    for path in ["/", "/metrics", "/api/v1/status", "/api/v1/history"] {
        let answer = request(served.tcp(), "GET", path, &bearer);
        assert!(answer.status == 200 && !answer.body.contains(&served.token()), "{path}");
    }
    let post = request(served.tcp(), "POST", "/api/v1/status", &bearer);
    assert_eq!((post.status, post.body.as_str()), (405, ""));
    // As a browser: the link, and then its cookie.
    let link = served.files.page().unwrap();
    let address = served.server.as_ref().unwrap().address().unwrap();
    let path = link.strip_prefix(&format!("http://{address}")).unwrap();
    let redirect = request(served.tcp(), "GET", path, "");
    assert_eq!(redirect.status, 303);
    let cookie = redirect.head.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap();
    let page = request(served.tcp(), "GET", "/", &format!("Cookie: {cookie}\r\n"));
    assert!(page.status == 200 && page.body.contains("foreread agent"));
}

#[test]
// semantics: AGENT-20
fn files_are_the_users_alone_and_end_with_the_agent() {
    let mut served = Served::new();
    for path in [served.files.socket(), served.files.token(), served.files.link()] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    // Another agent starts in the place of a killed one, whatever modes the files have there.
    std::mem::forget(served.server.take());
    std::fs::set_permissions(served.files.token(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let old = served.token();
    let address = Some("[::1]:0".parse().unwrap());
    let listeners = HttpListeners::bind(served.directory.path(), address)
        .or_else(|_| HttpListeners::bind(served.directory.path(), Some("127.0.0.1:0".parse().unwrap())));
    let server = listeners.unwrap().serve(served.runtime.handle(), AgentStatus::default);
    assert_ne!(served.token(), old);
    assert_eq!(mode(served.files.token()), 0o600);
    drop(server);
    let left: Vec<_> = std::fs::read_dir(served.directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn agent_without_a_port_has_a_socket_and_no_token() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("http.token"), "of an ended agent").unwrap();
    let listeners = HttpListeners::bind(directory.path(), None).unwrap();
    let files = HttpFiles::of(&directory.path().join("node.sock"));
    assert!(files.socket().exists() && !files.token().exists() && files.page().is_none());
    drop(listeners);
    // A file that is in the way is not removed, and costs the socket only.
    std::fs::write(files.socket(), "a file of the user").unwrap();
    drop(HttpListeners::bind(directory.path(), None).unwrap());
    assert_eq!(std::fs::read_to_string(files.socket()).unwrap(), "a file of the user");
}

#[test]
// semantics: AGENT-20
fn addresses_that_other_machines_reach_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let error = HttpListeners::bind(directory.path(), Some(address.parse().unwrap())).unwrap_err();
        assert!(matches!(error, AgentError::NotLoopback { .. }), "{error}");
    }
    assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none());
}

#[test]
fn events_are_one_line_of_json_each_and_begin_at_once() {
    let served = Served::new();
    let mut stream = served.unix();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    let found = loop {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0);
        text.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = events.filter_map(|event| serde_json::from_str(event).ok()).collect();
        if events.len() == 2 {
            break events;
        }
    };
    let times = found.iter().map(|event| event["point"]["time"].as_f64().unwrap()).collect::<Vec<_>>();
    assert!(times[0] < times[1], "{times:?}");
    assert_eq!(found[1]["status"]["jobs"][0]["name"], HOSTILE);
}

#[test]
// semantics: AGENT-22
fn event_streams_are_bounded_and_free_their_place() {
    let served = Served::new();
    let open = || {
        let mut stream = served.unix();
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status).into_owned())
    };
    let streams: Vec<_> = (0..32).map(|_| open()).collect();
    assert!(streams.iter().all(|(_, status)| status == "HTTP/1.1 200"));
    assert_eq!(open().1, "HTTP/1.1 503");
    assert_eq!(served.get("/api/v1/status").status, 200);
    drop(streams);
    until("a place is free, when the next events are sent", || open().1 == "HTTP/1.1 200");
}

#[test]
// semantics: AGENT-22
fn requests_do_not_look_at_the_agent() {
    let begun = std::time::Instant::now();
    let served = Served::new();
    let hits = || {
        let status: Value = serde_json::from_str(&served.get("/api/v1/status").body).unwrap();
        status["hits"].as_u64().unwrap()
    };
    for _ in 0..200 {
        served.get("/metrics");
        served.get("/api/v1/history");
    }
    assert!(hits() <= begun.elapsed().as_secs() + 2);
}
