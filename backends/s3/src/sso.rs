//! Credentials of a role, from the token that `aws sso login` has stored.
//!
//! The token is a file below `~/.aws/sso/cache`. A token that expires within 15 minutes is
//! refreshed, if its file has the necessary fields. The file is replaced as Amazon's tools replace
//! it. The service may issue another refresh token, and with the old one those tools could not
//! refresh theirs. If the file cannot be replaced (a read-only home directory), the process keeps
//! the token in memory.
//!
//! `reqsign` has a provider for single sign-on. It does not refresh tokens, and its errors do not
//! show whether a retry may succeed. So the two requests are made here. The price is that this
//! module handles their formats.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use percent_encoding::utf8_percent_encode;
use reqsign_aws_v4::Credential;
use reqsign_core::Context;
use reqsign_core::time::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::pages::QUERY;
use crate::source_failure::SourceFailure;

/// The time before expiry at which a token is refreshed, the same as in Amazon's tools.
const REFRESH_BEFORE: Duration = Duration::from_secs(15 * 60);

/// A profile's settings for single sign-on.
#[derive(Clone, Debug)]
pub(crate) struct SsoProfile {
    pub(crate) profile: String,
    pub(crate) account: String,
    pub(crate) role: String,
    pub(crate) region: String,
    /// The name from which the token's file name is derived: the session or, without one, the start
    /// URL.
    pub(crate) session: String,
}

impl SsoProfile {
    /// The error if only a new login helps.
    fn log_in(&self, why: impl std::fmt::Display) -> SourceFailure {
        SourceFailure::permanent(format!("{why}; run `aws sso login --profile {}`", self.profile))
    }

    /// The address of one of the two services. The variable of AWS's SDKs for this service replaces
    /// it. The variable for all services is ignored, because many users set it only for their S3
    /// origin.
    fn service(&self, context: &Context, variable: &str, name: &str) -> String {
        let usual = || {
            let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
            format!("https://{name}.{}.amazonaws.com{china}", self.region)
        };
        let address = context.env_var(variable).unwrap_or_else(usual);
        address.trim_end_matches('/').to_owned()
    }
}

/// The timeout for the token of another process that has used up the refresh token. In this time
/// its response must come and the file must be written, possibly on a file server.
const OTHER_PROCESS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Refreshed tokens that could not be written to their files, by file. Only one refresh runs at a
/// time, because each uses up the refresh token.
#[derive(Clone, Default)]
pub(crate) struct SsoTokens {
    kept: Arc<Mutex<HashMap<PathBuf, SsoToken>>>,
    refreshing: Arc<tokio::sync::Mutex<()>>,
}

/// The content of a token's file.
#[derive(Clone)]
struct SsoToken {
    fields: Map<String, Value>,
    expires: SystemTime,
}

impl SsoToken {
    /// Parses a file's content. Errors repeat none of it.
    fn parse(document: &[u8]) -> Option<Self> {
        let fields: Map<String, Value> = serde_json::from_slice(document).ok()?;
        let expires = time(fields.get("expiresAt")?.as_str()?)?;
        fields.get("accessToken")?.as_str()?;
        Some(Self { fields, expires })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str().filter(|text| !text.is_empty())
    }

    fn lasts(&self, time: Duration) -> bool {
        self.expires > SystemTime::now() + time
    }
}

/// Early versions of the AWS CLI wrote `UTC` for `Z`.
fn time(text: &str) -> Option<SystemTime> {
    let text = text.strip_suffix("UTC").map_or_else(|| text.to_owned(), |time| format!("{time}Z"));
    Some(text.parse::<Timestamp>().ok()?.as_system_time())
}

impl SsoTokens {
    /// The tokens of the process, because all its origins use the same files.
    pub(crate) fn of_process() -> Self {
        static TOKENS: LazyLock<SsoTokens> = LazyLock::new(SsoTokens::default);
        TOKENS.clone()
    }

