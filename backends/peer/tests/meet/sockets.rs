//! Real sockets and real files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use foreread_peer::Token;
use foreread_peer::meet::{
    Launched, LoaderDirectory, MeetErrorKind, Rendezvous, RendezvousSettings, RendezvousSteps, RunEnd,
    RunGroup,
};
use foreread_tier_testing::{NEVER, until};
use foreread_types::Rank;

use crate::support::{TOKEN, all, begin, compare, launched, leave_notice};

fn settings(launched: Launched, token: Option<&str>) -> RendezvousSettings {
    let token = token.map(|token| Token::new(token).unwrap());
    RendezvousSettings { token, deadline: NEVER, ..RendezvousSettings::new(launched, "1.0") }
}

/// All ranks on one node. The text distinguishes this job from others.
fn node(words: &str) -> Rendezvous {
    Rendezvous::Node { words: format!("{words} {}", std::process::id()), or: None }
}

async fn meet(size: u32, token: Option<&'static str>, rendezvous: impl Fn() -> Rendezvous) -> Vec<RunGroup> {
    meet_again(0, &Arc::default(), size, token, rendezvous).await
}

/// The processes' loader of this number.
async fn meet_again(
    loader: u16,
    board: &Arc<LoaderDirectory>,
    size: u32,
    token: Option<&'static str>,
    rendezvous: impl Fn() -> Rendezvous,
) -> Vec<RunGroup> {
    let ranks: Vec<_> = (0..size)
        .rev()
        .map(|rank| {
            let launched = launched(rank, size, rendezvous());
            let settings =
                RendezvousSettings { loader, board: Arc::clone(board), ..settings(launched, token) };
            tokio::spawn(async move { begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap() })
        })
        .collect();
    let mut groups = all(ranks).await;
    groups.reverse();
    groups
}

