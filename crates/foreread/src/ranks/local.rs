//! Which of its node's ranks this is, as far as the launcher says.

use foreread_peer::meet::{Launched, Surroundings};

use crate::on_node::OnNode;

/// What the launcher says; alone where nobody says so.
pub(crate) fn on_node(environment: &dyn Fn(&str) -> Option<String>) -> OnNode {
    // Lightning's own launcher says how many ranks there are and not which one this is, which does not matter here.
    let is_one = || environment("WORLD_SIZE").is_some_and(|size| !size.trim().is_empty());
    let completed = |name: &str| {
        let said = environment(name).filter(|value| !value.trim().is_empty());
        said.or_else(|| (name == "RANK" && is_one()).then(|| "0".to_owned()))
    };
    let launched = Launched::by(&Surroundings::of_this_process(&completed));
    // What contradicts itself is refused where ranks are told apart.
    let launched = launched.ok().flatten();
    launched.map_or(OnNode::ALONE, |launched| OnNode::told(launched.local_rank, launched.on_node()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(environment: &[(&str, &str)]) -> (u32, u32) {
        let get =
            |name: &str| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        let OnNode { rank, ranks } = on_node(&get);
        (rank, ranks)
    }

    #[test]
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
