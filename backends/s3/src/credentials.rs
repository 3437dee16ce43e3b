//! Cached credentials, renewed before they expire.
//!
//! One background task renews them some minutes before they expire. Requests use the old ones
//! meanwhile. They wait only if none are valid. An origin may report credentials as expired early:
//! a clock is wrong, they were revoked, a file was rewritten. Then one fetch serves all requests
//! that were refused with them. Each request remembers the generation that it used.
//!
//! A source that is busy or unreachable is a transient failure. Its error has the wait until the
//! next attempt, so that callers retry when there is one. Reads retry by the layers' policy,
//! listings by their own. Only the first credentials are retried here.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use foreread_tier::{ErrorKind, TierError};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::retry::retry;

/// The time before expiry at which credentials are fetched again. Credentials with a shorter life
/// are fetched again after half of it.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// The pause after a fetch that failed or returned nothing new.
const FETCH_PAUSE: Duration = Duration::from_secs(5);

/// The timeout of a fetch: a metadata service, a token service, a process.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Credentials from their source.
pub(crate) struct LoadedCredential {
    pub(crate) credential: AwsCredential,
    /// `None` if the expiry is unknown.
    pub(crate) expires: Option<SystemTime>,
}

/// A source of credentials.
#[async_trait]
pub(crate) trait CredentialSource: fmt::Debug + Send + Sync + 'static {
    async fn load(&self) -> Result<LoadedCredential, TierError>;
}

/// The credentials of one origin.
pub(crate) struct Credentials(Arc<CredentialsInner>);

struct CredentialsInner {
    source: Box<dyn CredentialSource>,
    runtime: Handle,
    state: Mutex<RenewalState>,
    /// Locked by the caller that fetches.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct RenewalState {
    held: Option<CachedCredential>,
    /// The generation of the current credentials.
    generation: u64,
    /// Whether a background task fetches.
    background: bool,
    /// The time of the last fetch that failed or returned nothing new.
    last_unsuccessful: Option<Instant>,
    /// The error of the last fetch, if it failed.
    failure: Option<TierError>,
}

struct CachedCredential {
    credential: Arc<AwsCredential>,
    expires: Option<SystemTime>,
    /// The time from which they are fetched again.
    renew_from: Option<SystemTime>,
}

impl RenewalState {
    fn is_paused(&self) -> bool {
        self.last_unsuccessful.is_some_and(|since| since.elapsed() < FETCH_PAUSE)
    }

    /// The error of the last fetch. If it is transient, it has the time until the next attempt.
    fn failure(&self) -> Option<TierError> {
        let error = self.failure.clone()?;
        let left = self
            .last_unsuccessful
            .map_or(Duration::ZERO, |since| FETCH_PAUSE.saturating_sub(since.elapsed()));
        Some(if error.kind() == ErrorKind::Transient { error.with_retry_after(left) } else { error })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("source", &self.0.source).finish_non_exhaustive()
    }
}

impl CredentialsInner {
    fn lock(&self) -> MutexGuard<'_, RenewalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The credentials, if they are currently valid.
    fn good(&self) -> Option<Arc<AwsCredential>> {
        let state = self.lock();
        let held = state.held.as_ref()?;
        let good = held.expires.is_none_or(|expires| SystemTime::now() < expires);
        good.then(|| Arc::clone(&held.credential))
    }

