//! How many ranks share this node's memory, whether they work together or not.

use foreread_peer::meet::{Launched, Surroundings};

/// As many as the launcher says; 1 where nobody says so.
pub(crate) fn on_node(environment: &dyn Fn(&str) -> Option<String>) -> u32 {
    // Lightning's own launcher says how many ranks there are and not which one this is, which does not matter here.
    let is_one = || environment("WORLD_SIZE").is_some_and(|size| !size.trim().is_empty());
    let completed = |name: &str| {
        let said = environment(name).filter(|value| !value.trim().is_empty());
        said.or_else(|| (name == "RANK" && is_one()).then(|| "0".to_owned()))
    };
    let launched = Launched::by(&Surroundings::of_this_process(&completed));
    // What contradicts itself is refused where ranks are told apart.
    launched.ok().flatten().and_then(|launched| launched.on_node()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(environment: &[(&str, &str)]) -> u32 {
        on_node(&|name| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn ranks_of_a_node_are_counted_by_whatever_started_them() {
        assert_eq!(told(&[]), 1);
        assert_eq!(told(&[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")]), 4);
        assert_eq!(told(&[("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")]), 2);
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(told(&[&open_mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()), 2);
        let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "7"), ("SLURM_NODEID", "2")];
        assert_eq!(told(&[&slurm[..], &[("SLURM_STEP_TASKS_PER_NODE", "2(x2),3")]].concat()), 3);
        // Of other nodes nothing is known.
        assert_eq!(told(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1")]), 1);
        assert_eq!(told(&[("RANK", "1"), ("WORLD_SIZE", "none")]), 1);
    }
}
