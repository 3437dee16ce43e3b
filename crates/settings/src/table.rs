//! The table of all settings (*knobs*), and of the environment variables that are no settings.
//!
//! Decision: names, defaults, possible values and help texts are in one table. The checks of values
//! from any source, the command's help and completions, and docs/settings.md come from it. The
//! price: a help text is the same in every command that has the option.

use std::fmt::Write as _;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name: `look-ahead`.
    pub name: &'static str,
    /// Its default as text. `None`: unset.
    pub default: Option<&'static str>,
    /// Its values.
    pub kind: KnobKind,
    /// Its heading in help texts.
    pub group: KnobGroup,
    /// Its effect.
    pub help: &'static str,
}

/// The values of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobKind {
    /// One of these words.
    Words(&'static [&'static str]),
    /// `true` or `false`. On the command line also without a value.
    Flag,
    /// A value of this form: `N`, `SIZE`, `FILE`. Words in lower case are literal: `auto|SIZE`.
    Value(&'static str),
    /// Several values of this form: one per line as text, a list in a file, a repeated option.
    List(&'static str),
}

/// The heading of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobGroup {
    /// The samples that are read, and their order.
    Order,
    /// Where samples are kept.
    Caches,
    /// How storage is read.
    Storage,
    /// The processes of a run.
    Ranks,
    /// The printed and saved results.
    Report,
}

impl KnobGroup {
    /// All headings, in the order of help texts.
    pub const ALL: [Self; 5] = [Self::Order, Self::Caches, Self::Storage, Self::Ranks, Self::Report];

    /// The heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Order => "Order",
            Self::Caches => "Caches",
            Self::Storage => "Storage",
            Self::Ranks => "Ranks",
            Self::Report => "Report",
        }
    }
}

impl Knob {
    /// The variable of a setting.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// The words that are its only values, if there are such words.
    pub fn words(&self) -> Option<&'static [&'static str]> {
        match self.kind {
            Words(words) => Some(words),
            Flag => Some(&["true", "false"]),
            Value(_) | List(_) => None,
        }
    }

    /// The text of an error if `value` is none of its words.
    pub(crate) fn expected(&self, value: &str) -> Option<String> {
        let words = self.words()?;
        (!words.contains(&value.trim())).then(|| format!("expected {}", listed(words)))
    }
}