    /// Fetches the credentials. Returns whether they are new. The caller holds `fetching`.
    async fn fetch(&self) -> Result<bool, TierError> {
        let loaded = match tokio::time::timeout(FETCH_TIMEOUT, self.source.load()).await {
            Ok(loaded) => loaded,
            Err(_) => {
                let why = format!("fetching credentials took more than {} s", FETCH_TIMEOUT.as_secs());
                Err(TierError::new(ErrorKind::Transient, "s3").with_detail(why))
            }
        };
        let mut state = self.lock();
        let loaded = loaded.inspect_err(|error| {
            state.last_unsuccessful = Some(Instant::now());
            state.failure = Some(error.clone());
        })?;
        let now = SystemTime::now();
        let renew_from = loaded.expires.map(|expires| {
            let left = expires.duration_since(now).unwrap_or_default();
            expires.checked_sub(RENEW_BEFORE.min(left / 2)).unwrap_or(now)
        });
        let new = state.held.as_ref().is_none_or(|held| *held.credential != loaded.credential);
        // Credentials that have already expired count as nothing new.
        let ended = loaded.expires.is_some_and(|expires| expires <= now);
        state.generation += u64::from(new);
        state.failure = None;
        state.last_unsuccessful = (!new || ended).then(Instant::now);
        state.held = Some(CachedCredential {
            credential: Arc::new(loaded.credential),
            expires: loaded.expires,
            renew_from,
        });
        Ok(new)
    }
}

impl Credentials {
    pub(crate) fn new(source: impl CredentialSource, runtime: Handle) -> Self {
        let fetching = tokio::sync::Mutex::new(());
        Self(Arc::new(CredentialsInner {
            source: Box::new(source),
            runtime,
            state: Mutex::default(),
            fetching,
        }))
    }

    /// The generation of the credentials that a request uses if it starts now.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Returns valid credentials. Fetches if there are none. A background task renews credentials
    /// that expire soon.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next caller fetches.
    pub(crate) async fn get(&self) -> Result<Arc<AwsCredential>, TierError> {
        {
            let mut state = self.0.lock();
            let idle = !state.background && !state.is_paused();
            if let Some(held) = &state.held {
                let now = SystemTime::now();
                let credential = Arc::clone(&held.credential);
                if held.renew_from.is_none_or(|renew_from| now < renew_from) {
                    return Ok(credential);
                }
                if held.expires.is_none_or(|expires| now < expires) {
                    if idle {
                        state.background = true;
                        self.0.runtime.spawn(renew_in_background(Arc::clone(&self.0)));
                    }
                    return Ok(credential);
                }
            }
        }
        let _turn = self.0.fetching.lock().await;
        if let Some(credential) = self.0.good() {
            return Ok(credential);
        }
        // Callers that waited for a failed fetch share its error. If each of them fetched, the last
        // of 64 would wait for 64 timeouts in a row.
        let paused = self.0.lock().is_paused();
        if !paused {
            // The error is stored for callers.
            drop(self.0.fetch().await);
        }
        self.0.good().ok_or_else(|| {
            let why = "the credentials that were found have expired already; get new ones";
            let ended = || TierError::new(ErrorKind::Expired, "s3").with_detail(why);
            self.0.lock().failure().unwrap_or_else(ended)
        })
    }

    /// Returns the first credentials. Transient failures are retried.
    ///
    /// # Cancel safety
    /// As [`get`](Self::get).
    pub(crate) async fn first(&self) -> Result<Arc<AwsCredential>, TierError> {
        let wait = |_, error: &TierError| {
            if error.kind() == ErrorKind::Transient {
                tracing::warn!(%error, "no credentials yet");
            }
            error.retry_after().unwrap_or(FETCH_PAUSE)
        };
        retry(|| self.get(), wait).await
    }

    /// Fetches after an origin has reported the credentials of `generation` as expired, unless
    /// another caller has fetched. Returns whether there are new ones.
    ///
    /// # Cancel safety
    /// As [`get`](Self::get).
    pub(crate) async fn renew(&self, generation: u64) -> Result<bool, TierError> {
        let _turn = self.0.fetching.lock().await;
        {
            let state = self.0.lock();
            if state.generation != generation {
                return Ok(true);
            }
            if state.is_paused() {
                return state.failure().map_or(Ok(false), Err);
            }
        }
        let fetched = self.0.fetch().await;
        fetched.map_err(|error| self.0.lock().failure().unwrap_or(error))
    }
}

