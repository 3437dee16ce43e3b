//! Reads rank, world size and rendezvous from the launcher's environment variables.
//!
//! It is a pure function of the environment. The first complete row counts:
//!
//! | launcher | rank and world size | one node if |
//! |---|---|---|
//! | torchrun, Ray Train, PyTorchJob, by hand | `RANK`, `WORLD_SIZE` | `LOCAL_WORLD_SIZE` is `WORLD_SIZE`, or `MASTER_ADDR` is this host itself |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` (or `PMIX_RANK`), `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_SIZE` is the size |
//! | MPICH, Intel MPI (hydra) | `PMI_RANK`, `PMI_SIZE`, with `MPI_LOCALNRANKS` | that is the size |
//! | SLURM | `SLURM_PROCID`, `SLURM_NTASKS` | it has one node |
//! | others that speak PMI | `PMI_RANK`, `PMI_SIZE` | `PMI_LOCAL_SIZE` is the size |
//!
//! Open MPI and hydra come before SLURM: in a batch job they start every process with the batch
//! script's own `SLURM_PROCID=0`. The number of ranks on this node, which share its memory
//! ([`Launched::on_node`]), comes from the same variables. For SLURM it comes from
//! `SLURM_STEP_TASKS_PER_NODE`.
//!
//! The [`Rendezvous`] is the first of these: `FOREREAD_MEET`, a socket of the node (if there is one
//! node), `MASTER_ADDR`, the first host of SLURM's step. `MASTER_PORT` is torch's and never used.
//! The port is computed from the job's name (`SLURM_JOB_ID`, `TORCHELASTIC_RUN_ID`, `MASTER_PORT`
//! ...), between 20000 and 28000. If another program has it, rank 0 takes the next of four. The
//! other ranks try these four in turn, because only rank 0 knows the job's token. The price is a
//! firewall rule for a range instead of a port. `FOREREAD_MEET=host:port` sets one. The stores of
//! several nodes meet at the ports after these ([`Launched::between_nodes`]).

use std::fmt;
use std::path::PathBuf;

use foreread_types::Rank;

use super::nodelist::expand;
use super::{LaunchError, TOKEN};

/// Sets the rendezvous where the launcher does not: `host:port` of rank 0, a directory that all
/// ranks see, or each rank's `host:port`, separated by commas.
pub const MEET: &str = "FOREREAD_MEET";

/// The range of computed ports, below the ephemeral ports of the system.
const PORTS: std::ops::Range<u16> = 20_000..28_000;
/// The number of ports that rank 0 may try.
const MAX_PORTS: u16 = 4;
/// Torch's services use ports near `MASTER_PORT`.
const TORCH_PORTS: u16 = 16;

/// The inputs of launcher detection.
#[derive(Clone, Copy)]
pub struct LauncherEnv<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    uid: u32,
    parent: u32,
}

impl fmt::Debug for LauncherEnv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LauncherEnv").field("uid", &self.uid).field("parent", &self.parent).finish()
    }
}

impl<'a> LauncherEnv<'a> {
    /// With the environment `variable`, the user's id and the parent process's id.
    pub const fn new(variable: &'a dyn Fn(&str) -> Option<String>, uid: u32, parent: u32) -> Self {
        Self { variable, uid, parent }
    }

    /// With this process's user and parent, and the environment `variable`.
    pub fn of_this_process(variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        Self::new(variable, rustix::process::geteuid().as_raw(), parent)
    }

    /// The value of a variable. An empty one counts as unset.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u32>, LaunchError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse();
        number.map(Some).map_err(|_| invalid(format!("invalid {name} {text:?}: expected a number")))
    }

    /// An optional number. `None` if it is invalid.
    fn hint(&self, name: &str) -> Option<u32> {
        self.get(name)?.parse().ok()
    }

    /// The values of those of `names` that are set, which identify a job.
    fn job(&self, names: &[&str]) -> String {
        names.iter().filter_map(|name| self.get(name)).collect::<Vec<_>>().join(".")
    }
}