/// Words as a list in a sentence: `a, b or c`.
fn listed(words: &[&str]) -> String {
    let mut text = String::new();
    for (at, word) in words.iter().enumerate() {
        let separator = match at {
            0 => "",
            _ if at + 1 == words.len() => " or ",
            _ => ", ",
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{word}");
    }
    text
}

/// The beginning of this project's environment variables.
pub(crate) const PREFIX: &str = "FOREREAD_";

use KnobGroup::{Caches, Order, Ranks, Report, Storage};
use KnobKind::{Flag, List, Value, Words};

const fn knob(
    name: &'static str,
    kind: KnobKind,
    default: Option<&'static str>,
    group: KnobGroup,
    help: &'static str,
) -> Knob {
    Knob { name, default, kind, group, help }
}

/// The settings of a run.
pub const KNOBS: &[Knob] = &[
    knob("batch-size", Value("N"), Some("64"), Order, "Samples per batch, on each rank"),
    knob("epochs", Value("N"), Some("2"), Order, "Passes over the dataset"),
    knob("seed", Value("N"), Some("0"), Order, "The seed of the order"),
    knob(
        "order-group",
        Value("NAME"),
        None,
        Order,
        "Read in this group's order, whatever the seed. Jobs of one group read in one order, so an \
         agent reads each sample once for all of them",
    ),
    knob(
        "sampler",
        Words(&["shuffle", "torch", "feistel", "sequential"]),
        Some("shuffle"),
        Order,
        "How the order is drawn; torch is the order of PyTorch's DistributedSampler",
    ),
    knob(
        "drop-last",
        Flag,
        Some("false"),
        Order,
        "Drop samples that do not divide evenly among ranks and batches, instead of padding",
    ),
    // Never locality by default, whatever the caches: each rank's order must be that of
    // DistributedSampler.
    knob(
        "deal",
        Words(&["torch", "blocks", "locality"]),
        Some("torch"),
        Order,
        "How ranks share an epoch: torch (strided), blocks, or locality (each sample goes to a rank that \
         caches it). Locality changes each rank's samples, so it is never automatic",
    ),
    knob("validate", Value("URL|CATALOG"), None, Order, "A second dataset, read in order after every epoch"),
    knob(
        "memory",
        Value("auto|SIZE"),
        Some("auto"),
        Caches,
        "The memory tier of each rank. auto: the ranks of a node share half of the free memory; none if the \
         kernel already caches the data",
    ),
    knob(
        "disk",
        List("DIR=SIZE"),
        None,
        Caches,
        "A directory of the disk tier and its size, for all ranks of a node; may be repeated. \
         DIR=SIZE,shared: one cache for all users, where everyone with write access is trusted",
    ),
    knob(
        "agent",
        Value("auto|off|PATH"),
        Some("auto"),
        Caches,
        "The agent of the node, whose cache all jobs share; it replaces this run's memory and disks. auto: \
         the user's own, if one runs, for data that the kernel does not cache. PATH: its socket",
    ),
    knob(
        "memory-alone",
        Value("SIZE"),
        Some("0"),
        Caches,
        "Memory for samples while the agent, or the rank that hosts the memory of this node, is gone",
    ),
    knob(
        "job-name",
        Value("NAME"),
        None,
        Caches,
        "What the agent of the node calls this job, in its status and in its policy [default: the Slurm \
         job's name, or the program's]",
    ),
    knob(
        "look-ahead",
        Value("auto|SIZE"),
        Some("auto"),
        Caches,
        "The most bytes that are prefetched on each rank. auto: 256 MiB. Less is used if the trainer needs \
         less",
    ),
    knob("rank", Value("N"), None, Ranks, "This process among the ranks; the launcher's, or 0, if unset"),
    knob("world-size", Value("N"), None, Ranks, "The number of ranks; the launcher's, or 1, if unset"),
    knob("origin-limit", Value("SIZE/s"), None, Storage, "The most bytes per second from storage"),
    knob(
        "origin-parallelism",
        Value("auto|N"),
        Some("auto"),
        Storage,
        "The most reads from storage at once. auto: found by measuring while it reads",
    ),
    knob(
        "patience",
        Value("auto|SECONDS"),
        Some("auto"),
        Storage,
        "How long failed reads of storage are repeated, and how long a silent file server is waited for. \
         auto: 120 s, and 1200 s on network file systems",
    ),
    knob(
        "calibration",
        Value("auto|off|FILE"),
        Some("auto"),
        Storage,
        "The file that `foreread calibrate` wrote. auto: foreread-calibration.toml in the working \
         directory, if there is one. Speeds of other datasets and directories are ignored",
    ),
    knob(
        "on-error",
        Words(&["fail", "skip", "substitute"]),
        Some("fail"),
        Storage,
        "What to do if a sample cannot be read",
    ),
];

/// The command's own settings, in addition to those of a run. Other readers of the same
/// `foreread.toml` ignore them, apart from `format` and `peers`.
pub const COMMAND_KNOBS: &[Knob] = &[
    knob(
        "report",
        Words(&["text", "json", "csv"]),
        Some("text"),
        Report,
        "The form of the result on standard output; csv is for `simulate`",
    ),
    knob(
        "report-file",
        Value("FILE"),
        None,
        Report,
        "Write the JSON report of this rank to a file; %r in its name is the rank",
    ),
    knob(
        "progress",
        Words(&["auto", "off"]),
        Some("auto"),
        Report,
        "Progress on standard error. auto: rank 0 only, and at most one line a minute without a terminal",
    ),
    knob(
        "state",
        Value("FILE"),
        None,
        Report,
        "The file of the run's state: read at the start if it exists, written after each epoch, on SIGTERM \
         or SIGINT, and at the end",
    ),
    knob(
        "peers",
        Words(&["auto", "off"]),
        Some("auto"),
        Ranks,
        "Whether ranks that find each other share their caches",
    ),
    knob(
        "format",
        Words(&[
            "auto", "files", "tar", "tfrecord", "zip", "lmdb", "hdf5", "parquet", "arrow", "mds", "litdata",
            "npy", "tokens", "recordio",
        ]),
        Some("auto"),
        Storage,
        "How objects store samples; tar is WebDataset. auto: detected from names and first bytes",
    ),
];

/// Settings that describe one call, and therefore come from its arguments only. In the environment
/// or a file, such a value would change later calls that do not expect it.
pub const ARGUMENT_KNOBS: &[Knob] = &[
    knob("compute-ms", Value("MS"), Some("0"), Order, "How long the trainer computes on each batch"),
    knob(
        "decode",
        Value("image[:SIZE]"),
        None,
        Report,
        "Decode JPEG, PNG and WebP as for training, with random crops of 224 pixels or SIZE, and report the \
         rate",
    ),
    knob(
        "decode-threads",
        Value("N"),
        None,
        Report,
        "The threads that decode; the cores of this process, divided by the node's ranks, if unset",
    ),
    knob("samples", Value("N"), None, Order, "The number of samples, without a dataset"),
    knob("sample-bytes", Value("SIZE"), None, Order, "The length of each sample"),
    knob("epoch", Value("N"), Some("0"), Order, "The epoch"),
    knob(
        "include",
        List("GLOB"),
        None,
        Order,
        "Only files that match this glob (relative path); may be repeated",
    ),
    knob(
        "exclude",
        List("GLOB"),
        None,
        Order,
        "Not the files that match this glob (relative path); may be repeated",
    ),
    knob("seconds", Value("S"), Some("30"), Storage, "The time limit, without listing the dataset"),
    knob("origin-bytes", Value("SIZE"), Some("1GiB"), Storage, "The most bytes to read from storage"),
    knob(
        "recall",
        Flag,
        Some("false"),
        Storage,
        "Restore files that the storage has moved to an archive, in the background",
    ),
    knob("policy", Value("NAME"), Some("all"), Order, "The policy to simulate"),
    knob(
        "seeds",
        Value("N"),
        Some("1"),
        Order,
        "Average over this many seeds, beginning with the scenario's",
    ),
    knob("output", Value("FILE"), None, Report, "The file to write"),
    knob("plot", Value("FILE.svg"), None, Report, "Write a plot to this file"),
    knob("digest", Flag, Some("false"), Report, "Add each epoch's SHA-256 to the report"),
    knob("ids", Flag, Some("false"), Report, "Add each epoch's delivered sample ids to the report"),
];

/// The launchers' variables of rank and world size. The first that is set counts. MPI's come before
/// SLURM's: under mpirun in a batch job, every process has the batch script's own `SLURM_PROCID=0`.
pub const LAUNCHERS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// An environment variable that is no setting. A name that ends in `*` is the beginning of several.
pub type Variable = (&'static str, &'static str);

/// This project's variables that are no settings.
pub const VARIABLES: &[Variable] = &[
    (
        "FOREREAD_TOKEN",
        "The secret that the ranks of one job share: the output of `foreread token`. Needed if ranks on \
         several nodes meet at a host",
    ),
    (
        "FOREREAD_RUN_TRACE",
        "Set by `foreread run` for its programs: where their opens are recorded. Not for users",
    ),
    (
        "FOREREAD_MEET",
        "Where ranks meet: rank 0's `host:port`, one `host:port` per rank with commas between them, or a \
         directory that all ranks can access. Unset: the launcher's address. Nodes of `foreread run` use a \
         directory only",
    ),
    (
        "FOREREAD_INTERFACE",
        "The network interfaces for samples, as in `NCCL_SOCKET_IFNAME`: `ib0`, `=eth1`, `^docker`",
    ),
    (
        "FOREREAD_PEER_WIRE",
        "The protection of samples between nodes: `authenticated` (default), `sealed` (encrypted, too) or \
         `checksummed`",
    ),
    ("FOREREAD_HTTP_LIST", "The file that lists the paths of an `http(s)://` dataset, one per line"),
    ("FOREREAD_HTTP_*", "Options of web servers: `USERNAME`, `PASSWORD`, `TOKEN`, `HOST`"),
    ("FOREREAD_WEBDAV_*", "Options of WebDAV: `USERNAME`, `PASSWORD`, `TOKEN`, `HOST`"),
    ("FOREREAD_WEBHDFS_*", "Options of WebHDFS: `USER_NAME`, `DELEGATION`, `HOST`"),
    ("FOREREAD_OSS_*", "Options of Alibaba's OSS, such as `ENDPOINT`, `ACCESS_KEY_ID`, `ACCESS_KEY_SECRET`"),
    ("FOREREAD_COS_*", "Options of Tencent's COS, such as `ENDPOINT`, `SECRET_ID`, `SECRET_KEY`"),
    ("FOREREAD_HF_*", "Options of the Hugging Face Hub, such as `TOKEN`, `ENDPOINT`"),
    ("FOREREAD_SFTP_*", "Options of SFTP: `KEY`, `KNOWN_HOSTS_STRATEGY`"),
    ("FOREREAD_COMMIT", "When the command is built: the commit that `--version` shows, instead of git's"),
];

/// Variables of other programs that have an effect.
pub const OTHER_VARIABLES: &[Variable] = &[
    (
        "RUST_LOG",
        "The log's level and filter, e.g. `debug` or `foreread_peer=trace`; wins over `-v` and `-q`",
    ),
    ("NO_COLOR", "Any value: no colours"),
    ("AWS_ACCESS_KEY_ID", "The access key of S3"),
    ("AWS_SECRET_ACCESS_KEY", "Its secret"),
    ("AWS_SESSION_TOKEN", "Its token, if it is temporary"),
    ("AWS_PROFILE", "The profile in AWS's files; also `AWS_DEFAULT_PROFILE`"),
    ("AWS_DEFAULT_PROFILE", "As `AWS_PROFILE`, which wins"),
    ("AWS_CONFIG_FILE", "The file with profiles. Unset: `~/.aws/config`"),
    ("AWS_SHARED_CREDENTIALS_FILE", "The file with keys. Unset: `~/.aws/credentials`"),
    ("AWS_REGION", "The region of the bucket"),
    ("AWS_DEFAULT_REGION", "As `AWS_REGION`, which wins"),
    ("AWS_ENDPOINT_URL_S3", "The address of another S3 service, e.g. `http://localhost:9000`"),
    ("AWS_ENDPOINT_URL", "The same, for all services; `AWS_ENDPOINT_URL_S3` wins"),
    ("AWS_ENDPOINT", "The same; the other two win"),
    ("AWS_ENDPOINT_URL_SSO", "The address of the service for single sign-on"),
    ("AWS_ENDPOINT_URL_SSO_OIDC", "The address of its token service"),
    ("AWS_ALLOW_HTTP", "`true`: endpoints without TLS are allowed"),
    ("AWS_CA_BUNDLE", "A file of certificates: only these are trusted"),
    ("AWS_SKIP_SIGNATURE", "`true`: requests are not signed, for public buckets"),
    ("AWS_NO_SIGN_REQUEST", "As `AWS_SKIP_SIGNATURE`"),
    ("AWS_REQUEST_PAYER", "`requester` or `true`: this account pays for its requests to such buckets"),
    ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "`true`: the bucket's name is part of the host's name"),
    ("AWS_ROLE_ARN", "The role of `AWS_WEB_IDENTITY_TOKEN_FILE`"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "The file with a web identity, e.g. of a Kubernetes service account"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "The address of a container's credentials"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "The same on ECS"),
    ("AWS_EC2_METADATA_DISABLED", "`true`: no search for an instance's credentials"),
    ("AZURE_*", "Azure's variables, such as `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`"),
    ("GOOGLE_*", "Google's variables, such as `GOOGLE_APPLICATION_CREDENTIALS`"),
    ("HTTPS_PROXY", "The proxy of requests by TLS; `HTTP_PROXY` of the others, `NO_PROXY` for exceptions"),
];