async fn renew_in_background(inner: Arc<CredentialsInner>) {
    let turn = inner.fetching.lock().await;
    if let Err(error) = inner.fetch().await {
        tracing::warn!(%error, "the credentials expire soon and could not be renewed");
    }
    inner.lock().background = false;
    drop(turn);
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.get()
            .await
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::retry::ATTEMPTS;

    /// Numbered credentials with a given life.
    #[derive(Clone, Debug)]
    struct Numbered {
        loads: Arc<AtomicU64>,
        /// The life in seconds. 0 means unknown.
        life: Arc<AtomicU64>,
        /// Whether the number is always the same.
        fixed: bool,
        gate: Arc<tokio::sync::Semaphore>,
    }

    impl Default for Numbered {
        fn default() -> Self {
            let gate = Arc::new(tokio::sync::Semaphore::new(0));
            Self { loads: Arc::default(), life: Arc::default(), fixed: false, gate }
        }
    }

    #[async_trait]
    impl CredentialSource for Numbered {
        async fn load(&self) -> Result<LoadedCredential, TierError> {
            let number = self.loads.fetch_add(1, Ordering::SeqCst);
            if number > 0 {
                self.gate.acquire().await.unwrap().forget();
            }
            let life = self.life.load(Ordering::SeqCst);
            let key_id = format!("key{}", if self.fixed { 0 } else { number });
            let credential = AwsCredential { key_id, secret_key: "hush".into(), token: None };
            let expires = (life > 0).then(|| SystemTime::now() + Duration::from_secs(life));
            Ok(LoadedCredential { credential, expires })
        }
    }

    async fn key(credentials: &Credentials) -> String {
        credentials.get().await.unwrap().key_id.clone()
    }

    #[tokio::test]
    async fn concurrent_callers_cause_one_fetch() {
        let source = Numbered::default();
        let credentials = Credentials::new(source.clone(), Handle::current());
        let keys = futures::future::join_all((0..50).map(|_| key(&credentials))).await;
        assert!(keys.iter().all(|key| key == "key0"));
        assert_eq!(source.loads.load(Ordering::SeqCst), 1);
        assert!(!format!("{credentials:?}").contains("key0") && !format!("{credentials:?}").contains("hush"));
    }

    /// A token service that always fails, once the test permits it.
    #[derive(Clone, Debug)]
    struct Failing {
        loads: Arc<AtomicU64>,
        gate: Arc<tokio::sync::Semaphore>,
    }

    #[async_trait]
    impl CredentialSource for Failing {
        async fn load(&self) -> Result<LoadedCredential, TierError> {
            self.loads.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            Err(TierError::new(ErrorKind::Transient, "s3").with_detail("the token service is down"))
        }
    }

    #[tokio::test]
    // semantics: BUCKET-12
    async fn failing_fetch_is_shared_by_all_waiters() {
        let source = Failing { loads: Arc::default(), gate: Arc::new(tokio::sync::Semaphore::new(0)) };
        let credentials = Credentials::new(source.clone(), Handle::current());
        let waiting = futures::future::join_all((0..64).map(|_| credentials.get()));
        let release = async {
            tokio::task::yield_now().await;
            source.gate.add_permits(64);
        };
        let (answers, ()) = tokio::join!(waiting, release);
        for answer in answers {
            let error = answer.unwrap_err();
            assert!(error.to_string().contains("the token service is down"), "{error}");
        }
        assert_eq!(source.loads.load(Ordering::SeqCst), 1);
        let renewed = credentials.renew(credentials.generation()).await;
        assert!(renewed.unwrap_err().to_string().contains("the token service is down"));
        assert_eq!(source.loads.load(Ordering::SeqCst), 1);
    }

    /// A source that fails a given number of times with this kind, before it returns credentials.
    #[derive(Clone, Debug)]
    struct Late {
        failures: u64,
        kind: ErrorKind,
        loads: Arc<AtomicU64>,
    }

    #[async_trait]
    impl CredentialSource for Late {
        async fn load(&self) -> Result<LoadedCredential, TierError> {
            if self.loads.fetch_add(1, Ordering::SeqCst) < self.failures {
                return Err(TierError::new(self.kind, "s3"));
            }
            let credential = AwsCredential { key_id: "key".into(), secret_key: "s".into(), token: None };
            Ok(LoadedCredential { credential, expires: None })
        }
    }

    #[tokio::test(start_paused = true)]
    // semantics: BUCKET-11
    async fn first_credentials_are_retried_on_transient_failures() {
        for (failures, kind, loads, good) in [
            (3, ErrorKind::Transient, 4, true),
            (1_000, ErrorKind::Transient, u64::from(ATTEMPTS), false),
            (3, ErrorKind::Denied, 1, false),
            (3, ErrorKind::Expired, 1, false),
        ] {
            let source = Late { failures, kind, loads: Arc::default() };
            let credentials = Credentials::new(source.clone(), Handle::current());
            let first = credentials.first().await;
            assert_eq!(source.loads.load(Ordering::SeqCst), loads, "{kind:?}");
            match first {
                Ok(credential) => assert!(good && credential.key_id == "key"),
                Err(error) => assert!(!good && error.kind() == kind, "{error}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    // semantics: BUCKET-11
    async fn transient_failure_has_the_wait_until_the_next_attempt() {
        let source = Late { failures: 2, kind: ErrorKind::Transient, loads: Arc::default() };
        let credentials = Credentials::new(source.clone(), Handle::current());
        // The second caller shares the failure of the first, and its time.
        let seconds = |error: TierError| error.retry_after().map(|wait| wait.as_secs_f64().round());
        for (waited, left) in [(0, 5.0), (2, 3.0)] {
            tokio::time::sleep(Duration::from_secs(waited)).await;
            assert_eq!(credentials.get().await.map(|_| ()).map_err(seconds), Err(Some(left)));
        }
        assert_eq!(source.loads.load(Ordering::SeqCst), 1);
        tokio::time::sleep(FETCH_PAUSE).await;
        let renewed = credentials.renew(credentials.generation()).await;
        assert_eq!(renewed.map_err(seconds), Err(Some(5.0)));
        tokio::time::sleep(FETCH_PAUSE).await;
        assert!(credentials.renew(credentials.generation()).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    // semantics: BUCKET-8
    async fn reads_use_old_credentials_while_one_task_fetches() {
        let source = Numbered::default();
        source.life.store(400, Ordering::SeqCst);
        let credentials = Credentials::new(source.clone(), Handle::current());
        assert_eq!(key(&credentials).await, "key0");
        if let Some(CachedCredential { expires, renew_from, .. }) = &mut credentials.0.lock().held {
            // Fetched again after half of a short life, which is now.
            let before_the_end = expires.unwrap().duration_since(renew_from.unwrap()).unwrap();
            assert!((1..=200).contains(&before_the_end.as_secs()), "{before_the_end:?}");
            *renew_from = Some(SystemTime::now());
        }
        source.life.store(3600, Ordering::SeqCst);
        assert_eq!(key(&credentials).await, "key0");
        source.gate.add_permits(1);
        // The task ends before time passes.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..100 {
            assert_eq!(key(&credentials).await, "key1");
        }
        assert_eq!(source.loads.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn requests_refused_together_share_one_fetch() {
        let source = Numbered::default();
        source.gate.add_permits(100);
        let credentials = Credentials::new(source.clone(), Handle::current());
        assert_eq!(key(&credentials).await, "key0");
        let generation = credentials.generation();
        let renewed = futures::future::join_all((0..50).map(|_| credentials.renew(generation))).await;
        assert!(renewed.into_iter().all(|renewed| renewed.unwrap()));
        assert_eq!(key(&credentials).await, "key1");
        assert_eq!(source.loads.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn unchanged_credentials_are_not_fetched_repeatedly() {
        let source = Numbered { fixed: true, ..Numbered::default() };
        source.gate.add_permits(100);
        let credentials = Credentials::new(source.clone(), Handle::current());
        assert_eq!(key(&credentials).await, "key0");
        for _ in 0..10 {
            assert!(!credentials.renew(credentials.generation()).await.unwrap());
        }
        assert_eq!(source.loads.load(Ordering::SeqCst), 2);
    }
}
