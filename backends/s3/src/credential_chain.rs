//! The sources of AWS credentials, in the order of Amazon's tools.
//!
//! The order is: variables, a web identity, the profile (keys, a role that it assumes, single
//! sign-on, a process), the container, the machine. Each is used only if it is configured. The last
//! is tried if none is.
//!
//! A configured source that fails ends the search with its error. The next source would be another
//! identity. Requests would be signed with the wrong identity, and errors would name its
//! permissions.
//!
//! The error is permanent, unless a service was busy or unreachable. Then the caller retries.
//!
//! The providers are `reqsign`'s, each used alone. Its own chain treats a failed provider as an
//! unconfigured one. It supports neither roles in profiles nor sessions of single sign-on (see
//! `sso.rs`).

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use foreread_tier::{ErrorKind, TierError};
use futures::future::BoxFuture;
use object_store::aws::AwsCredential;
use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential,
    ECSCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider, RequestSigner,
    StaticCredentialProvider,
};
use reqsign_core::{CommandExecute, CommandOutput, Context, FileRead, HttpSend, ProvideCredential, Signer};

use crate::Environment;
use crate::credentials::{CredentialSource, LoadedCredential};
use crate::profile::Profiles;
use crate::shell_words::split;
use crate::source_failure::{SourceFailure, is_busy};
use crate::sso::{SsoProfile, SsoTokens};

/// The maximum length of a chain of roles that assume each other.
const MAX_ROLE_DEPTH: usize = 8;

type SourceResult = Result<Option<Credential>, SourceFailure>;

/// The credential sources in order.
pub(crate) struct CredentialChain {
    environment: Environment,
    context: Context,
    profile: String,
    /// Whether the options name the profile, so that it precedes the variables.
    profile_first: bool,
    region: String,
    tokens: SsoTokens,
    /// Whether the machine's metadata service has returned credentials before.
    machine: AtomicBool,
}