/// Variables of this project's own tests, benchmarks and builds.
const DEVELOPERS: &[&str] = &[
    "FOREREAD_TEST_*",
    "FOREREAD_BENCH_*",
    "FOREREAD_FUZZ_*",
    "FOREREAD_XTASK_*",
    "FOREREAD_EXAMPLE_*",
    "FOREREAD_SOAK",
    "FOREREAD_FIXTURES",
    "FOREREAD_TRACE",
    "FOREREAD_WRITE",
    "FOREREAD_CASE",
];

/// Variables that Kubernetes sets in every container if a service has the name `foreread`.
const KUBERNETES: &[&str] = &["FOREREAD_SERVICE_*", "FOREREAD_PORT*"];

/// All settings, from whatever source.
pub fn all_knobs() -> impl Iterator<Item = &'static Knob> {
    [KNOBS, COMMAND_KNOBS, ARGUMENT_KNOBS].into_iter().flatten()
}

/// The setting of this name.
pub fn find_knob(name: &str) -> Option<&'static Knob> {
    all_knobs().find(|knob| knob.name == name)
}

/// The names among `names` that begin like this project's variables and mean nothing.
pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let others = VARIABLES.iter().map(|(name, _)| *name);
    let known: Vec<&str> =
        others.chain(DEVELOPERS.iter().copied()).chain(KUBERNETES.iter().copied()).collect();
    let means = |pattern: &&str, name: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *pattern,
    };
    let is_known = |name: &String| {
        all_knobs().any(|knob| knob.variable() == *name) || known.iter().any(|it| means(it, name))
    };
    names.into_iter().filter(|name| name.starts_with(PREFIX) && !is_known(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_27_are_settable_outside() {
        assert_eq!(KNOBS.len() + COMMAND_KNOBS.len(), 27);
        let names: BTreeSet<_> = all_knobs().map(|knob| knob.name).collect();
        assert_eq!(names.len(), all_knobs().count());
    }

    #[test]
    fn default_of_a_knob_is_one_of_its_words() {
        for knob in all_knobs() {
            let wrong = knob.default.and_then(|default| knob.expected(default));
            assert_eq!(wrong, None, "{}", knob.name);
            // A help text is a sentence after its option: no full stop at its end.
            assert!(knob.help.starts_with(char::is_uppercase) && !knob.help.ends_with('.'), "{}", knob.name);
        }
    }

    #[test]
    fn unknown_variables_are_found_among_known_ones() {
        let names = [
            "FOREREAD_SEED",
            "FOREREAD_BATCHSIZE",
            "FOREREAD_TOKEN",
            "FOREREAD_WEBDAV_PASSWORD",
            "FOREREAD_TEST_SEED",
            "FOREREAD_SERVICE_HOST",
            "FOREREAD_PORT_7000_TCP",
            "FOREREAD_TOKENS",
            "PATH",
        ];
        let unknown = unknown_variables(names.map(str::to_owned));
        assert_eq!(unknown, ["FOREREAD_BATCHSIZE", "FOREREAD_TOKENS"]);
    }
}
