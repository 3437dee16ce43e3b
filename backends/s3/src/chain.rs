//! Where Amazon's tools look for credentials, in their order.
//!
//! Variables; a web identity; the profile (keys, a role that it assumes, single sign-on, a process); the container; the
//! machine. Each is asked only if something says that it is there, but for the last, which is asked when nothing else
//! has answered. What fails is remembered, so that the error at the end says why and not only that there is nothing.
//!
//! The providers are `reqsign`'s, each on its own: its chain takes a provider that fails for one that has nothing, and
//! knows no roles in profiles.

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use foreread_tier::{ErrorKind, TierError};
use futures::future::BoxFuture;
use object_store::aws::AwsCredential;
use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential,
    ECSCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider, RequestSigner,
    SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_core::{CommandExecute, CommandOutput, Context, FileRead, HttpSend, ProvideCredential, Signer};

use crate::Environment;
use crate::credentials::{Loaded, Source};
use crate::profile::Profiles;
use crate::words::split;

/// Roles that are assumed to assume roles, at most.
const DEPTH: usize = 8;

type Found = Result<Option<Credential>, String>;

/// The chain.
pub(crate) struct Chain {
    environment: Environment,
    context: Context,
    profile: String,
    /// Whether the profile was asked for in the options, so that it goes before the variables.
    profile_first: bool,
    region: String,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl Chain {
    pub(crate) fn new(
        environment: Environment,
        http: impl HttpSend,
        profile: String,
        profile_first: bool,
        region: String,
    ) -> Self {
        let context = Context::new().with_env(environment.clone()).with_http_send(http).with_file_read(Files);
        Self { environment, context, profile, profile_first, region }
    }

    fn of_environment(&self) -> Found {
        let get = |name| self.environment.get(name).map(str::to_owned);
        let (Some(access_key_id), Some(secret_access_key)) =
            (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"))
        else {
            return Ok(None);
        };
        let session_token = get("AWS_SESSION_TOKEN");
        Ok(Some(Credential { access_key_id, secret_access_key, session_token, expires_in: None }))
    }

    async fn ask(&self, what: &str, provider: impl ProvideCredential<Credential = Credential>) -> Found {
        provider
            .provide_credential(&self.context)
            .await
            .map_err(|error| format!("{what}: {}", one_line(&error)))
    }

    async fn of_web_identity(&self) -> Found {
        if self.environment.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_none() {
            return Ok(None);
        }
        let provider = AssumeRoleWithWebIdentityCredentialProvider::new().with_region(self.region.clone());
        self.ask("the web identity", provider).await
    }

    async fn of_container(&self) -> Found {
        let variables = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
        match self.environment.first(&variables) {
            Some(_) => self.ask("the container's role", ECSCredentialProvider::new()).await,
            None => Ok(None),
        }
    }

    async fn of_machine(&self) -> Found {
        // The library knows this spelling alone.
        let disabled = self.environment.get("AWS_EC2_METADATA_DISABLED");
        if disabled.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        self.ask("the machine's role", IMDSv2CredentialProvider::new()).await
    }

    async fn profiles(&self) -> Result<Profiles, String> {
        let environment = self.environment.clone();
        match tokio::task::spawn_blocking(move || Profiles::read(&environment)).await {
            Ok(profiles) => profiles.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn of_profile(&self) -> Found {
        let profiles = self.profiles().await?;
        self.of_named(&profiles, &self.profile, DEPTH).await
    }

    fn of_named<'a>(&'a self, profiles: &'a Profiles, name: &'a str, depth: usize) -> BoxFuture<'a, Found> {
        Box::pin(async move {
            let get = |key| profiles.get(name, key);
            // A profile may be its own source: its keys assume its role.
            if let Some(role) = get("role_arn").filter(|_| depth > 0) {
                return self.assume(profiles, name, role, depth).await;
            }
            if let (Some(id), Some(secret)) = (get("aws_access_key_id"), get("aws_secret_access_key")) {
                return Ok(Some(Credential {
                    access_key_id: id.to_owned(),
                    secret_access_key: secret.to_owned(),
                    session_token: get("aws_session_token").map(str::to_owned),
                    expires_in: None,
                }));
            }
            if get("sso_account_id").is_some() {
                return self.ask("single sign-on", SSOCredentialProvider::new().with_profile(name)).await;
            }
            match get("credential_process") {
                Some(command) => self.of_process(command).await,
                None => Ok(None),
            }
        })
    }

    async fn of_process(&self, command: &str) -> Found {
        let failed = |why: String| format!("credential_process: {why}");
        let words = split(command).map_err(|why| failed(why.to_owned()))?;
        let Some((program, arguments)) = words.split_first() else {
            return Err(failed("it is empty".to_owned()));
        };
        // The library splits at every blank, and repeats the command where it logs; so it is given a word that stands for it.
        let context = self
            .context
            .clone()
            .with_command_execute(Given { program: program.clone(), arguments: arguments.to_vec() });
        let provider = ProcessCredentialProvider::new().with_command("credential_process");
        provider.provide_credential(&context).await.map_err(|error| failed(one_line(&error)))
    }

    /// Credentials of a role, got with those of whoever may assume it.
    async fn assume(&self, profiles: &Profiles, name: &str, role: &str, depth: usize) -> Found {
        let get = |key| profiles.get(name, key);
        let session = get("role_session_name").unwrap_or("foreread").to_owned();
        if let Some(file) = get("web_identity_token_file") {
            let provider = AssumeRoleWithWebIdentityCredentialProvider::new()
                .with_role_arn(role.to_owned())
                .with_web_identity_token_file(PathBuf::from(file))
                .with_role_session_name(session)
                .with_region(self.region.clone());
            return self.ask("the role", provider).await;
        }
        let base = match (get("source_profile"), get("credential_source")) {
            (Some(source), _) if source == name => self.of_named(profiles, name, 0).await,
            (Some(source), _) if !profiles.has(source) => Err(format!("there is no profile `{source}`")),
            (Some(source), _) => self.of_named(profiles, source, depth - 1).await,
            (None, Some("Environment")) => self.of_environment(),
            (None, Some("EcsContainer")) => self.of_container().await,
            (None, Some("Ec2InstanceMetadata")) => self.of_machine().await,
            (None, _) => self.of_named(profiles, name, 0).await,
        };
        let Some(base) = base.map_err(|why| format!("whoever assumes the role {role}: {why}"))? else {
            return Err(format!(
                "the role {role}: profile `{name}` does not say who assumes it (source_profile)"
            ));
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
        self.ask(&format!("the role {role}"), provider).await
    }
}

#[async_trait]
impl Source for Chain {
    async fn load(&self) -> Result<Loaded, TierError> {
        let mut failures = Vec::new();
        let mut found = None;
        for step in 0..6 {
            let asked = match step {
                0 if self.profile_first => self.of_profile().await,
                1 => self.of_environment(),
                2 => self.of_web_identity().await,
                3 if !self.profile_first => self.of_profile().await,
                4 => self.of_container().await,
                5 => self.of_machine().await,
                _ => Ok(None),
            };
            match asked {
                Ok(None) => {}
                Ok(credential) => {
                    found = credential;
                    break;
                }
                Err(why) => failures.push(why),
            }
            // Other people's credentials are not what was asked for.
            if step == 0 && self.profile_first {
                break;
            }
        }
        let Some(found) = found else {
            let tried =
                if failures.is_empty() { String::new() } else { format!(" ({})", failures.join("; ")) };
            let why = format!(
                "no credentials were found{tried}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or \
                 AWS_SKIP_SIGNATURE=true for a public bucket"
            );
            return Err(TierError::new(ErrorKind::Denied, "s3").with_detail(why));
        };
        let expires = found.expires_in.map(|time| time.as_system_time());
        let credential = AwsCredential {
            key_id: found.access_key_id,
            secret_key: found.secret_access_key,
            token: found.session_token,
        };
        Ok(Loaded { credential, expires })
    }
}

fn one_line(error: &impl fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Small files: tokens, profiles.
#[derive(Clone, Copy, Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        let from = path.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read(from)).await;
        let read = read.map_err(|error| reqsign_core::Error::unexpected(error.to_string()))?;
        read.map_err(|error| reqsign_core::Error::unexpected(format!("{path} cannot be read: {error}")))
    }
}

/// The one program that prints credentials, whatever is asked to be run.
#[derive(Clone)]
struct Given {
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for Given {
    /// Arguments may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CommandExecute for Given {
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
        // What it says of its troubles may have secrets in it, and ends in messages.
        Ok(CommandOutput { status, stdout: output.stdout, stderr: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;

    use super::*;

    /// Amazon's services, as far as credentials need them; and what they were asked.
    #[derive(Clone, Debug, Default)]
    struct Amazon(Arc<Mutex<Vec<String>>>);

    const STS: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLEROLEROLEROLE</AccessKeyId>\
        <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>\
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
            let json = |id: &str| {
                format!(
                    "{{\"Code\":\"Success\",\"AccessKeyId\":\"{id}\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\
                     \"Expiration\":\"2100-01-01T00:00:00Z\"}}"
                )
            };
            let answer = match &uri {
                uri if uri.contains("/task") => json("CONTAINER"),
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

    /// A home with these files below `.aws`.
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
    ) -> (Result<Loaded, TierError>, Vec<String>) {
        let amazon = Amazon::default();
        let chain = Chain::new(environment, amazon.clone(), profile.into(), first, "eu-west-1".into());
        let loaded = chain.load().await;
        let asked = amazon.0.lock().unwrap().clone();
        (loaded, asked)
    }

    async fn key(environment: Environment, profile: &str, first: bool) -> String {
        let (loaded, _) = load(environment, profile, first).await;
        loaded.map(|loaded| loaded.credential.key_id).unwrap()
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "s")];

    #[tokio::test]
    async fn each_place_is_looked_into_in_its_turn() {
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
        let (loaded, asked) = load(Environment::default(), "default", false).await;
        let loaded = loaded.unwrap();
        assert_eq!(
            (loaded.credential.key_id.as_str(), loaded.credential.token.as_deref()),
            ("MACHINE", Some("t"))
        );
        assert!(
            loaded.expires.is_some() && asked.iter().all(|asked| asked.contains("169.254.169.254")),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn a_profile_assumes_a_role_with_another_ones_keys() {
        let config = "[profile work]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n\
                      [profile nobody]\nrole_arn = arn:aws:iam::123456789012:role/r\n\
                      [profile circle]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = circle\n";
        let home = home(config, "[base]\naws_access_key_id = BASE\naws_secret_access_key = s\n");
        let environment = Environment::new([("AWS_EC2_METADATA_DISABLED", "true")]).with_home(home.path());
        let (loaded, asked) = load(environment.clone(), "work", true).await;
        assert_eq!(loaded.unwrap().credential.key_id, "ROLEROLEROLEROLE");
        assert!(
            asked.len() == 1 && asked[0].contains("sts.eu-west-1.") && asked[0].ends_with(" BASE"),
            "{asked:?}"
        );
        for profile in ["nobody", "circle"] {
            let error = load(environment.clone(), profile, true).await.0.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("source_profile") && error.contains("role/r"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_process_is_asked() {
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

    #[tokio::test]
    async fn where_there_is_nothing_the_error_says_what_to_do_and_what_failed() {
        let config = "[default]\ncredential_process = /no/such/program\n";
        let home = home(config, "");
        let environment = Environment::new([("AWS_EC2_METADATA_DISABLED", "TRUE")]).with_home(home.path());
        let error = load(environment, "default", false).await.0.map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Denied);
        for part in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SKIP_SIGNATURE=true", "/no/such/program"] {
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
        }
    }
}
