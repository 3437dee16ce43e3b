//! The table of all settings (*knobs*), and of the environment variables that are no settings.
//!
//! Decision: a setting is a row of [`KNOBS`], with the field of [`Config`] that it sets. All else
//! follows from the row: its variable, its key in `foreread.toml`, the option of the command, the
//! argument of the Python package, and its help and documents.
//! The price: a help text is the same wherever the setting is.

use std::fmt::Write as _;

use foreread::{Config, Format, SamplerKind};

use crate::config::{
    bytes, cache_bytes, calibration_file, deal, disks, format, on_error, order_group, parsed, put, rate,
    seconds,
};
use crate::reader::{
    AGENT, CALIBRATE, DEMO, INDEX, LOAD, ORDER, PLAN, PYTHON, SIMULATE, STATUS, TOKEN, WARM,
};

/// One setting.
#[derive(Debug)]
pub struct Knob {
    /// Its name: `look-ahead`.
    pub name: &'static str,
    /// Its values.
    pub kind: KnobKind,
    /// Its default as text. `None`: unset.
    pub default: Option<&'static str>,
    /// Its heading in help texts.
    pub group: KnobGroup,
    /// Who has it as an option or an argument: a set of [readers](crate::reader).
    pub readers: u16,
    /// Its effect.
    pub help: &'static str,
    /// Whether it describes one call, and therefore comes from its arguments only. In the
    /// environment or a file, such a value would change later calls that do not expect it.
    pub is_argument_only: bool,
    /// How its text becomes a part of the configuration of a run, if it does.
    pub(crate) apply: Option<Apply>,
}

/// Sets the value of a text, or returns the reason why it has none.
pub(crate) type Apply = fn(&mut Config, &str) -> Result<(), String>;

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

/// The type of a setting's values where values are not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobType {
    /// A text, or one of several words.
    Text,
    /// True or false.
    Flag,
    /// A number.
    Number,
    /// A number of bytes, or a text with its unit.
    Size,
    /// A path, or a URL.
    Path,
    /// Several values.
    List,
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

    /// Its name in Python.
    pub fn argument(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The type of its values.
    pub fn value_type(&self) -> KnobType {
        match self.kind {
            Words(_) => KnobType::Text,
            Flag => KnobType::Flag,
            List(_) => KnobType::List,
            Value(form) => match form.rsplit('|').next() {
                Some("N" | "SECONDS" | "S" | "MS") => KnobType::Number,
                Some("SIZE" | "SIZE/s") => KnobType::Size,
                Some("FILE" | "PATH" | "CATALOG") => KnobType::Path,
                _ => KnobType::Text,
            },
        }
    }

    /// Whether its value may be `auto`, which leaves the choice to the run, as [`Config::default`]
    /// does.
    pub fn has_auto(&self) -> bool {
        match self.kind {
            Words(words) => words.contains(&"auto"),
            Value(form) => form.starts_with("auto|"),
            Flag | List(_) => false,
        }
    }

    /// The words that are its only values, if there are such words.
    pub fn words(&self) -> Option<&'static [&'static str]> {
        match self.kind {
            Words(words) => Some(words),
            Flag => Some(&["true", "false"]),
            Value(_) | List(_) => None,
        }
    }

    /// This setting, from an argument only.
    const fn argument_only(mut self) -> Self {
        self.is_argument_only = true;
        self
    }

    /// This setting, with its effect on the configuration of a run.
    const fn sets(mut self, apply: Apply) -> Self {
        self.apply = Some(apply);
        self
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
    readers: u16,
    help: &'static str,
) -> Knob {
    Knob { name, kind, default, group, readers, help, is_argument_only: false, apply: None }
}

/// The readers of the settings of a run.
const RUN: u16 = LOAD | PLAN | PYTHON;