    /// Returns the credentials of the portal's role.
    ///
    /// # Cancel safety
    /// A refresh that has started runs to its end, and its token is stored.
    pub(crate) async fn credential(
        &self,
        context: &Context,
        portal: &SsoProfile,
    ) -> Result<Credential, SourceFailure> {
        let token = self.token(context, portal).await?;
        let portal_address = portal.service(context, "AWS_ENDPOINT_URL_SSO", "portal.sso");
        let [role, account] = [&portal.role, &portal.account].map(|text| utf8_percent_encode(text, QUERY));
        let address =
            format!("{portal_address}/federation/credentials?role_name={role}&account_id={account}");
        let request = Request::get(address)
            .header("x-amz-sso_bearer_token", token.text("accessToken").unwrap_or_default())
            .body(Bytes::new())
            .map_err(|_| SourceFailure::permanent("sso_region or the token makes no request"))?;
        let response = context.http_send(request).await.map_err(|error| SourceFailure::of(&error))?;
        match response.status().as_u16() {
            200..=299 => {}
            401 => return Err(portal.log_in(format!("the token is refused: {}", refusal(&response)))),
            _ => {
                let why = refusal(&response);
                return Err(SourceFailure::permanent(format!(
                    "{why}; check sso_account_id and sso_role_name"
                )));
            }
        }
        credential(response.body())
            .ok_or_else(|| SourceFailure::permanent("the portal's answer has no credentials"))
    }

    /// Returns a valid token, refreshed if it is about to expire.
    async fn token(&self, context: &Context, portal: &SsoProfile) -> Result<SsoToken, SourceFailure> {
        let Some(home) = context.home_dir() else {
            return Err(SourceFailure::permanent("there is no home directory"));
        };
        let name = format!("{}.json", reqsign_core::hash::hex_sha1(portal.session.as_bytes()));
        let path = home.join(".aws/sso/cache").join(name);
        let token = self.newest(portal, &path).await?;
        if token.lasts(REFRESH_BEFORE) {
            return Ok(token);
        }
        let turn = Arc::clone(&self.refreshing).lock_owned().await;
        // The previous holder of the lock may have refreshed the token.
        let token = self.newest(portal, &path).await?;
        if token.lasts(REFRESH_BEFORE) {
            return Ok(token);
        }
        let was_refreshable = token.text("refreshToken").is_some();
        let refreshing = {
            let (tokens, context, portal, path) =
                (self.clone(), context.clone(), portal.clone(), path.clone());
            // A separate task, because a new refresh token must not be lost when the caller is
            // dropped.
            tokio::spawn(async move {
                let token = refresh(&context, &portal, token).await?;
                tokens.keep(&path, &token).await;
                drop(turn);
                Ok::<_, SourceFailure>(token)
            })
        };
        let refreshed =
            refreshing.await.unwrap_or_else(|error| Err(SourceFailure::permanent(error.to_string())));
        match refreshed {
            Ok(token) => Ok(token),
            Err(failure) => {
                let may_be_used_up = was_refreshable && !failure.transient;
                let patience = if may_be_used_up { OTHER_PROCESS_TIMEOUT } else { Duration::ZERO };
                self.of_another(portal, &path, patience).await.ok_or(failure)
            }
        }
    }

