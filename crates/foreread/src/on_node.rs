//! Which of a node's ranks this is: they share its memory and its disks, whether they work together
//! or not.
//!
//! The launcher's environment says so, in the same words for every build: how much memory a rank
//! takes does not depend on the features that it was built with.

use foreread_launcher::{Launched, LauncherEnv};

/// A rank on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRank {
    /// Which one it is, from 0.
    pub(crate) rank: u32,
    /// How many there are, at least 1.
    pub(crate) ranks: u32,
}

impl NodeRank {
    /// A rank that has its node for itself, or does as if.
    pub(crate) const ALONE: Self = Self { rank: 0, ranks: 1 };

    /// The rank of this number among so many; what makes no sense counts as the first, or the only
    /// one.
    pub(crate) fn of(rank: Option<u32>, ranks: Option<u32>) -> Self {
        let ranks = ranks.unwrap_or(1).max(1);
        Self { rank: rank.filter(|rank| *rank < ranks).unwrap_or(0), ranks }
    }

    /// What the launcher says in these variables; alone where there is none, or it contradicts
    /// itself.
    pub(crate) fn launched(environment: &dyn Fn(&str) -> Option<String>) -> Self {
        // Lightning's own launcher sets the number of ranks and not the rank, which does not matter
        // here.
        let is_one = || environment("WORLD_SIZE").is_some_and(|size| !size.trim().is_empty());
        let completed = |name: &str| {
            let value = environment(name).filter(|value| !value.trim().is_empty());
            value.or_else(|| (name == "RANK" && is_one()).then(|| "0".to_owned()))
        };
        let launched = Launched::by(&LauncherEnv::of_this_process(&completed));
        // Contradictions are refused where ranks are told apart.
        let launched = launched.ok().flatten();
        launched.map_or(Self::ALONE, |launched| Self::of(launched.local_rank, launched.on_node()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(environment: &[(&str, &str)]) -> (u32, u32) {
        let get =
            |name: &str| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        let NodeRank { rank, ranks } = NodeRank::launched(&get);
        (rank, ranks)
    }

    #[test]
    // semantics: CACHE-9
    fn ranks_of_a_node_are_counted_by_whatever_started_them() {
        assert_eq!(told(&[]), (0, 1));
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
        assert_eq!(told(&[&torchrun[..], &[("LOCAL_WORLD_SIZE", "4")]].concat()), (1, 4));
        assert_eq!(
            told(&[&torchrun[..], &[("LOCAL_WORLD_SIZE", "1")]].concat()),
            (0, 1),
            "it makes no sense"
        );
        assert_eq!(told(&[("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")]), (1, 2));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(told(&[&open_mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()), (0, 2));
        let slurm =
            [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "7"), ("SLURM_NODEID", "2"), ("SLURM_LOCALID", "1")];
        assert_eq!(told(&[&slurm[..], &[("SLURM_STEP_TASKS_PER_NODE", "2(x2),3")]].concat()), (1, 3));
        // Of other nodes nothing is known.
        assert_eq!(told(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1")]), (0, 1));
        assert_eq!(told(&[("RANK", "1"), ("WORLD_SIZE", "none")]), (0, 1));
    }
}
