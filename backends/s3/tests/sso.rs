//! Reads a bucket with single sign-on, against services in this process.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use foreread_s3::{Environment, S3Backend};
use foreread_tier::{Backend, ErrorKind, HeapBuffers, OpenContext, OpenOptions, OriginTier, TierError};
use foreread_tier_testing::store::HttpStore;
use futures::StreamExt;
use tokio::runtime::Handle;

/// Both of Amazon's services at one address. `token` is the status and the body of the response to
/// a refresh.
fn amazon(token: (&'static str, &'static str)) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let requests = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read(&mut stream);
            let (status, body) = if request.starts_with("POST /token ") { token } else { ("200 OK", ROLE) };
            requests.lock().unwrap().push(request);
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    (address, heard)
}

const ROLE: &str = "{\"roleCredentials\": {\"accessKeyId\": \"SSOROLE\", \"secretAccessKey\": \"s\", \
    \"sessionToken\": \"t\", \"expiration\": 4102444800000}}";

/// Reads a request with its body.
fn read(stream: &mut TcpStream) -> String {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next());
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    request.extend(body);
    String::from_utf8(request).unwrap()
}

/// Writes the files of `aws configure sso` and of an old `aws sso login`.
fn log_in(home: &Path) -> std::path::PathBuf {
    let cache = home.join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).unwrap();
    let config = "[sso-session corp]\nsso_region = eu-central-1\nsso_start_url = \
                  https://corp.example.org/start\n\
                  [profile train]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = \
                  Reader\n";
    std::fs::write(home.join(".aws/config"), config).unwrap();
    // SHA-1 of `corp`.
    let file = cache.join("ee0bfd2552fbd840c02cc48b6e823320543c450f.json");
    let token = "{\"accessToken\": \"hush-old\", \"expiresAt\": \"2020-01-01T00:00:00Z\", \"clientId\": \
                 \"id\", \"clientSecret\": \"hush-secret\", \"registrationExpiresAt\": \
                 \"2100-01-01T00:00:00Z\", \"refreshToken\": \"hush-refresh\"}";
    std::fs::write(&file, token).unwrap();
    file
}

async fn open(store: &HttpStore, amazon: &str, home: &Path) -> Result<Arc<dyn OriginTier>, TierError> {
    let environment = Environment::new([
        ("AWS_ENDPOINT_URL_S3", store.endpoint().as_str()),
        ("AWS_PROFILE", "train"),
        ("AWS_ENDPOINT_URL_SSO", amazon),
        ("AWS_ENDPOINT_URL_SSO_OIDC", amazon),
    ])
    .with_home(home);
    let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime: Handle::current(), seed: 1 };
    let backend = S3Backend::new().with_environment(environment);
    backend.open("s3://train", &OpenOptions::default(), &context).await
}

fn store() -> HttpStore {
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "a.jpg", "x");
    store.allow("SSOROLE");
    store
}

#[tokio::test]
// semantics: BUCKET-10
async fn bucket_is_listed_with_a_refreshed_token() {
    let answer = "{\"accessToken\": \"hush-new\", \"expiresIn\": 28800, \"refreshToken\": \"hush-next\"}";
    let (amazon, heard) = amazon(("200 OK", answer));
    let (store, home) = (store(), tempfile::tempdir().unwrap());
    let file = log_in(home.path());
    for _ in 0..2 {
        let origin = open(&store, &amazon, home.path()).await.unwrap();
        let found = origin.list("", None).collect::<Vec<_>>().await;
        assert_eq!((found.len(), found[0].as_ref().unwrap().size), (1, 1));
    }
    let heard = heard.lock().unwrap();
    let begins: Vec<&str> = heard.iter().map(|request| request.split('?').next().unwrap()).collect();
    assert!(begins[0].starts_with("POST /token ") && begins[0].contains("hush-refresh"), "{begins:?}");
    assert_eq!(begins[1..], ["GET /federation/credentials"; 2]);
    assert!(heard[1..].iter().all(|request| request.contains("x-amz-sso_bearer_token: hush-new")));
    assert!(std::fs::read_to_string(file).unwrap().contains("hush-next"));
}

#[tokio::test]
// semantics: BUCKET-10
async fn refused_refresh_is_one_line_that_names_the_login() {
    let (amazon, heard) = amazon(("400 Bad Request", "{\"error\": \"invalid_grant hush-refresh\"}"));
    let (store, home) = (store(), tempfile::tempdir().unwrap());
    log_in(home.path());
    let error = open(&store, &amazon, home.path()).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(text.contains("s3://train") && text.contains("run `aws sso login --profile train`"), "{text}");
    assert!(!text.contains("hush") && !text.contains('\n'), "{text}");
    assert_eq!(heard.lock().unwrap().len(), 1);
}
