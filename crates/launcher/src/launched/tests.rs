//! Launchers' environments as observed (Open MPI 4.1, hydra 4.0) or documented.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn launched(variables: &[(&str, &str)]) -> Result<Option<Launched>, LaunchError> {
    let map: HashMap<_, _> = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Launched::by(&LauncherEnv::new(&|name| map.get(name).cloned(), 1000, 4321))
}

fn found(variables: &[(&str, &str)]) -> Launched {
    launched(variables).unwrap().unwrap()
}

fn one_node(launched: &Launched) -> &str {
    match &launched.rendezvous {
        Some(Rendezvous::Node { words, .. }) => words,
        other => panic!("{other:?}"),
    }
}

fn host(launched: &Launched) -> (&str, &[u16]) {
    match &launched.rendezvous {
        Some(Rendezvous::Host { host, ports }) => (host, ports),
        other => panic!("{other:?}"),
    }
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
];

#[test]
fn environment_without_a_launcher_gives_none() {
    assert_eq!(launched(&[]).unwrap(), None);
    assert_eq!(launched(&[("RANK", ""), ("WORLD_SIZE", " "), ("SLURM_PROCID", "0")]).unwrap(), None);
}

#[test]
fn torchrun_gives_a_host_and_never_its_own_port() {
    let it = found(TORCHRUN);
    assert_eq!((it.rank, it.world_size, it.launcher), (Rank(5), 8, "torchrun"));
    assert_eq!((it.local_rank, it.local_size, it.node), (Some(1), Some(4), Some(1)));
    let (name, ports) = host(&it);
    assert_eq!((name, ports.len()), ("node7", 4));
    assert!(ports.iter().all(|port| (20_000..28_000).contains(port)), "{ports:?}");
    // Every rank computes the same, whatever its own name for rank 0.
    let mut other = TORCHRUN.to_vec();
    other[0] = ("RANK", "0");
    other[5] = ("MASTER_ADDR", "node7.cluster");
    assert_eq!(host(&found(&other)).1, ports);
}

/// An IPv6 address may be written as in a URL.
#[test]
// semantics: RANK-26
fn address_of_the_master_may_stand_in_brackets() {
    let mut variables = TORCHRUN.to_vec();
    variables[5] = ("MASTER_ADDR", "[fd00::7]");
    assert_eq!(host(&found(&variables)).0, "fd00::7");
}

#[test]
fn torchrun_on_one_node_meets_at_a_unix_socket() {
    let mut variables = TORCHRUN.to_vec();
    variables[3] = ("LOCAL_WORLD_SIZE", "8");
    let it = found(&variables);
    // Containers that do not see each other's sockets use the host.
    let Some(Rendezvous::Node { or: Some((host, ports)), .. }) = &it.rendezvous else { panic!("{it:?}") };
    assert_eq!((&host[..], ports.len()), ("node7", 4));
    // A concurrent run of the same user has another one.
    variables[6] = ("MASTER_PORT", "29501");
    assert_ne!(one_node(&found(&variables)), one_node(&it));
}

#[test]
fn ranks_started_by_hand_meet_on_this_host() {
    for address in ["localhost", "127.0.0.1", "::1"] {
        let it = found(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", address)]);
        assert_eq!(it.launcher, "RANK and WORLD_SIZE");
        one_node(&it);
    }
    let it = found(&[("RANK", "1"), ("WORLD_SIZE", "2")]);
    assert_eq!(it.rendezvous, None);
    let error = it.meet().unwrap_err().to_string();
    assert!(error.contains("set FOREREAD_MEET on all of them"), "{error}");
}

#[test]
fn ray_train_gives_a_host() {
    let it = found(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("NODE_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.7"),
        ("MASTER_PORT", "41231"),
    ]);
    assert_eq!((it.rank, host(&it).0), (Rank(3), "10.0.0.7"));
}