fn invalid(line: String) -> LaunchError {
    LaunchError::new(line)
}

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// All ranks are on one node and meet at a Unix socket, whose name depends on the user and the
    /// job.
    Node {
        /// Identifies the job, equal on all ranks.
        words: String,
        /// An alternative for processes of one machine that do not see each other's sockets: a host
        /// and ports.
        or: Option<(String, Vec<u16>)>,
    },
    /// A directory below a directory that all ranks see. Rank 0 writes its address there.
    Directory(PathBuf),
    /// Rank 0 listens on the first of these ports that is free. The others try them in turn.
    Host {
        /// A name or an address.
        host: String,
        /// At least one.
        ports: Vec<u16>,
    },
    /// Rank `i` listens at entry `i`, and all ranks meet at rank 0's.
    List(Vec<(String, u16)>),
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { .. } => f.write_str("a socket of this node"),
            Self::Directory(path) => path.display().fmt(f),
            Self::Host { host, ports } => match &ports[..] {
                [one] => write!(f, "{host}:{one}"),
                [first, .., last] => write!(f, "{host}:{first}-{last}"),
                [] => f.write_str(host),
            },
            Self::List(all) => match all.first() {
                Some((host, port)) => write!(f, "{host}:{port}"),
                None => f.write_str("nowhere"),
            },
        }
    }
}

/// The facts about this process in the launcher's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The rank of this process.
    pub rank: Rank,
    /// The number of ranks.
    pub world_size: u32,
    /// The rank of this process on its node, where the launcher sets it.
    pub local_rank: Option<u32>,
    /// The number of ranks on this node.
    pub local_size: Option<u32>,
    /// The index of the node in the job, where the launcher sets it.
    pub node: Option<u32>,
    /// Where ranks meet, if it is known.
    pub rendezvous: Option<Rendezvous>,
    /// Identifies the job among concurrent ones, equal on all ranks. May be empty.
    pub job: String,
    /// The launcher's name, for messages.
    pub launcher: &'static str,
}

impl Launched {
    /// Detects the launcher of this process. `None` without one.
    ///
    /// # Errors
    ///
    /// One variable of a pair is missing, a number is invalid, the rank is not below the world
    /// size, or `FOREREAD_MEET` is invalid.
    pub fn by(env: &LauncherEnv<'_>) -> Result<Option<Self>, LaunchError> {
        for launcher in LAUNCHERS {
            let (rank, size) = (env.number(launcher.rank)?, env.number(launcher.size)?);
            let (rank, size) = match (rank, size) {
                (Some(rank), Some(size)) => (rank, size),
                (None, None) => continue,
                // SLURM's batch script sets only one of them. With a RANK set by hand it is a
                // mistake.
                _ if !launcher.both => continue,
                (rank, _) => {
                    let (is, not) = match rank {
                        Some(_) => (launcher.rank, launcher.size),
                        None => (launcher.size, launcher.rank),
                    };
                    return Err(invalid(format!("{is} is set and {not} is not: set both, or neither")));
                }
            };
            if launcher.needs.is_some_and(|needed| env.get(needed).is_none()) {
                continue;
            }
            if rank >= size {
                let (name, of) = (launcher.rank, launcher.size);
                return Err(invalid(format!("{name} is {rank} and {of} is {size}: ranks count from 0")));
            }
            return launcher.describe(env, rank, size).map(Some);
        }
        Ok(None)
    }

    /// A rank that the user sets, whatever the launcher. Ranks meet only where `FOREREAD_MEET` is
    /// set.
    ///
    /// # Errors
    ///
    /// The rank is not below the world size, or `FOREREAD_MEET` is invalid.
    pub fn explicit(rank: Rank, world_size: u32, env: &LauncherEnv<'_>) -> Result<Self, LaunchError> {
        if rank.0 >= world_size {
            return Err(invalid(format!("rank {rank} of {world_size}: ranks count from 0")));
        }
        let job = env.job(&["SLURM_JOB_ID"]);
        let rendezvous = parse_meet(env, &job, world_size)?;
        let (local_rank, local_size, node) = (None, None, None);
        Ok(Self {
            rank,
            world_size,
            local_rank,
            local_size,
            node,
            rendezvous,
            job,
            launcher: "the command line",
        })
    }