/// All settings, in the order of help texts. Other readers of the same `foreread.toml` ignore those
/// of the command.
#[rustfmt::skip] // A row is a line, its help text, and its field.
pub const KNOBS: &[Knob] = &[
    knob("samples", Value("N"), None, Order, PLAN | ORDER,
        "The number of samples, without a dataset").argument_only(),
    knob("sample-bytes", Value("SIZE"), None, Order, PLAN, "The length of each sample").argument_only(),
    knob("epoch", Value("N"), Some("0"), Order, ORDER, "The epoch").argument_only(),
    knob("batch-size", Value("N"), Some("64"), Order, RUN | ORDER, "Samples per batch, on each rank")
        .sets(|to, text| put(&mut to.batch_size, parsed(text))),
    knob("epochs", Value("N"), Some("2"), Order, RUN, "Passes over the dataset")
        .sets(|to, text| put(&mut to.epochs, parsed(text))),
    knob("seed", Value("N"), Some("0"), Order, RUN | ORDER, "The seed of the order")
        .sets(|to, text| put(&mut to.seed, parsed(text))),
    // After the seed, which it replaces.
    knob("order-group", Value("NAME"), None, Order, RUN | ORDER,
        "Read in this group's order, whatever the seed. Jobs of one group read in one order, so an \
         agent reads each sample once for all of them")
        .sets(|to, text| put(&mut to.seed, order_group(text))),
    knob("sampler", Words(SamplerKind::NAMES), Some("shuffle"), Order,
        RUN | ORDER,
        "How the order is drawn; torch is the order of PyTorch's DistributedSampler")
        .sets(|to, text| put(&mut to.sampler, parsed(text))),
    knob("drop-last", Flag, Some("false"), Order, RUN | ORDER,
        "Drop samples that do not divide evenly among ranks and batches, instead of padding")
        .sets(|to, text| put(&mut to.drop_last, parsed(text))),
    // Never locality by default, whatever the caches: each rank's order must be that of
    // DistributedSampler.
    knob("deal", Words(&["torch", "blocks", "locality"]), Some("torch"), Order, RUN | ORDER,
        "How ranks share an epoch: torch (strided), blocks, or locality (each sample goes to a rank that \
         caches it). Locality changes each rank's samples, so it is never automatic")
        .sets(deal),
    knob("validate", Value("URL|CATALOG"), None, Order, RUN,
        "A second dataset, read in order after every epoch")
        .sets(|to, text| put(&mut to.validate, Ok(Some(text.to_owned())))),
    knob("compute-ms", Value("MS"), Some("0"), Order, LOAD | PLAN,
        "How long the trainer computes on each batch").argument_only(),
    knob("include", List("GLOB"), None, Order, INDEX,
        "Only files that match this glob (relative path); may be repeated").argument_only(),
    knob("exclude", List("GLOB"), None, Order, INDEX,
        "Not the files that match this glob (relative path); may be repeated").argument_only(),
    knob("policy", Value("NAME"), Some("all"), Order, SIMULATE, "The policy to simulate").argument_only(),
    knob("seeds", Value("N"), Some("1"), Order, SIMULATE,
        "Average over this many seeds, beginning with the scenario's").argument_only(),

    knob("memory", Value("auto|SIZE"), Some("auto"), Caches, RUN | AGENT,
        "The memory tier of each rank. auto: the ranks of a node share half of the free memory; none if the \
         kernel already caches the data")
        .sets(|to, text| put(&mut to.memory, parsed(text))),
    knob("disk", List("DIR=SIZE"), None, Caches, RUN | CALIBRATE | AGENT,
        "A directory of the disk tier and its size, for all ranks of a node; may be repeated. \
         DIR=SIZE,shared: one cache for all users, where everyone with write access is trusted")
        .sets(|to, text| put(&mut to.disk, disks(text))),
    knob("agent", Value("auto|off|PATH"), Some("auto"), Caches, LOAD | WARM | PYTHON,
        "The agent of the node, whose cache all jobs share; it replaces this run's memory and disks. auto: \
         the user's own, if one runs, for data that the kernel does not cache. PATH: its socket")
        .sets(|to, text| put(&mut to.agent, parsed(text))),
    knob("memory-alone", Value("SIZE"), Some("0"), Caches, LOAD | PYTHON,
        "Memory for samples while the agent, or the rank that hosts the memory of this node, is gone")
        .sets(|to, text| put(&mut to.memory_alone, cache_bytes(text))),
    knob("job-name", Value("NAME"), None, Caches, LOAD,
        "What the agent of the node calls this job, in its status and in its policy [default: the Slurm \
         job's name, or the program's]")
        .sets(|to, text| put(&mut to.job_name, parsed(text).map(Some))),
    knob("look-ahead", Value("auto|SIZE"), Some("auto"), Caches, RUN,
        "The most bytes that are prefetched on each rank. auto: 256 MiB. Less is used if the trainer needs \
         less")
        .sets(|to, text| put(&mut to.look_ahead, bytes(text))),

    knob("seconds", Value("S"), Some("30"), Storage, CALIBRATE,
        "The time limit, without listing the dataset").argument_only(),
    knob("origin-bytes", Value("SIZE"), Some("1GiB"), Storage, CALIBRATE,
        "The most bytes to read from storage").argument_only(),
    knob("format", Words(Format::CHOICES), Some("auto"), Storage, RUN | INDEX | WARM,
        "How objects store samples; tar is WebDataset. auto: detected from names and first bytes")
        .sets(|to, text| put(&mut to.format, format(text))),
    knob("origin-limit", Value("SIZE/s"), None, Storage, RUN | CALIBRATE | AGENT,
        "The most bytes per second from storage")
        .sets(|to, text| put(&mut to.origin_limit, rate(text).map(Some))),
    knob("origin-parallelism", Value("auto|N"), Some("auto"), Storage, RUN | CALIBRATE | AGENT,
        "The most reads from storage at once. auto: found by measuring while it reads")
        .sets(|to, text| put(&mut to.origin_parallelism, parsed(text).map(Some))),
    knob("patience", Value("auto|SECONDS"), Some("auto"), Storage, LOAD | WARM | AGENT | PYTHON,
        "How long failed reads of storage are repeated, and how long a silent file server is waited for. \
         auto: 120 s, and 1200 s on network file systems")
        .sets(|to, text| put(&mut to.patience, seconds(text).map(Some))),
    knob("recall", Flag, Some("false"), Storage, LOAD | PYTHON,
        "Restore files that the storage has moved to an archive, in the background")
        .argument_only().sets(|to, text| put(&mut to.recall, parsed(text))),
    knob("calibration", Value("auto|off|FILE"), Some("auto"), Storage, RUN | SIMULATE,
        "The file that `foreread calibrate` wrote. auto: foreread-calibration.toml in the working \
         directory, if there is one. Speeds of other datasets and directories are ignored")
        .sets(|to, text| put(&mut to.calibration, calibration_file(text))),
    knob("on-error", Words(&["fail", "skip", "substitute"]), Some("fail"), Storage, RUN,
        "The reaction to a sample that cannot be read")
        .sets(|to, text| put(&mut to.on_error, Ok(on_error(text)))),

    knob("rank", Value("N"), None, Ranks, RUN | ORDER,
        "This process among the ranks; the launcher's, or 0, if unset")
        .sets(|to, text| put(&mut to.rank.rank, parsed(text))),
    knob("world-size", Value("N"), None, Ranks, RUN | ORDER,
        "The number of ranks; the launcher's, or 1, if unset")
        .sets(|to, text| put(&mut to.rank.ranks, parsed(text))),
    knob("peers", Words(&["auto", "off"]), Some("auto"), Ranks, LOAD | PYTHON,
        "Whether ranks that find each other share their caches"),

    knob("output", Value("FILE"), None, Report, INDEX | CALIBRATE, "The file to write").argument_only(),
    knob("report", Words(&["text", "json", "csv"]), Some("text"), Report,
        LOAD | PLAN | ORDER | INDEX | WARM | CALIBRATE | SIMULATE | DEMO | STATUS | TOKEN,
        "The form of the result on standard output; csv is for `simulate`"),
    knob("report-file", Value("FILE"), None, Report, LOAD,
        "Write the JSON report of this rank to a file; %r in its name is the rank"),
    knob("digest", Flag, Some("false"), Report, LOAD, "Add each epoch's SHA-256 to the report")
        .argument_only(),
    knob("ids", Flag, Some("false"), Report, LOAD, "Add each epoch's delivered sample ids to the report")
        .argument_only(),
    knob("decode", Value("image[:SIZE]"), None, Report, LOAD,
        "Decode JPEG, PNG and WebP as for training, with random crops of 224 pixels or SIZE, and report the \
         rate").argument_only(),
    knob("decode-threads", Value("N"), None, Report, LOAD,
        "The threads that decode; the cores of this process, divided by the node's ranks, if unset")
        .argument_only(),
    knob("state", Value("FILE"), None, Report, LOAD,
        "The file of the run's state: read at the start if it exists, written after each epoch, on SIGTERM \
         or SIGINT, and at the end"),
    knob("plot", Value("FILE.svg"), None, Report, LOAD | SIMULATE | DEMO, "Write a plot to this file")
        .argument_only(),
    knob("progress", Words(&["auto", "off"]), Some("auto"), Report,
        LOAD | PLAN | INDEX | WARM | CALIBRATE | SIMULATE | DEMO,
        "Progress on standard error. auto: rank 0 only, and at most one line a minute without a terminal"),
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

/// The setting of this name.
pub fn find_knob(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name == name)
}

/// The settings of one of the [readers](crate::reader).
pub fn knobs_of(reader: u16) -> impl Iterator<Item = &'static Knob> {
    KNOBS.iter().filter(move |knob| knob.readers & reader != 0)
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
        KNOBS.iter().any(|knob| knob.variable() == *name) || known.iter().any(|it| means(it, name))
    };
    names.into_iter().filter(|name| name.starts_with(PREFIX) && !is_known(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_have_a_reader() {
        let names: BTreeSet<_> = KNOBS.iter().map(|knob| knob.name).collect();
        assert_eq!(names.len(), KNOBS.len());
        assert!(KNOBS.iter().all(|knob| knob.readers != 0));
    }

    #[test]
    fn default_of_a_knob_is_one_of_its_words() {
        for knob in KNOBS {
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
