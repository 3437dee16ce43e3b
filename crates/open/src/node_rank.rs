//! This rank's number among the ranks of its node. They share memory and disks, in a group or not.
//!
//! It comes from the launcher's environment, with the same variables in every build. A rank's
//! memory does not depend on the features of its build.

use foreread_launcher::{Launched, LauncherEnv};
use foreread_types::RankOf;

/// The rank on its node from the launcher's variables. Alone without a launcher, or if its
/// variables contradict each other.
pub fn launched(environment: &dyn Fn(&str) -> Option<String>) -> RankOf {
    // Lightning's own launcher sets the number of ranks but not the rank, which is not needed for
    // this.
    let is_one = || environment("WORLD_SIZE").is_some_and(|size| !size.trim().is_empty());
    let completed = |name: &str| {
        let value = environment(name).filter(|value| !value.trim().is_empty());
        value.or_else(|| (name == "RANK" && is_one()).then(|| "0".to_owned()))
    };
    // The rendezvous reports contradictions.
    let found = Launched::by(&LauncherEnv::of_this_process(&completed)).ok().flatten();
    let Some(found) = found else { return RankOf::ALONE };
    let ranks = found.on_node().unwrap_or(1).max(1);
    // Invalid ranks count as the first.
    RankOf { rank: found.local_rank.filter(|rank| *rank < ranks).unwrap_or(0), ranks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_rank_of(environment: &[(&str, &str)]) -> (u32, u32) {
        let get =
            |name: &str| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        let RankOf { rank, ranks } = launched(&get);
        (rank, ranks)
    }

    #[test]
    // semantics: CACHE-9
    fn ranks_of_a_node_are_counted_by_any_launcher() {
        assert_eq!(node_rank_of(&[]), (0, 1));
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
        assert_eq!(node_rank_of(&[&torchrun[..], &[("LOCAL_WORLD_SIZE", "4")]].concat()), (1, 4));
        assert_eq!(
            node_rank_of(&[&torchrun[..], &[("LOCAL_WORLD_SIZE", "1")]].concat()),
            (0, 1),
            "contradictory"
        );
        assert_eq!(
            node_rank_of(&[("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")]),
            (1, 2)
        );
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(node_rank_of(&[&open_mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()), (0, 2));
        let slurm =
            [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "7"), ("SLURM_NODEID", "2"), ("SLURM_LOCALID", "1")];
        assert_eq!(node_rank_of(&[&slurm[..], &[("SLURM_STEP_TASKS_PER_NODE", "2(x2),3")]].concat()), (1, 3));
        // The number of ranks on other nodes is unknown.
        assert_eq!(node_rank_of(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1")]), (0, 1));
        assert_eq!(node_rank_of(&[("RANK", "1"), ("WORLD_SIZE", "none")]), (0, 1));
    }
}