    /// The number of ranks on this node, if it is known.
    pub fn on_node(&self) -> Option<u32> {
        let all = matches!(self.rendezvous, Some(Rendezvous::Node { .. })).then_some(self.world_size);
        self.local_size.or(all)
    }

    /// The same for the stores of the job's nodes, which meet as its ranks do: at the next ports,
    /// or in another directory. All ranks of rank 0's node have rank 0 there, and the others rank
    /// 1. `None` for a job on one node.
    #[must_use]
    pub fn between_nodes(&self) -> Option<Self> {
        let is_one = matches!(self.rendezvous, Some(Rendezvous::Node { .. }));
        if is_one || self.local_size.is_none_or(|local| local >= self.world_size) {
            return None;
        }
        let rendezvous = self.rendezvous.clone().map(|of_ranks| match of_ranks {
            Rendezvous::Host { host, ports } => Rendezvous::Host { host, ports: ports_after(&ports) },
            // Other ranks of its host may listen at the ports after rank 0's.
            Rendezvous::List(all) => {
                let host = all.first().map(|(host, _)| host.clone()).unwrap_or_default();
                let last = all.iter().filter(|(other, _)| *other == host).map(|(_, port)| *port).max();
                Rendezvous::Host { host, ports: ports_after(last.as_slice()) }
            }
            Rendezvous::Directory(path) => {
                let mut name = path.into_os_string();
                name.push("-nodes");
                Rendezvous::Directory(name.into())
            }
            node @ Rendezvous::Node { .. } => node,
        });
        let (rank, job) = (Rank(u32::from(!self.is_with_rank_0())), format!("{} nodes", self.job));
        Some(Self { rank, rendezvous, job, ..self.clone() })
    }

    /// Whether this process is on rank 0's node. `false` if that is unknown.
    fn is_with_rank_0(&self) -> bool {
        // The ranks of a node are counted in their order. So all ranks below this one are there.
        self.node == Some(0) || self.local_rank == Some(self.rank.0) || self.rank.0 == 0
    }

    /// Whether ranks meet where processes of other users can connect, so that they need a token.
    pub fn needs_token(&self) -> bool {
        matches!(self.rendezvous, Some(Rendezvous::Host { .. } | Rendezvous::List(_)))
    }

    /// Where ranks meet.
    ///
    /// # Errors
    ///
    /// If it is unknown, with the remedy.
    pub fn meet(&self) -> Result<&Rendezvous, LaunchError> {
        self.rendezvous.as_ref().ok_or_else(|| {
            invalid(format!(
                "{} started {} ranks without a rendezvous: set {MEET} on all of them, to host:port \
                 of rank 0 or to a directory that all can access",
                self.launcher, self.world_size
            ))
        })
    }
}

/// One row of the table above.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// This variable must be set too.
    needs: Option<&'static str>,
    /// Whether one variable without the other is an error.
    both: bool,
    local_rank: &'static str,
    local_size: &'static str,
    node: &'static str,
    /// The variables that identify its jobs.
    job: &'static [&'static str],
}

const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        needs: None,
        both: true,
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        node: "GROUP_RANK",
        job: &["SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT"],
    },
    Launcher { rank: "OMPI_COMM_WORLD_RANK", ..OPEN_MPI },
    Launcher { rank: "PMIX_RANK", ..OPEN_MPI },
    Launcher {
        name: "MPICH",
        needs: Some("MPI_LOCALNRANKS"),
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        ..PMI
    },
    Launcher {
        name: "SLURM",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        needs: None,
        both: false,
        local_rank: "SLURM_LOCALID",
        local_size: "",
        node: "SLURM_NODEID",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    PMI,
];