impl fmt::Debug for CredentialChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialChain").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl CredentialChain {
    pub(crate) fn new(
        environment: Environment,
        http: impl HttpSend,
        profile: String,
        profile_first: bool,
        region: String,
    ) -> Self {
        let context =
            Context::new().with_env(environment.clone()).with_http_send(http).with_file_read(TokenFiles);
        let (tokens, machine) = (SsoTokens::of_process(), AtomicBool::new(false));
        Self { environment, context, profile, profile_first, region, tokens, machine }
    }

    fn of_environment(&self) -> SourceResult {
        let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
        keys(names, |name| self.environment.get(name))
    }

    /// The result of a configured source. No credentials are an error.
    async fn load_from(
        &self,
        what: &str,
        provider: impl ProvideCredential<Credential = Credential>,
    ) -> SourceResult {
        match provider.provide_credential(&self.context).await {
            Ok(None) => {
                Err(SourceFailure::permanent(format!("{what} gives none: its configuration is incomplete")))
            }
            Ok(found) => Ok(found),
            Err(error) => Err(SourceFailure::of(&error).within(what)),
        }
    }

    async fn of_web_identity(&self) -> SourceResult {
        if self.environment.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_none() {
            return Ok(None);
        }
        let provider = AssumeRoleWithWebIdentityCredentialProvider::new().with_region(self.region.clone());
        self.load_from("the web identity", provider).await
    }

    async fn of_container(&self) -> SourceResult {
        let variables = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
        match self.environment.first(&variables) {
            Some(_) => self.load_from("the container's role", ECSCredentialProvider::new()).await,
            None => Ok(None),
        }
    }

    /// The credentials of the machine's metadata service. Most machines have none. So an
    /// unreachable service is retried only if it is configured or has returned credentials before.
    async fn of_machine(&self, configured: bool) -> SourceResult {
        // The library supports only this spelling.
        let disabled = self.environment.get("AWS_EC2_METADATA_DISABLED");
        if disabled.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let error = match IMDSv2CredentialProvider::new().provide_credential(&self.context).await {
            Ok(found) => {
                self.machine.fetch_or(found.is_some(), Ordering::Relaxed);
                return Ok(found);
            }
            Err(error) => error,
        };
        let mut failure = SourceFailure::of(&error).within("the machine's role");
        failure.transient &= configured || is_busy(&error) || self.machine.load(Ordering::Relaxed);
        Err(failure)
    }

    async fn profiles(&self) -> Result<Profiles, SourceFailure> {
        let environment = self.environment.clone();
        match tokio::task::spawn_blocking(move || Profiles::read(&environment)).await {
            Ok(profiles) => profiles.map_err(|error| SourceFailure::permanent(error.to_string())),
            Err(error) => Err(SourceFailure::permanent(error.to_string())),
        }
    }

    async fn of_profile(&self) -> SourceResult {
        let profiles = self.profiles().await?;
        self.of_profile_named(&profiles, &self.profile, MAX_ROLE_DEPTH).await
    }

    fn of_profile_named<'a>(
        &'a self,
        profiles: &'a Profiles,
        name: &'a str,
        depth: usize,
    ) -> BoxFuture<'a, SourceResult> {
        Box::pin(async move {
            let get = |key| profiles.get(name, key);
            // A profile may be its own source: then its keys assume its role.
            if let Some(role) = get("role_arn").filter(|_| depth > 0) {
                return self.assume(profiles, name, role, depth).await;
            }
            let names = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
            if let Some(found) = keys(names, |key| profiles.get(name, key))
                .map_err(|failure| failure.within(format!("profile `{name}`")))?
            {
                return Ok(Some(found));
            }
            if get("sso_account_id").or(get("sso_role_name")).is_some() {
                return self.of_single_sign_on(profiles, name).await;
            }
            match get("credential_process") {
                Some(command) => self.of_process(command).await,
                None => Ok(None),
            }
        })
    }

    /// Credentials of a role, from the token that `aws sso login` has stored.
    async fn of_single_sign_on(&self, profiles: &Profiles, name: &str) -> SourceResult {
        let failed = |failure: SourceFailure| failure.within(format!("single sign-on of profile `{name}`"));
        let session = profiles.get(name, "sso_session");
        let portal = |key| match session {
            Some(session) => profiles.of_session(session, key),
            None => profiles.get(name, key),
        };
        let need = |key: &str, value: Option<&str>| {
            let missing = || failed(SourceFailure::permanent(format!("~/.aws/config has no {key}")));
            value.map(str::to_owned).ok_or_else(missing)
        };
        let start_url = need("sso_start_url", portal("sso_start_url"))?;
        let portal = SsoProfile {
            profile: name.to_owned(),
            account: need("sso_account_id", profiles.get(name, "sso_account_id"))?,
            role: need("sso_role_name", profiles.get(name, "sso_role_name"))?,
            region: need("sso_region", portal("sso_region"))?,
            session: session.map_or(start_url, str::to_owned),
        };
        self.tokens.credential(&self.context, &portal).await.map(Some).map_err(failed)
    }

    async fn of_process(&self, command: &str) -> SourceResult {
        let failed = |why: &str| SourceFailure::permanent(format!("credential_process: {why}"));
        let words = split(command).map_err(failed)?;
        let Some((program, arguments)) = words.split_first() else {
            return Err(failed("it is empty"));
        };
        // The library splits at every blank, and logs the command. So it gets one word as a
        // substitute for the command.
        let context = self
            .context
            .clone()
            .with_command_execute(ProcessCommand { program: program.clone(), arguments: arguments.to_vec() });
        let provider = ProcessCredentialProvider::new().with_command("credential_process");
        let found = provider.provide_credential(&context).await;
        let found = found.map_err(|error| SourceFailure::of(&error).within("credential_process"))?;
        found.map(Some).ok_or_else(|| failed("it printed none"))
    }

    /// Credentials of a role, from credentials that may assume it.
    async fn assume(&self, profiles: &Profiles, name: &str, role: &str, depth: usize) -> SourceResult {
        let get = |key| profiles.get(name, key);
        let session = get("role_session_name").unwrap_or("foreread").to_owned();
        if let Some(file) = get("web_identity_token_file") {
            let provider = AssumeRoleWithWebIdentityCredentialProvider::new()
                .with_role_arn(role.to_owned())
                .with_web_identity_token_file(PathBuf::from(file))
                .with_role_session_name(session)
                .with_region(self.region.clone());
            return self.load_from("the role", provider).await;
        }
        let base = match (get("source_profile"), get("credential_source")) {
            (Some(source), _) if source == name => self.of_profile_named(profiles, name, 0).await,
            (Some(source), _) if !profiles.has(source) => {
                Err(SourceFailure::permanent(format!("profile `{source}` does not exist")))
            }
            (Some(source), _) => self.of_profile_named(profiles, source, depth - 1).await,
            (None, Some("Environment")) => self.of_environment(),
            (None, Some("EcsContainer")) => self.of_container().await,
            (None, Some("Ec2InstanceMetadata")) => self.of_machine(true).await,
            (None, _) => self.of_profile_named(profiles, name, 0).await,
        };
        let assumes = || format!("credentials for the role {role}");
        let Some(base) = base.map_err(|failure| failure.within(assumes()))? else {
            return Err(SourceFailure::permanent(format!(
                "the role {role}: profile `{name}` names no credentials that assume it (source_profile)"
            )));
        };
        let mut source = StaticCredentialProvider::new(&base.access_key_id, &base.secret_access_key);
        if let Some(token) = &base.session_token {
            source = source.with_session_token(token);
        }
        let signer = Signer::new(self.context.clone(), source, RequestSigner::new("sts", &self.region));
        let mut provider = AssumeRoleCredentialProvider::new(role.to_owned(), signer)
            .with_role_session_name(session)
            .with_region(self.region.clone())
            .with_regional_sts_endpoint();
        if let Some(id) = get("external_id") {
            provider = provider.with_external_id(id.to_owned());
        }
        if let Some(seconds) = get("duration_seconds").and_then(|text| text.parse().ok()) {
            provider = provider.with_duration_seconds(seconds);
        }
        self.load_from(&format!("the role {role}"), provider).await
    }
}

