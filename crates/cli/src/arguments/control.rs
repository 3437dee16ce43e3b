//! The arguments of `foreread control`, and those by which an agent finds a control process.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use foreread_agent::ShareChoice;
use foreread_settings::reader;

use super::{AgentHttp, SettingArguments, texts};

#[derive(Debug, Subcommand)]
pub enum Control {
    /// Start a control process that outlives this command
    #[command(after_help = texts::CONTROL_START)]
    Start(ControlOptions),
    /// Run a control process until it is stopped or gets SIGTERM or SIGINT, for service managers
    #[command(after_help = texts::CONTROL_SERVE)]
    Serve(ControlOptions),
    /// Show the nodes, jobs, datasets and stores of a cluster
    #[command(after_help = texts::CONTROL_STATUS)]
    Status(ControlTarget),
    /// Change the policy of a cluster while it runs
    #[command(after_help = texts::CONTROL_SET)]
    Set {
        #[command(flatten)]
        target: ControlTarget,
        /// Values of the policy, such as limit@s3://bucket=2GB/s or weight@alice/search-*=4;
        /// `none` removes one, and `file` takes one back to the file
        #[arg(value_name = "KEY=VALUE", required = true)]
        changes: Vec<String>,
    },
    /// Have a node take no new jobs, and wait until its jobs have ended
    #[command(after_help = texts::CONTROL_DRAIN)]
    Drain {
        #[command(flatten)]
        target: ControlTarget,
        /// How long to wait; 0 for not at all [default: as long as it takes]
        #[arg(long, value_name = "SECONDS")]
        wait: Option<f64>,
        /// The node, as `control status` names it
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Forget a node that is gone, so that nothing is reserved for it
    #[command(after_help = texts::CONTROL_FORGET)]
    Forget {
        #[command(flatten)]
        target: ControlTarget,
        /// The node, as `control status` names it
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Have all nodes fill their memory with a dataset, each with a part of it
    #[command(after_help = texts::CONTROL_WARM)]
    Warm {
        #[command(flatten)]
        target: ControlTarget,
        /// A location, or a catalog, that all nodes can read
        #[arg(value_name = "URL|CATALOG")]
        dataset: String,
    },
    /// Stop a control process; agents keep what they have for a while
    #[command(after_help = texts::CONTROL_STOP)]
    Stop(ControlTarget),
}

/// A control process that is to run.
#[derive(Debug, Args)]
pub struct ControlOptions {
    /// Where agents connect; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "[::]:7400")]
    pub listen: String,
    /// The tokens of agents: one per line, with a name before it where users differ; only its owner
    /// may read the file
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// The policy file, of which the table `cluster` counts [default: foreread/agent.toml in
    /// XDG_CONFIG_HOME, or in ~/.config]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The path of its socket, in a directory that is the user's alone [default:
    /// foreread-control/control.sock in XDG_RUNTIME_DIR, or in /tmp/foreread-UID-control]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    pub http: AgentHttp,
}

/// A control process that runs.
#[derive(Debug, Args)]
pub struct ControlTarget {
    /// The path of its socket [default: the user's own]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::STATUS }>,
}

/// The control process of an agent.
#[derive(Debug, Args)]
pub struct AgentControl {
    /// The control process of the cluster, which divides limits over its nodes
    #[arg(long, value_name = "HOST:PORT")]
    pub control: Option<String>,
    /// The file with the token for it
    #[arg(long, value_name = "FILE")]
    pub control_token: Option<PathBuf>,
    /// What this agent is called there [default: the name of the machine]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Where other agents of the cluster get samples from this one, so that their caches are one;
    /// off for a cache of its own [default: a free port]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub share: Option<String>,
}

impl AgentControl {
    /// How the cache is shared.
    pub fn share_choice(&self) -> ShareChoice {
        match self.share.as_deref() {
            None => ShareChoice::Auto,
            Some("off") => ShareChoice::Off,
            Some(address) => ShareChoice::At(address.to_owned()),
        }
    }
}