const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    rank: "",
    size: "OMPI_COMM_WORLD_SIZE",
    needs: None,
    both: false,
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    node: "",
    job: &["PMIX_NAMESPACE"],
};

const PMI: Launcher = Launcher {
    name: "PMI",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    needs: None,
    both: false,
    local_rank: "PMI_LOCAL_RANK",
    local_size: "PMI_LOCAL_SIZE",
    node: "",
    job: &["PMI_JOBID", "PALS_APID"],
};

impl Launcher {
    fn describe(&self, env: &LauncherEnv<'_>, rank: u32, size: u32) -> Result<Launched, LaunchError> {
        let by_hand = self.rank == "RANK";
        let launcher = match by_hand {
            true if env.get("TORCHELASTIC_RUN_ID").is_some() => self.name,
            true if env.get("KUBERNETES_SERVICE_HOST").is_some() => "Kubernetes",
            true => "RANK and WORLD_SIZE",
            false => self.name,
        };
        let local_size = match self.name {
            "SLURM" => slurm_tasks(env),
            _ => env.hint(self.local_size),
        };
        let mut job = env.job(self.job);
        if job.is_empty() && matches!(self.name, "Open MPI" | "MPICH" | "PMI") {
            // Processes of one node have the same parent, the launcher's daemon.
            job = env.get("OMPI_MCA_ess_base_jobid").unwrap_or_else(|| format!("parent-{}", env.parent));
        }
        let mut launched = Launched {
            rank: Rank(rank),
            world_size: size,
            local_rank: env.hint(self.local_rank),
            local_size,
            node: env.hint(self.node),
            rendezvous: parse_meet(env, &job, size)?,
            job,
            launcher,
        };
        if launched.rendezvous.is_some() {
            return Ok(launched);
        }
        let master = env.get("MASTER_ADDR").map(|host| strip_brackets(&host).to_owned());
        let nodes = match self.name {
            "SLURM" => nodes(env)?,
            _ => None,
        };
        let one_node = match (&nodes, local_size) {
            (Some(nodes), _) => nodes.count == 1,
            (None, Some(local)) => local == size,
            // In Kubernetes' PyTorchJob, rank 0's MASTER_ADDR may be localhost and the others' a
            // service.
            (None, None) => {
                by_hand
                    && master.as_deref().is_some_and(is_loopback)
                    && env.get("KUBERNETES_SERVICE_HOST").is_none()
            }
        };
        let first = nodes.and_then(|nodes| nodes.first);
        let avoid = env.get("MASTER_PORT").and_then(|port| port.parse().ok()).filter(|_| master.is_some());
        let host = master.or(first).map(|host| (host, ports(&launched.job, avoid)));
        launched.rendezvous = match host {
            or if one_node => Some(Rendezvous::Node { words: format!("{launcher} {}", launched.job), or }),
            Some((host, ports)) => Some(Rendezvous::Host { host, ports }),
            None => None,
        };
        Ok(launched)
    }
}

/// The nodes of a SLURM step.
struct Nodes {
    count: u64,
    first: Option<String>,
}