async fn leave(groups: Vec<RunGroup>) {
    let leaving: Vec<_> =
        groups.into_iter().map(|group| tokio::spawn(async move { group.leave(NEVER).await })).collect();
    assert!(all(leaving).await.iter().all(|left| *left == RunEnd::Together));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-8
async fn ranks_of_one_node_meet_without_a_token_or_a_file() {
    let (one, other) = (meet(4, None, || node("one")).await, meet(2, None, || node("other")).await);
    assert_ne!(one[0].run(), other[0].run(), "two jobs of a user");
    leave(one).await;
    leave(other).await;
}

/// A token that is set is required on one node, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-8
async fn rank_without_the_nodes_token_is_refused() {
    let place = || node("token");
    leave(meet(2, Some(TOKEN), place).await).await;
    let first = tokio::spawn(RendezvousSteps::join(settings(launched(0, 2, place()), Some(TOKEN))));
    let without =
        RendezvousSettings { deadline: Duration::from_secs(10), ..settings(launched(1, 2, place()), None) };
    let error = RendezvousSteps::join(without).await.unwrap_err();
    assert_eq!(error.kind(), MeetErrorKind::Secret, "{error}");
    first.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_a_shared_directory_meet_by_its_notice() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("job");
    leave(meet(3, None, || Rendezvous::Directory(path.clone())).await).await;
    // The notice of a dead run is replaced.
    leave_notice(&path, &["127.0.0.1:1", "unix:@nowhere"]);
    leave(meet(3, None, || Rendezvous::Directory(path.clone())).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-10
async fn removed_notice_is_written_again() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("job");
    let place = || Rendezvous::Directory(path.clone());
    let first = tokio::spawn(RendezvousSteps::join(settings(launched(0, 2, place()), None)));
    until("rank 0 writes its notice", || path.join("rank0").exists());
    fs::remove_file(path.join("rank0")).unwrap();
    let other = RendezvousSteps::join(settings(launched(1, 2, place()), None)).await;
    assert!(other.is_ok() && first.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-26
async fn interface_that_is_named_is_the_one_in_the_notice() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("job");
    let place = || Rendezvous::Directory(path.clone());
    let settings = |rank, interface: &str| RendezvousSettings {
        interface: Some(interface.to_owned()),
        ..settings(launched(rank, 2, place()), None)
    };
    let error = RendezvousSteps::join(settings(0, "nosuch")).await.unwrap_err();
    assert_eq!(error.kind(), MeetErrorKind::Setting);
    assert!(error.to_string().contains("lo (127.0.0.1)"), "{error}");

    let first = tokio::spawn(RendezvousSteps::join(settings(0, "=lo")));
    until("rank 0 writes its notice", || path.join("rank0").exists());
    let notice = fs::read_to_string(path.join("rank0")).unwrap();
    let addresses = notice.split_once("\"addresses\":[").unwrap().1.split_once(']').unwrap().0;
    let is_own =
        |address: &str| ["\"unix:", "\"127.", "\"[::1"].iter().any(|start| address.starts_with(start));
    assert!(addresses.contains("127.0.0.1:") && addresses.split(',').all(is_own), "{notice}");
    let other = RendezvousSteps::join(settings(1, "=lo")).await;
    assert!(other.is_ok() && first.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-12
async fn concurrent_loaders_in_one_directory_leave_nothing() {
    let base = tempfile::tempdir().unwrap();
    let (path, board) = (base.path().join("meet"), Arc::default());
    for rendezvous in [node("side by side"), Rendezvous::Directory(path.clone())] {
        let mut all = Vec::new();
        for loader in 0..3 {
            all.push(meet_again(loader, &board, 3, None, || rendezvous.clone()).await);
        }
        if matches!(rendezvous, Rendezvous::Directory(_)) {
            assert!(["rank0", "rank0-1", "rank0-2"].iter().all(|name| path.join(name).exists()));
        }
        // The first ends while the others continue, and another starts after it.
        leave(all.remove(0)).await;
        all.push(meet_again(3, &board, 3, None, || rendezvous.clone()).await);
        for groups in all {
            leave(groups).await;
        }
        assert!(!path.exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_loaders_share_one_given_port() {
    let (named, board) = (port(), Arc::default());
    let rendezvous = || Rendezvous::Host { host: "127.0.0.1".to_owned(), ports: vec![named] };
    let first = meet_again(0, &board, 2, Some(TOKEN), rendezvous).await;
    let second = meet_again(1, &board, 2, Some(TOKEN), rendezvous).await;
    leave(first).await;
    leave(meet_again(2, &board, 2, Some(TOKEN), rendezvous).await).await;
    leave(second).await;
}

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_meet_at_a_port_and_use_unix_sockets_on_a_node() {
    let ports = [port(), port(), port()];
    let rendezvous = || Rendezvous::Host { host: "127.0.0.1".to_owned(), ports: ports.to_vec() };
    let groups = meet(3, Some(TOKEN), rendezvous).await;
    let shown = format!("{:?}", groups[1].client(Rank(2)));
    assert!(shown.contains("Local(") && shown.contains("Tcp("), "{shown}");
    leave(groups).await;
}

/// Processes of one machine that do not see each other's sockets, with a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-8
async fn ranks_without_common_unix_sockets_meet_at_the_host() {
    let ports = vec![port()];
    let at = |words: &str| {
        let Rendezvous::Node { words, .. } = node(words) else { panic!("no node") };
        Rendezvous::Node { words, or: Some(("127.0.0.1".to_owned(), ports.clone())) }
    };
    // Different socket names simulate different network namespaces.
    let ranks = ["here", "there"].iter().zip(0..).map(|(words, rank)| {
        let settings = settings(launched(rank, 2, at(words)), Some(TOKEN));
        tokio::spawn(async move { begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap() })
    });
    let ranks: Vec<_> = ranks.collect();
    leave(all(ranks).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_of_a_list_listens_at_its_entry() {
    let list: Vec<_> = (0..3).map(|_| ("127.0.0.1".to_owned(), port())).collect();
    let groups = meet(3, Some(TOKEN), || Rendezvous::List(list.clone())).await;
    for (_, port) in &list {
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
    }
    leave(groups).await;
}

#[tokio::test]
async fn rank_without_a_token_does_not_listen_for_other_nodes() {
    let rendezvous = Rendezvous::Host { host: "node1".to_owned(), ports: vec![port()] };
    for rank in 0..2 {
        let error =
            RendezvousSteps::join(settings(launched(rank, 2, rendezvous.clone()), None)).await.unwrap_err();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        assert!(error.to_string().contains("export FOREREAD_TOKEN=$(foreread token)"), "{error}");
    }
}

#[tokio::test]
async fn directory_that_other_users_can_enter_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    for rank in 0..2 {
        let rendezvous = Rendezvous::Directory(path.clone());
        let error = RendezvousSteps::join(settings(launched(rank, 2, rendezvous), None)).await.unwrap_err();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consecutive_runs_in_one_directory_do_not_meet() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    let ranks = (0..3).map(|rank| {
        let path = path.clone();
        tokio::spawn(async move {
            let mut all = Vec::new();
            for _ in 0..20 {
                let launched = launched(rank, 3, Rendezvous::Directory(path.clone()));
                let group =
                    begin(RendezvousSteps::join(settings(launched, None)).await.unwrap()).await.unwrap();
                all.push(group.leave(NEVER).await);
            }
            all
        })
    });
    let ranks: Vec<_> = ranks.collect();
    assert!(all(ranks).await.into_iter().flatten().all(|left| left == RunEnd::Together));
    assert!(!path.exists());
}

/// Rank 0 sends to rank 1 at the moment at which that one sends its reason for giving up and
/// closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reason_for_giving_up_survives_a_concurrent_send() {
    for run in 0..100 {
        let ranks = (0..2).map(|rank| {
            let launched = launched(rank, 2, node(&format!("gives up {run}")));
            tokio::spawn(async move {
                let mut joining = RendezvousSteps::join(settings(launched, None)).await.unwrap();
                if rank == 1 {
                    joining.give_up("its disk is full").await;
                    return None;
                }
                for _ in 0..run {
                    joining.working("listing").await;
                    tokio::task::yield_now().await;
                }
                compare(&mut joining, Vec::new()).await.err()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let began = std::time::Instant::now();
        let error = all(ranks).await.remove(0).unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Refused, "run {run}, after {:?}: {error}", began.elapsed());
        assert!(error.to_string().ends_with("gave up: its disk is full"), "run {run}: {error}");
    }
}