#[async_trait]
impl CredentialSource for CredentialChain {
    async fn load(&self) -> Result<LoadedCredential, TierError> {
        for step in 0..5 {
            let requested = match step {
                0 if self.profile_first => self.of_profile().await,
                1 => self.of_environment(),
                2 => self.of_web_identity().await,
                3 if !self.profile_first => self.of_profile().await,
                4 => self.of_container().await,
                _ => Ok(None),
            };
            match requested {
                Ok(Some(found)) => return Ok(loaded(found)),
                // Credentials of another source do not replace the profile that the options name.
                Ok(None) if step == 0 && self.profile_first => return Err(nothing(None)),
                Ok(None) => {}
                Err(failure) => return Err(failed(failure)),
            }
        }
        match self.of_machine(false).await {
            Ok(Some(found)) => Ok(loaded(found)),
            Ok(None) => Err(nothing(None)),
            // The service is not configured, and most machines have none.
            Err(failure) => Err(nothing(Some(failure))),
        }
    }
}

fn loaded(found: Credential) -> LoadedCredential {
    let expires = found.expires_in.map(|time| time.as_system_time());
    let credential = AwsCredential {
        key_id: found.access_key_id,
        secret_key: found.secret_access_key,
        token: found.session_token,
    };
    LoadedCredential { credential, expires }
}

/// The error of a configured source.
fn failed(failure: SourceFailure) -> TierError {
    let remedy = if failure.transient { "" } else { "correct that source or remove it: " };
    let why = format!("{}; {remedy}no other is used instead", failure.why);
    TierError::new(failure.kind(), "s3").with_detail(why)
}

/// The error if no source is configured.
fn nothing(machine: Option<SourceFailure>) -> TierError {
    let kind = machine.as_ref().map_or(ErrorKind::Denied, SourceFailure::kind);
    let tried = machine.map(|failure| format!(" ({})", failure.why)).unwrap_or_default();
    let why = format!(
        "no credentials were found{tried}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, \
         or AWS_SKIP_SIGNATURE=true for a public bucket"
    );
    TierError::new(kind, "s3").with_detail(why)
}