#[test]
fn pytorchjob_with_localhost_is_not_one_node() {
    let job = [("WORLD_SIZE", "2"), ("MASTER_PORT", "23456"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
    let with = |rank, address| found(&[&job[..], &[("RANK", rank), ("MASTER_ADDR", address)]].concat());
    let (first, second) = (with("0", "localhost"), with("1", "train-master-0"));
    assert_eq!(
        (first.launcher, host(&first).0, host(&second).0),
        ("Kubernetes", "localhost", "train-master-0")
    );
    assert_eq!(host(&first).1, host(&second).1);
}

#[test]
fn slurm_on_several_nodes_meets_at_the_first_of_the_step() {
    let it = found(&[
        ("SLURM_PROCID", "6"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_NODEID", "1"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_NODELIST", "node[001-004,7]"),
        ("SLURM_STEP_NODELIST", "node[003-004]"),
        ("SLURM_NNODES", "2"),
    ]);
    assert_eq!((it.rank, it.world_size, it.launcher), (Rank(6), 8, "SLURM"));
    assert_eq!((it.local_rank, it.node, &it.job[..]), (Some(2), Some(1), "4711.0"));
    assert_eq!(host(&it).0, "node003");
}

#[test]
fn master_address_precedes_slurms_first_node() {
    let it = found(&[
        ("SLURM_PROCID", "6"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_JOB_NODELIST", "node[001-004,7]"),
        ("MASTER_ADDR", "node001-ib0"),
    ]);
    assert_eq!(host(&it).0, "node001-ib0");
}

#[test]
fn slurm_on_one_node_meets_at_a_unix_socket() {
    let base =
        [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "2")];
    for more in [("SLURM_NNODES", "1"), ("SLURM_STEP_NODELIST", "vm"), ("SLURM_JOB_NODELIST", "n[3]")] {
        one_node(&found(&[&base[..], &[more]].concat()));
    }
    assert_eq!(found(&base).rendezvous, None);
}

#[test]
fn slurm_tasks_are_counted_for_this_node() {
    let all = |text: &str| (0..5).map(|node| tasks_of(text, node)).collect::<Vec<_>>();
    assert_eq!(all("4(x2),3"), [Some(4), Some(4), Some(3), None, None]);
    assert_eq!(all("2,1(x3)"), [Some(2), Some(1), Some(1), Some(1), None]);
    assert!(all("").iter().chain(&all("2(x")).chain(&all("x(x9)")).all(Option::is_none));
    let base = [("SLURM_PROCID", "6"), ("SLURM_NTASKS", "11"), ("SLURM_NNODES", "3"), ("SLURM_NODEID", "2")];
    let step = [("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"), ("SLURM_TASKS_PER_NODE", "8(x3)")];
    assert_eq!(found(&[&base[..], &step].concat()).on_node(), Some(3));
    assert_eq!(found(&base).on_node(), None);
}

#[test]
fn ranks_with_a_node_rendezvous_are_all_on_the_node() {
    let it = found(&[("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "localhost")]);
    assert_eq!(it.on_node(), Some(3));
    assert_eq!(found(TORCHRUN).on_node(), Some(4));
}

const OPEN_MPI_4: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_FILE_LOCATION", "/tmp/ompi.vm.0/pid.3495/0/0"),
    ("OMPI_MCA_ess_base_jobid", "1633222657"),
    ("OMPI_MCA_orte_jobfam_session_dir", "/tmp/ompi.vm.0/pid.3495"),
    ("PMIX_NAMESPACE", "1633222657"),
    ("PMIX_RANK", "1"),
    ("PMIX_SERVER_TMPDIR", "/tmp/ompi.vm.0/pid.3495"),
];

#[test]
fn open_mpi_on_one_node_meets_at_a_unix_socket() {
    let it = found(OPEN_MPI_4);
    assert_eq!((it.rank, it.world_size, it.local_rank, it.launcher), (Rank(1), 2, Some(1), "Open MPI"));
    assert!(one_node(&it).starts_with("Open MPI "), "{it:?}");
}

#[test]
fn open_mpi_5_is_detected_by_pmix() {
    let it = found(&[
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "prterun-vm-77@1"),
        ("PMIX_RANK", "3"),
        ("PMIX_SERVER_TMPDIR", "/tmp/prte.vm.1000/dvm.77"),
    ]);
    assert_eq!((it.rank, it.launcher), (Rank(3), "Open MPI"));
    assert_eq!(one_node(&it), "Open MPI prterun-vm-77@1");
}

#[test]
fn open_mpi_on_several_nodes_requires_foreread_meet() {
    let mut variables = OPEN_MPI_4.to_vec();
    variables[1] = ("OMPI_COMM_WORLD_SIZE", "4");
    let error = found(&variables).meet().unwrap_err();
    assert!(error.to_string().starts_with("Open MPI started 4 ranks"), "{error}");
    variables.push(("FOREREAD_MEET", "node1:7000"));
    assert_eq!(host(&found(&variables)), ("node1", &[7000][..]));
}

#[test]
fn mpirun_in_a_batch_job_precedes_slurms_variables() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9"), ("SLURM_NNODES", "1")];
    let it = found(&[&batch[..], OPEN_MPI_4].concat());
    assert_eq!((it.rank, it.launcher), (Rank(1), "Open MPI"));
    let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "1")];
    let it = found(&[&batch[..], &hydra].concat());
    assert_eq!((it.rank, it.launcher), (Rank(1), "MPICH"));
    // srun --mpi=pmi2 sets PMI's variables too, and SLURM's are more complete.
    assert_eq!(found(&[&batch[..], &hydra[..2]].concat()).launcher, "SLURM");
}