fn nodes(env: &LauncherEnv<'_>) -> Result<Option<Nodes>, LaunchError> {
    let first_of = |names: &[&str]| names.iter().find_map(|name| env.get(name));
    let list = first_of(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let count = first_of(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"]);
    let hosts = list.map(|list| expand(&list)).transpose()?;
    let count = count.and_then(|count| count.parse().ok()).or(hosts.as_ref().map(|h| h.len() as u64));
    let first = hosts.and_then(|hosts| hosts.into_iter().next());
    Ok(count.map(|count| Nodes { count, first }))
}

/// The number of tasks of a SLURM step on this node.
fn slurm_tasks(env: &LauncherEnv<'_>) -> Option<u32> {
    let names = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    let text = names.iter().find_map(|name| env.get(name))?;
    tasks_of(&text, env.hint("SLURM_NODEID").unwrap_or(0))
}

/// The tasks of the node at a position. `4(x2),3` is four on each of two nodes and three on the
/// next.
fn tasks_of(text: &str, node: u32) -> Option<u32> {
    let mut counted = 0_u32;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.trim().strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        counted = counted.saturating_add(nodes);
        if node < counted {
            return tasks.trim().parse().ok();
        }
    }
    None
}

/// A host without the brackets of an IPv6 address.
fn strip_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether a host name means the local machine everywhere.
fn is_loopback(host: &str) -> bool {
    let address = strip_brackets(host);
    address == "localhost" || address.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Parses `FOREREAD_MEET`.
fn parse_meet(env: &LauncherEnv<'_>, job: &str, size: u32) -> Result<Option<Rendezvous>, LaunchError> {
    let Some(text) = env.get(MEET) else { return Ok(None) };
    let wrong = |why: &str| {
        let may = "it is host:port of rank 0, a directory with its full path, or each rank's host:port";
        invalid(format!("{MEET} is {text:?}: {why}; {may}"))
    };
    let path = match text.strip_prefix("file:") {
        // `file:///shared/meet`, `file:/shared/meet`.
        Some(path) => Some(path.strip_prefix("//").unwrap_or(path)),
        None => text.starts_with('/').then_some(&text[..]),
    };
    if let Some(path) = path {
        let path = PathBuf::from(path);
        return match path.is_absolute() {
            true => Ok(Some(Rendezvous::Directory(path.join(name("foreread", job))))),
            false => Err(wrong("the path is not absolute")),
        };
    }
    let mut all = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let (host, port) = entry.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
        let port = port.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| wrong("a port is a number from 1 to 65535"))?;
        let host = strip_brackets(host);
        if host.is_empty() || host.contains(['/', '[', ']']) || host.contains(char::is_whitespace) {
            return Err(wrong("there is no host"));
        }
        all.push((host.to_owned(), port));
    }
    match all.len() {
        // Other nodes cannot mean this one by that name, so no external token is needed.
        1 if is_loopback(&all[0].0) && env.get(TOKEN).is_none() => {
            Ok(Some(Rendezvous::Node { words: format!("{MEET} {text}"), or: None }))
        }
        1 => Ok(all.pop().map(|(host, port)| Rendezvous::Host { host, ports: vec![port] })),
        n if n as u64 == u64::from(size) => Ok(Some(Rendezvous::List(all))),
        n => Err(wrong(&format!("it lists {n} ranks of {size}"))),
    }
}

/// A short name for a directory.
fn name(start: &str, job: &str) -> String {
    format!("{start}-{:012x}", hash(job) & 0xffff_ffff_ffff)
}

impl Launched {
    /// The job as a number. It is not secret and distinguishes a mix-up from an attack.
    pub fn job_hash(&self) -> u64 {
        hash(&self.job)
    }
}

/// FNV-1a: the same on every machine and in every version. It needs no resistance to attacks.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The ports that a job may use, none near `avoid`.
fn ports(job: &str, avoid: Option<u16>) -> Vec<u16> {
    let room = u64::from(PORTS.end - PORTS.start - 4 * TORCH_PORTS);
    let mut first = PORTS.start + (hash(job) % room) as u16;
    let near =
        |first: u16, avoid: u16| avoid + TORCH_PORTS >= first && avoid <= first + MAX_PORTS + TORCH_PORTS;
    if avoid.is_some_and(|avoid| near(first, avoid.min(u16::MAX - TORCH_PORTS))) {
        first += 2 * TORCH_PORTS + MAX_PORTS + 1;
    }
    (first..first + MAX_PORTS).collect()
}

/// As many ports after these, or before them at the end of all ports.
fn ports_after(ports: &[u16]) -> Vec<u16> {
    let (count, first) = (ports.len() as u16, ports.iter().min().copied().unwrap_or_default());
    match ports.iter().max().and_then(|last| Some((*last, last.checked_add(count)?))) {
        Some((last, end)) => (last + 1..=end).collect(),
        None => (first.saturating_sub(count)..first).collect(),
    }
}

#[cfg(test)]
mod tests;