/// The keys under these names. One without the other is an error.
fn keys<'a>(names: [&str; 3], get: impl Fn(&str) -> Option<&'a str>) -> SourceResult {
    let [id, secret, token] = names;
    match (get(id), get(secret)) {
        (None, None) => Ok(None),
        (Some(access), Some(key)) => Ok(Some(Credential {
            access_key_id: access.to_owned(),
            secret_access_key: key.to_owned(),
            session_token: get(token).map(str::to_owned),
            expires_in: None,
        })),
        (Some(_), None) => Err(SourceFailure::permanent(format!("{id} is set and {secret} is not"))),
        (None, Some(_)) => Err(SourceFailure::permanent(format!("{secret} is set and {id} is not"))),
    }
}

/// Reads small files: tokens, profiles.
#[derive(Clone, Copy, Debug)]
struct TokenFiles;

impl FileRead for TokenFiles {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        let from = path.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read(from)).await;
        let read = read.map_err(|error| reqsign_core::Error::unexpected(error.to_string()))?;
        read.map_err(|error| reqsign_core::Error::unexpected(format!("{path} cannot be read: {error}")))
    }
}

/// Runs the configured credential process, whatever command it is given.
#[derive(Clone)]
struct ProcessCommand {
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for ProcessCommand {
    /// Prints no arguments, because they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CommandExecute for ProcessCommand {
    async fn command_execute<'a>(
        &'a self,
        _: &'a str,
        _: &'a [&'a str],
    ) -> reqsign_core::Result<CommandOutput> {
        let program = &self.program;
        let mut command = tokio::process::Command::new(program);
        command.args(&self.arguments).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = command.output().await;
        let output = output
            .map_err(|error| reqsign_core::Error::unexpected(format!("{program} cannot be run: {error}")))?;
        let status = output.status.code().unwrap_or(-1);
        // Its error output may contain secrets and would appear in messages.
        Ok(CommandOutput { status, stdout: output.stdout, stderr: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;

    use super::*;

    /// The parts of Amazon's services that credentials need, and the requests to them.
    #[derive(Clone, Debug, Default)]
    struct Amazon(Arc<Mutex<Vec<String>>>, Arc<Mutex<Option<Trouble>>>);

    /// The failure that the services return instead, as the client reports it.
    #[derive(Clone, Copy, Debug)]
    enum Trouble {
        Busy,
        Unreached,
        Forbidden,
    }

    const STS: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials>\
        <AccessKeyId>ROLEROLEROLEROLE</AccessKeyId>\
        <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
        <Expiration>2100-01-01T00:00:00Z</Expiration>\
        </Credentials></AssumeRoleResult></AssumeRoleResponse>";
    const WEB: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
        <AccessKeyId>WEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
        <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
        </AssumeRoleWithWebIdentityResponse>";

    impl HttpSend for Amazon {
        async fn http_send(
            &self,
            request: http::Request<Bytes>,
        ) -> reqsign_core::Result<http::Response<Bytes>> {
            let uri = request.uri().to_string();
            let body = String::from_utf8_lossy(request.body()).into_owned();
            let signed = request.headers().get("authorization").map_or("", |value| value.to_str().unwrap());
            let by = signed.split_once("Credential=").map_or("", |(_, rest)| rest.split('/').next().unwrap());
            self.0.lock().unwrap().push(format!("{uri} {by}"));
            match *self.1.lock().unwrap() {
                Some(Trouble::Busy) => return Err(reqsign_core::Error::rate_limited("Throttling (400)")),
                Some(Trouble::Unreached) => {
                    return Err(reqsign_core::Error::unexpected("connection refused").set_retryable(true));
                }
                Some(Trouble::Forbidden) => {
                    return Ok(http::Response::builder().status(403).body(Bytes::new()).unwrap());
                }
                None => {}
            }
            let json = |id: &str| {
                format!(
                    "{{\"Code\":\"Success\",\"AccessKeyId\":\"{id}\",\"SecretAccessKey\":\"s\",\
                      \"Token\":\"t\",\
                     \"Expiration\":\"2100-01-01T00:00:00Z\"}}"
                )
            };
            let answer = match &uri {
                uri if uri.contains("/task") => json("CONTAINER"),
                uri if uri.contains("portal.sso.") => "{\"roleCredentials\": {\"accessKeyId\": \"SSO\", \
                    \"secretAccessKey\": \"s\", \"sessionToken\": \"t\", \"expiration\": 4102444800000}}"
                    .into(),
                uri if uri.ends_with("/api/token") => "token".into(),
                uri if uri.ends_with("/security-credentials/") => "worker".into(),
                uri if uri.ends_with("/security-credentials/worker") => json("MACHINE"),
                uri if format!("{uri}{body}").contains("WebIdentity") => WEB.into(),
                uri if uri.contains("sts.") => STS.into(),
                uri => panic!("{uri}"),
            };
            Ok(http::Response::new(Bytes::from(answer)))
        }
    }

    /// A home directory with these files below `.aws`.
    fn home(config: &str, credentials: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        home
    }

    async fn load(
        environment: Environment,
        profile: &str,
        first: bool,
    ) -> (Result<LoadedCredential, TierError>, Vec<String>) {
        let amazon = Amazon::default();
        let chain =
            CredentialChain::new(environment, amazon.clone(), profile.into(), first, "eu-west-1".into());
        let loaded = chain.load().await;
        let requested = amazon.0.lock().unwrap().clone();
        (loaded, requested)
    }

    async fn key(environment: Environment, profile: &str, first: bool) -> String {
        let (loaded, _) = load(environment, profile, first).await;
        loaded.map(|loaded| loaded.credential.key_id).unwrap()
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "s")];

    #[tokio::test]
    // semantics: BUCKET-8
    async fn credential_sources_are_tried_in_order() {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "identity").unwrap();
        let web = [
            ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token.path().to_str().unwrap()),
        ];
        let container = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/task")];
        let home = home("", "[default]\naws_access_key_id = PROFILE\naws_secret_access_key = s\n");
        let all = Environment::new(KEYS.into_iter().chain(web).chain(container)).with_home(home.path());
        assert_eq!(key(all.clone(), "default", false).await, "ENV");
        assert_eq!(key(all, "default", true).await, "PROFILE");
        let less = Environment::new(web.into_iter().chain(container)).with_home(home.path());
        assert_eq!(key(less, "default", false).await, "WEB");
        assert_eq!(
            key(Environment::new(container).with_home(home.path()), "default", false).await,
            "PROFILE"
        );
        assert_eq!(key(Environment::new(container), "default", false).await, "CONTAINER");
        let (loaded, requested) = load(Environment::default(), "default", false).await;
        let loaded = loaded.unwrap();
        assert_eq!(
            (loaded.credential.key_id.as_str(), loaded.credential.token.as_deref()),
            ("MACHINE", Some("t"))
        );
        assert!(
            loaded.expires.is_some()
                && requested.iter().all(|requested| requested.contains("169.254.169.254")),
            "{requested:?}"
        );
    }

    #[tokio::test]
    async fn profile_assumes_a_role_with_keys_of_another() {
        let config = "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n\
                      [profile nobody]\nrole_arn = arn:aws:iam::123456789012:role/r\n\
                      [profile circle]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = \
                      circle\n";
        let home = home(config, "[base]\naws_access_key_id = BASE\naws_secret_access_key = s\n");
        let environment = Environment::new([("AWS_EC2_METADATA_DISABLED", "true")]).with_home(home.path());
        let (loaded, requested) = load(environment.clone(), "work", true).await;
        assert_eq!(loaded.unwrap().credential.key_id, "ROLEROLEROLEROLE");
        assert!(
            requested.len() == 1
                && requested[0].contains("sts.eu-west-1.")
                && requested[0].ends_with(" BASE"),
            "{requested:?}"
        );
        for profile in ["nobody", "circle"] {
            let error = load(environment.clone(), profile, true).await.0.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("source_profile") && error.contains("role/r"), "{error}");
        }
    }

    #[tokio::test]
    // semantics: BUCKET-13
    async fn credential_process_is_run() {
        let home = home("", "");
        let script = home.path().join("a script");
        let output = "{\"Version\": 1, \"AccessKeyId\": \"PROCESS\", \"SecretAccessKey\": \"s\"}";
        std::fs::write(&script, output).unwrap();
        let environment = Environment::default().with_home(home.path());
        let write = |command: String| {
            let config = format!("[default]\ncredential_process = {command}\n");
            std::fs::write(home.path().join(".aws/config"), config).unwrap();
        };
        let path = script.display();
        for command in
            [format!("cat '{path}'"), format!("\"cat\" \"{path}\""), format!("sh -c 'cat \"$0\"' '{path}'")]
        {
            write(command);
            assert_eq!(key(environment.clone(), "default", false).await, "PROCESS");
        }
        let quiet = Environment::new([("AWS_EC2_METADATA_DISABLED", "true")]).with_home(home.path());
        write("cat 'hush".to_owned());
        let error = load(quiet, "default", false).await.0.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("a quote is not closed") && !error.contains("hush"), "{error}");
    }

    /// The files that `aws configure sso` writes and the token that `aws sso login` stores.
    fn single_sign_on(expires: &str) -> tempfile::TempDir {
        let config = "[sso-session corp]\nsso_region = eu-central-1\nsso_start_url = \
                      https://corp.example.org/start\n\
                      [profile train]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = \
                      Reader\n\
                      [profile old]\nsso_region = eu-central-1\nsso_start_url = \
                      https://corp.example.org/start\n\
                      sso_account_id = 123456789012\nsso_role_name = Reader\n\
                      [profile half]\nsso_session = gone\nsso_account_id = 123456789012\nsso_role_name = \
                      Reader\n";
        let home = home(config, "");
        let cache = home.path().join(".aws/sso/cache");
        std::fs::create_dir_all(&cache).unwrap();
        let token = format!("{{\"accessToken\": \"hush\", \"expiresAt\": \"{expires}\"}}");
        for name in ["corp", "https://corp.example.org/start"] {
            let file = cache.join(format!("{}.json", reqsign_core::hash::hex_sha1(name.as_bytes())));
            std::fs::write(file, &token).unwrap();
        }
        home
    }

    #[tokio::test]
    // semantics: BUCKET-9
    async fn sso_session_profile_gives_its_role() {
        let home = single_sign_on("2100-01-01T00:00:00Z");
        for profile in ["train", "old"] {
            let environment = Environment::default().with_home(home.path());
            let (loaded, requested) = load(environment, profile, false).await;
            assert_eq!(loaded.unwrap().credential.key_id, "SSO", "{profile}");
            assert!(
                requested.len() == 1
                    && requested[0].starts_with("https://portal.sso.eu-central-1.amazonaws.com/")
                    && requested[0].contains("role_name=Reader&account_id=123456789012"),
                "{requested:?}"
            );
        }
    }

    #[tokio::test]
    // semantics: BUCKET-9
    async fn expired_sso_token_names_the_command_and_ends_the_search() {
        let home = single_sign_on("2020-01-01T00:00:00Z");
        for (profile, expected) in
            [("train", "aws sso login --profile train"), ("old", "aws sso login"), ("half", "sso_start_url")]
        {
            for first in [false, true] {
                let environment = Environment::default().with_home(home.path());
                let (loaded, requested) = load(environment, profile, first).await;
                let error = loaded.map(|_| ()).unwrap_err();
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Denied);
                assert!(
                    text.contains(expected) && text.contains(profile) && !text.contains("hush"),
                    "{text}"
                );
                assert!(requested.is_empty(), "the machine's role was requested: {requested:?}");
            }
        }
    }

    #[tokio::test]
    // semantics: BUCKET-11
    async fn busy_or_unreached_source_is_a_transient_failure() {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "identity").unwrap();
        let (role, path) = ("arn:aws:iam::123456789012:role/r", token.path().to_str().unwrap());
        let sso = single_sign_on("2100-01-01T00:00:00Z");
        let assumes = home(
            &format!("[default]\nrole_arn = {role}\nsource_profile = base\n"),
            "[base]\naws_access_key_id = BASE\naws_secret_access_key = s\n",
        );
        let machine =
            home(&format!("[default]\nrole_arn = {role}\ncredential_source = Ec2InstanceMetadata\n"), "");
        let nowhere = home("", "");
        for (variables, home, profile) in [
            (vec![("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/task")], nowhere.path(), "default"),
            (vec![("AWS_ROLE_ARN", role), ("AWS_WEB_IDENTITY_TOKEN_FILE", path)], nowhere.path(), "default"),
            (vec![], sso.path(), "train"),
            (vec![], assumes.path(), "default"),
            (vec![], machine.path(), "default"),
        ] {
            let environment = Environment::new(variables).with_home(home);
            for (trouble, kind) in [
                (Trouble::Busy, ErrorKind::Transient),
                (Trouble::Unreached, ErrorKind::Transient),
                (Trouble::Forbidden, ErrorKind::Denied),
            ] {
                let amazon = Amazon::default();
                *amazon.1.lock().unwrap() = Some(trouble);
                let chain = CredentialChain::new(
                    environment.clone(),
                    amazon.clone(),
                    profile.into(),
                    false,
                    "eu-west-1".into(),
                );
                let error = chain.load().await.map(|_| ()).unwrap_err();
                assert_eq!(error.kind(), kind, "{trouble:?}: {error}");
                assert!(error.to_string().contains("no other is used instead"), "{error}");
                assert_eq!(amazon.0.lock().unwrap().len(), 1, "another source was used");
            }
        }
    }

    #[tokio::test]
    // semantics: BUCKET-11
    async fn unreached_machine_role_is_retried_if_it_worked_before() {
        let amazon = Amazon::default();
        let chain = CredentialChain::new(
            Environment::default(),
            amazon.clone(),
            "default".into(),
            false,
            "eu-west-1".into(),
        );
        let load = async |trouble| {
            *amazon.1.lock().unwrap() = trouble;
            chain.load().await.map(|_| ()).map_err(|error| error.kind())
        };
        // Most machines have no metadata service.
        assert_eq!(load(Some(Trouble::Unreached)).await, Err(ErrorKind::Denied));
        assert_eq!(load(Some(Trouble::Busy)).await, Err(ErrorKind::Transient));
        assert_eq!(load(None).await, Ok(()));
        assert_eq!(load(Some(Trouble::Unreached)).await, Err(ErrorKind::Transient));
        assert_eq!(load(Some(Trouble::Forbidden)).await, Err(ErrorKind::Denied));
    }

    #[tokio::test]
    // semantics: BUCKET-9
    async fn failing_source_ends_the_search() {
        let role = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/task");
        let process = home("[default]\ncredential_process = /no/such/program\n", "");
        let half = home("", "[default]\naws_access_key_id = PROFILE\n");
        for (variables, home, expected) in [
            (vec![], process.path(), "/no/such/program"),
            (vec![], half.path(), "aws_secret_access_key"),
            (vec![("AWS_ACCESS_KEY_ID", "ENV")], half.path(), "AWS_SECRET_ACCESS_KEY is not"),
            (vec![("AWS_SECRET_ACCESS_KEY", "hush")], half.path(), "AWS_ACCESS_KEY_ID is not"),
            (vec![("AWS_WEB_IDENTITY_TOKEN_FILE", "/no/such/token")], half.path(), "the web identity"),
        ] {
            let environment = Environment::new(variables.into_iter().chain([role])).with_home(home);
            let (loaded, requested) = load(environment, "default", false).await;
            let text = loaded.map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(expected) && !text.contains('\n') && !text.contains("hush"), "{text}");
            assert!(requested.is_empty(), "another source was used: {requested:?}");
        }
    }

    #[tokio::test]
    async fn missing_credentials_error_names_the_remedies() {
        let environment = Environment::new([("AWS_EC2_METADATA_DISABLED", "TRUE")]);
        let error = load(environment, "default", false).await.0.map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Denied);
        for part in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SKIP_SIGNATURE=true"] {
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
        }
    }
}