#[test]
fn mpich_on_one_node_meets_by_its_parent_process() {
    let it = found(&[
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("PMI_FD", "8"),
        ("MPI_LOCALNRANKS", "2"),
        ("MPI_LOCALRANKID", "1"),
    ]);
    assert_eq!((it.rank, it.world_size, it.local_rank, &it.job[..]), (Rank(1), 2, Some(1), "parent-4321"));
    one_node(&it);
    let far = found(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")]);
    assert!(far.meet().is_err());
}

#[test]
fn foreread_meet_takes_precedence_and_names_mistakes() {
    let with = |text| launched(&[TORCHRUN, &[("FOREREAD_MEET", text)]].concat());
    let ok = |text| with(text).unwrap().unwrap();
    assert_eq!(host(&ok("node1:7000")), ("node1", &[7000][..]));
    assert_eq!(host(&ok("[fd00::1]:7000")), ("fd00::1", &[7000][..]));
    for text in ["/shared/meet", "file:/shared/meet", "file:///shared/meet"] {
        match ok(text).rendezvous {
            Some(Rendezvous::Directory(path)) => {
                assert_eq!(path.parent().unwrap().to_str(), Some("/shared/meet"))
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let list = (0..8).map(|i| format!("n{i}:700{i}")).collect::<Vec<_>>().join(", ");
    match ok(&list).rendezvous {
        Some(Rendezvous::List(all)) => assert_eq!(all[7], ("n7".to_owned(), 7007)),
        other => panic!("{other:?}"),
    }
    for (text, why) in [
        ("node1", "there is no port"),
        ("node1:0", "1 to 65535"),
        ("node1:http", "1 to 65535"),
        (":7000", "there is no host"),
        ("a:1,b:2", "it lists 2 ranks of 8"),
        ("file:meet", "not absolute"),
        ("tcp://a:1", "there is no host"),
    ] {
        let error = with(text).unwrap_err();
        assert!(
            error.to_string().contains(why) && error.to_string().contains("FOREREAD_MEET"),
            "{text}: {error}"
        );
    }
}

#[test]
fn incomplete_pair_or_rank_above_world_size_is_an_error() {
    for (variables, why) in [
        (&[("RANK", "1")][..], "RANK is set and WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "2")], "WORLD_SIZE is set and RANK is not"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2 and WORLD_SIZE is 2"),
        (&[("RANK", "one"), ("WORLD_SIZE", "2")], "expected a number"),
        (&[("SLURM_PROCID", "4"), ("SLURM_NTASKS", "4")], "SLURM_PROCID is 4"),
    ] {
        let error = launched(variables).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let none = LauncherEnv::new(&|_| None, 0, 1);
    assert!(Launched::explicit(Rank(2), 2, &none).is_err());
    assert_eq!(Launched::explicit(Rank(1), 2, &none).unwrap().rendezvous, None);
}

#[test]
// semantics: PY-22
fn stores_of_nodes_meet_next_to_the_ranks() {
    let between = |changes: &[(&'static str, &'static str)]| {
        let of_torchrun = TORCHRUN.iter().filter(|(name, _)| !changes.iter().any(|(is, _)| is == name));
        found(&of_torchrun.chain(changes).copied().collect::<Vec<_>>()).between_nodes()
    };
    let (ranks, nodes) = (found(TORCHRUN), between(&[]).unwrap());
    let (_, of_ranks) = host(&ranks);
    let (name, ports) = host(&nodes);
    assert_eq!((name, ports[0], ports.len()), ("node7", of_ranks[3] + 1, 4));
    assert!((nodes.rank, nodes.needs_token()) == (Rank(1), true) && nodes.job_hash() != ranks.job_hash());
    // Rank 0's node has a number, or ranks that are counted like the job's.
    let rank = |rank, local, node| {
        between(&[("RANK", rank), ("LOCAL_RANK", local), ("GROUP_RANK", node)]).unwrap().rank.0
    };
    assert_eq!(
        (rank("2", "2", ""), rank("2", "1", ""), rank("2", "1", "0"), rank("0", "", "")),
        (0, 1, 0, 0)
    );
    let meet = |text| between(&[("FOREREAD_MEET", text)]).unwrap();
    assert_eq!(host(&meet("a:7000")), ("a", &[7001][..]));
    assert_eq!(host(&meet("a:65535")), ("a", &[65534][..]));
    let list = meet("a:7000,a:7002,b:7009,b:1,c:1,c:2,d:1,d:2");
    assert_eq!(host(&list), ("a", &[7003][..]));
    let [Some(Rendezvous::Directory(nodes)), Some(Rendezvous::Directory(ranks))] =
        [meet("/shared").rendezvous, found(&[TORCHRUN, &[("FOREREAD_MEET", "/shared")]].concat()).rendezvous]
    else {
        panic!("no directories")
    };
    assert!(nodes.parent() == ranks.parent() && nodes != ranks, "{nodes:?} {ranks:?}");
    assert!(!meet("/shared").needs_token());
    // One node, or an unknown number of ranks on this node.
    assert_eq!(between(&[("LOCAL_WORLD_SIZE", "8")]), None);
    assert_eq!(between(&[("FOREREAD_MEET", "localhost:7000")]), None);
    assert_eq!(between(&[("LOCAL_WORLD_SIZE", "")]), None);
    assert_eq!(between(&[("MASTER_ADDR", "")]).unwrap().rendezvous, None);
}

proptest! {
    #[test]
    fn computed_ports_are_not_near_master_port(job in "[a-z0-9.]{0,20}", master in any::<u16>()) {
        let ports = ports(&job, Some(master));
        prop_assert_eq!(ports.len(), usize::from(MAX_PORTS));
        for port in ports {
            prop_assert!(PORTS.contains(&port));
            prop_assert!(port.abs_diff(master) > TORCH_PORTS, "{} is near {}", port, master);
        }
    }
}