    /// Waits until the token is valid, because another process may have refreshed it. That process
    /// may have used up the refresh token and be about to write the new one. The old token is
    /// returned while it is valid. `None` at the timeout.
    async fn of_another(&self, portal: &SsoProfile, path: &Path, patience: Duration) -> Option<SsoToken> {
        let end = Instant::now() + patience;
        loop {
            match self.newest(portal, path).await {
                Ok(token) if token.lasts(Duration::ZERO) => return Some(token),
                _ if Instant::now() >= end => return None,
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, SsoToken>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of the file, or the token that could not be written to it. Without the file (`aws
    /// sso logout`) neither is valid.
    async fn newest(&self, portal: &SsoProfile, path: &Path) -> Result<SsoToken, SourceFailure> {
        let file = path.to_owned();
        let document = match tokio::task::spawn_blocking(move || std::fs::read(file)).await {
            Ok(Ok(document)) => document,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(portal.log_in("there is no token"));
            }
            Ok(Err(error)) => {
                return Err(SourceFailure::permanent(format!("{} cannot be read: {error}", path.display())));
            }
            Err(error) => return Err(SourceFailure::permanent(error.to_string())),
        };
        let filed = SsoToken::parse(&document)
            .ok_or_else(|| portal.log_in(format!("{} contains no token", path.display())))?;
        let own = self.lock().get(path).filter(|own| own.expires > filed.expires).cloned();
        Ok(own.unwrap_or(filed))
    }

    /// Replaces the file, or stores the token in memory.
    async fn keep(&self, path: &Path, token: &SsoToken) {
        let (file, document) = (path.to_owned(), Value::Object(token.fields.clone()).to_string());
        let written = tokio::task::spawn_blocking(move || replace(&file, document.as_bytes())).await;
        let error = match written {
            Ok(Ok(())) => {
                self.lock().remove(path);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let path_shown = path.display();
        tracing::warn!(%error, path = %path_shown, "a refreshed token of single sign-on cannot be written; \
                       it is kept in memory, and `aws sso login` may be needed after this process ends");
        self.lock().insert(path.to_owned(), token.clone());
    }
}

/// Replaces a file atomically by one of mode 0600.
fn replace(path: &Path, document: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().ok_or_else(|| std::io::Error::other("it has no directory"))?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(document)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Exchanges an old token for a new one (`CreateToken`).
async fn refresh(context: &Context, portal: &SsoProfile, old: SsoToken) -> Result<SsoToken, SourceFailure> {
    let ended = || portal.log_in("the token has expired and cannot be refreshed");
    let registered = old.text("registrationExpiresAt").and_then(time);
    if registered.is_some_and(|end| end <= SystemTime::now()) {
        return Err(ended());
    }
    let [Some(id), Some(secret), Some(refresh)] =
        ["clientId", "clientSecret", "refreshToken"].map(|name| old.text(name))
    else {
        return Err(ended());
    };
    let body = json!({
        "clientId": id, "clientSecret": secret, "grantType": "refresh_token", "refreshToken": refresh,
    });
    let address = portal.service(context, "AWS_ENDPOINT_URL_SSO_OIDC", "oidc");
    let request = Request::post(format!("{address}/token"))
        .header(CONTENT_TYPE, "application/json")
        .body(Bytes::from(body.to_string()))
        .map_err(|_| SourceFailure::permanent("sso_region makes no address"))?;
    let response = context.http_send(request).await.map_err(|error| SourceFailure::of(&error))?;
    if !response.status().is_success() {
        return Err(portal.log_in(format!("the token cannot be refreshed: {}", refusal(&response))));
    }
    let unclear = || SourceFailure::permanent("the token service's answer has no token");
    let answer: Value = serde_json::from_slice(response.body()).map_err(|_| unclear())?;
    let access = answer.get("accessToken").and_then(Value::as_str).ok_or_else(unclear)?;
    let seconds = answer.get("expiresIn").and_then(Value::as_u64).ok_or_else(unclear)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let expires = i64::try_from(now.saturating_add(seconds)).map_err(|_| unclear())?;
    let expires = Timestamp::from_second(expires).map_err(|_| unclear())?;
    let mut fields = old.fields;
    fields.insert("accessToken".into(), access.into());
    fields.insert("expiresAt".into(), expires.format_rfc3339_zulu().into());
    if let Some(next) = answer.get("refreshToken").and_then(Value::as_str) {
        fields.insert("refreshToken".into(), next.into());
    }
    Ok(SsoToken { fields, expires: expires.as_system_time() })
}

/// Parses the role's credentials from the portal's response.
fn credential(document: &[u8]) -> Option<Credential> {
    let answer: Value = serde_json::from_slice(document).ok()?;
    let role = answer.get("roleCredentials")?;
    let text = |name: &str| role.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(Credential {
        access_key_id: text("accessKeyId")?,
        secret_access_key: text("secretAccessKey")?,
        session_token: Some(text("sessionToken")?),
        expires_in: Some(Timestamp::from_millisecond(role.get("expiration")?.as_i64()?).ok()?),
    })
}

/// A short description of an error response. The client leaves only the code in the body.
fn refusal(response: &Response<Bytes>) -> String {
    let status = response.status();
    match std::str::from_utf8(response.body()) {
        Ok(code) if !code.is_empty() => format!("{code} ({})", status.as_u16()),
        _ => format!("HTTP status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use reqsign_core::{Error, HttpSend};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::Environment;

    type Answer = Box<dyn Fn() -> reqsign_core::Result<Response<Bytes>> + Send + Sync>;

    /// Both services. Only the token `good` gives access to a role.
    struct Amazon {
        /// The response of `CreateToken`, sent once the gate is open.
        answer: Answer,
        gate: Semaphore,
        refreshed: AtomicU64,
        good: &'static str,
    }

    impl std::fmt::Debug for Amazon {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Amazon")
        }
    }

    impl HttpSend for Amazon {
        async fn http_send(&self, request: Request<Bytes>) -> reqsign_core::Result<Response<Bytes>> {
            let uri = request.uri().to_string();
            if uri == "https://oidc.eu-central-1.amazonaws.com/token" {
                self.refreshed.fetch_add(1, Ordering::SeqCst);
                assert_eq!(request.method(), "POST");
                assert_eq!(request.headers()[CONTENT_TYPE], "application/json");
                let body: Value = serde_json::from_slice(request.body()).unwrap();
                let requested = json!({
                    "clientId": "id", "clientSecret": "hush-client", "grantType": "refresh_token",
                    "refreshToken": "hush-refresh",
                });
                assert_eq!(body, requested);
                drop(self.gate.acquire().await.unwrap());
                return (self.answer)();
            }
            let role = "https://portal.sso.eu-central-1.amazonaws.com/federation/credentials\
                        ?role_name=Reader%20x&account_id=123456789012";
            assert_eq!(uri, role);
            if request.headers()["x-amz-sso_bearer_token"] != self.good {
                return status(401, "UnauthorizedException");
            }
            let answer = json!({"roleCredentials": {
                "accessKeyId": "ROLE", "secretAccessKey": "s", "sessionToken": "t",
                "expiration": 4_102_444_800_000_u64,
            }});
            Ok(Response::new(Bytes::from(answer.to_string())))
        }
    }

    fn status(status: u16, code: &'static str) -> reqsign_core::Result<Response<Bytes>> {
        Ok(Response::builder().status(status).body(Bytes::from(code)).unwrap())
    }

    fn another() -> reqsign_core::Result<Response<Bytes>> {
        let answer = json!({
            "accessToken": "hush-new", "expiresIn": 28800, "refreshToken": "hush-next", "tokenType": "Bearer",
        });
        Ok(Response::new(Bytes::from(answer.to_string())))
    }

    fn document(access: &str, expires: &str) -> Value {
        json!({
            "startUrl": "https://corp.example.org/start", "region": "eu-central-1", "accessToken": access,
            "expiresAt": expires, "clientId": "id", "clientSecret": "hush-client",
            "registrationExpiresAt": "2100-01-01T00:00:00Z", "refreshToken": "hush-refresh",
        })
    }

    /// Writes a valid token, as another process does.
    fn write_other(path: &Path) {
        let document = document("hush-other", "2100-01-01T00:00:00Z");
        std::fs::write(path, document.to_string()).unwrap();
    }

    /// A home directory with a token, and the services for it.
    struct Home {
        directory: tempfile::TempDir,
        amazon: Arc<Amazon>,
        tokens: SsoTokens,
    }

    impl Home {
        fn new(document: &Value, good: &'static str, answer: Answer) -> Self {
            let (gate, refreshed) = (Semaphore::new(1), AtomicU64::new(0));
            let home = Self {
                directory: tempfile::tempdir().unwrap(),
                amazon: Arc::new(Amazon { answer, gate, refreshed, good }),
                tokens: SsoTokens::default(),
            };
            std::fs::create_dir_all(home.file().parent().unwrap()).unwrap();
            std::fs::write(home.file(), document.to_string()).unwrap();
            home
        }

        /// A home whose token is expired, and a service that refuses to refresh it. On each error
        /// response `other` gets the path of the token's file.
        fn refused(other: impl Fn(PathBuf) + Send + Sync + 'static) -> Self {
            let path = Arc::new(Mutex::new(PathBuf::new()));
            let file = Arc::clone(&path);
            let answer = move || {
                other(file.lock().unwrap().clone());
                status(400, "InvalidGrantException")
            };
            let home = Self::new(&document("hush-old", PAST), "hush-other", Box::new(answer));
            *path.lock().unwrap() = home.file();
            home
        }

        fn file(&self) -> PathBuf {
            let name = format!("{}.json", reqsign_core::hash::hex_sha1(b"corp"));
            self.directory.path().join(".aws/sso/cache").join(name)
        }

        fn read(&self) -> Value {
            serde_json::from_slice(&std::fs::read(self.file()).unwrap()).unwrap()
        }

        fn refreshed(&self) -> u64 {
            self.amazon.refreshed.load(Ordering::SeqCst)
        }

        async fn role(&self) -> Result<String, SourceFailure> {
            let context = Context::new()
                .with_env(Environment::default().with_home(self.directory.path()))
                .with_http_send(Arc::clone(&self.amazon));
            let portal = SsoProfile {
                profile: "train".into(),
                account: "123456789012".into(),
                role: "Reader x".into(),
                region: "eu-central-1".into(),
                session: "corp".into(),
            };
            let found = self.tokens.credential(&context, &portal).await;
            let found =
                found.inspect_err(|failure| assert!(!failure.why.contains("hush"), "{}", failure.why));
            found.map(|credential| credential.access_key_id)
        }
    }

    const PAST: &str = "2020-01-01T00:00:00Z";

    #[tokio::test]
    // semantics: BUCKET-10
    async fn expired_token_is_refreshed_and_its_file_replaced() {
        for past in [PAST, "2020-01-01T00:00:00UTC"] {
            let home = Home::new(&document("hush-old", past), "hush-new", Box::new(another));
            std::fs::set_permissions(home.file(), std::fs::Permissions::from_mode(0o644)).unwrap();
            for _ in 0..2 {
                assert_eq!(home.role().await.unwrap(), "ROLE");
            }
            assert_eq!(home.refreshed(), 1);
            let mut kept = home.read();
            let expires = time(kept["expiresAt"].as_str().unwrap()).unwrap();
            let left = expires.duration_since(SystemTime::now()).unwrap().as_secs();
            assert!((20_000..=28_800).contains(&left), "{left}");
            kept["expiresAt"] = "then".into();
            let mut whole = document("hush-new", "then");
            whole["refreshToken"] = "hush-next".into();
            assert_eq!(kept, whole);
            assert_eq!(std::fs::metadata(home.file()).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(std::fs::read_dir(home.file().parent().unwrap()).unwrap().count(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    // semantics: BUCKET-10
    async fn refused_refresh_names_the_login_and_leaves_the_file() {
        let refused = || status(400, "InvalidGrantException");
        let ended = {
            let mut document = document("hush-old", PAST);
            document["registrationExpiresAt"] = PAST.into();
            document
        };
        let mut alone = document("hush-old", PAST);
        alone.as_object_mut().unwrap().remove("refreshToken");
        for (document, requests, expected) in [
            (document("hush-old", PAST), 1, "InvalidGrantException (400)"),
            (ended, 0, "has expired"),
            (alone, 0, "has expired"),
            (json!({"accessToken": "hush"}), 0, "contains no token"),
        ] {
            let home = Home::new(&document, "hush-new", Box::new(refused));
            let failure = home.role().await.unwrap_err();
            assert!(!failure.transient && failure.why.contains(expected), "{}", failure.why);
            assert!(failure.why.ends_with("run `aws sso login --profile train`"), "{}", failure.why);
            assert_eq!(home.refreshed(), requests);
            assert_eq!(home.read(), document);
        }
        // A token that has not expired and is refused (a logout elsewhere).
        let home = Home::new(&document("hush-old", "2100-01-01T00:00:00Z"), "hush-new", Box::new(refused));
        let failure = home.role().await.unwrap_err();
        assert!(failure.why.contains("UnauthorizedException (401); run `aws sso login"), "{}", failure.why);
        std::fs::remove_file(home.file()).unwrap();
        let failure = home.role().await.unwrap_err();
        assert!(failure.why.contains("there is no token; run `aws sso login"), "{}", failure.why);
    }

    #[tokio::test]
    // semantics: BUCKET-11
    async fn busy_token_service_is_a_transient_failure() {
        let busy = || -> reqsign_core::Result<_> { Err(Error::rate_limited("SlowDownException (400)")) };
        let home = Home::new(&document("hush-old", PAST), "hush-new", Box::new(busy));
        let failure = home.role().await.unwrap_err();
        assert!(failure.transient && failure.why.contains("SlowDownException"), "{}", failure.why);
        // A token that expires soon is still valid.
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 600;
        let soon = Timestamp::from_second(soon.try_into().unwrap()).unwrap().format_rfc3339_zulu();
        let home = Home::new(&document("hush-old", &soon), "hush-old", Box::new(busy));
        assert_eq!(home.role().await.unwrap(), "ROLE");
        assert_eq!(home.refreshed(), 1);
    }

    #[tokio::test]
    // semantics: BUCKET-10
    async fn token_refreshed_by_another_process_is_used() {
        let home = Home::refused(|path| write_other(&path));
        assert_eq!(home.role().await.unwrap(), "ROLE");
        assert_eq!(home.refreshed(), 1);
    }

    /// When ranks refreshed one token at a time, all but the first failed and named `aws sso
    /// login`.
    #[tokio::test(start_paused = true)]
    async fn sso_token_of_another_process_is_awaited() {
        let home = Home::refused(|path| {
            tokio::spawn(async move {
                tokio::time::sleep(OTHER_PROCESS_TIMEOUT - POLL_INTERVAL).await;
                write_other(&path);
            });
        });
        assert_eq!(home.role().await.unwrap(), "ROLE");
        assert_eq!(home.refreshed(), 1);
    }

    /// The second of two datasets used the refresh token that the first had used up.
    #[tokio::test]
    async fn two_stores_refresh_a_token_once() {
        let home = Home::new(&document("hush-old", PAST), "hush-new", Box::new(another));
        let (one, other) = tokio::join!(home.role(), home.role());
        assert_eq!((one.unwrap(), other.unwrap()), ("ROLE".to_owned(), "ROLE".to_owned()));
        assert_eq!(home.refreshed(), 1);
    }

    #[tokio::test]
    // semantics: BUCKET-10
    async fn unwritable_token_is_kept_in_memory() {
        let cache = Arc::new(Mutex::new(PathBuf::new()));
        let gone = Arc::clone(&cache);
        let unwritable = move || {
            let cache = gone.lock().unwrap();
            std::fs::rename(&*cache, cache.with_extension("away")).unwrap();
            another()
        };
        let home = Home::new(&document("hush-old", PAST), "hush-new", Box::new(unwritable));
        let directory = home.file().parent().unwrap().to_owned();
        (*cache.lock().unwrap()).clone_from(&directory);
        assert_eq!(home.role().await.unwrap(), "ROLE");
        std::fs::rename(directory.with_extension("away"), &directory).unwrap();
        assert_eq!(home.read(), document("hush-old", PAST));
        assert_eq!(home.role().await.unwrap(), "ROLE");
        assert_eq!(home.refreshed(), 1);
        // `aws sso logout` applies to the token in memory, too.
        std::fs::remove_file(home.file()).unwrap();
        home.role().await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    // semantics: BUCKET-10
    async fn dropped_caller_loses_no_refreshed_token() {
        let home = Home::new(&document("hush-old", PAST), "hush-new", Box::new(another));
        let closed = home.amazon.gate.acquire().await.unwrap();
        {
            let mut requesting = std::pin::pin!(home.role());
            while home.refreshed() == 0 {
                assert!(futures::poll!(requesting.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
        }
        drop(closed);
        // It waits for the thread that writes.
        tokio::time::sleep(POLL_INTERVAL).await;
        assert_ne!(home.read(), document("hush-old", PAST));
        assert_eq!(home.role().await.unwrap(), "ROLE");
        assert_eq!(home.refreshed(), 1);
    }
}
