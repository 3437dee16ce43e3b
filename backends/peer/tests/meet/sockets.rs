//! Real sockets and real files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use foreread_peer::Token;
use foreread_peer::meet::{Group, Joining, Launched, Left, MeetErrorKind, Rendezvous, Settings};

use crate::support::{TOKEN, all, begin, launched};

fn settings(launched: Launched, token: Option<&str>) -> Settings {
    let token = token.map(|token| Token::new(token).unwrap());
    Settings::new(launched, "1.0").with_token(token).with_deadline(Duration::from_secs(20))
}

async fn meet(
    size: u32,
    token: Option<&'static str>,
    rendezvous: impl Fn() -> Rendezvous,
    sockets: Option<&Path>,
) -> Vec<Group> {
    meet_again(0, size, token, rendezvous, sockets).await
}

/// The processes' meeting of this number.
async fn meet_again(
    meeting: u16,
    size: u32,
    token: Option<&'static str>,
    rendezvous: impl Fn() -> Rendezvous,
    sockets: Option<&Path>,
) -> Vec<Group> {
    let ranks: Vec<_> = (0..size)
        .rev()
        .map(|rank| {
            let mut launched = launched(rank, size, rendezvous());
            launched.sockets = sockets.map(|path| path.join("sockets")).into_iter().collect();
            let stores: Vec<_> = (0..size).map(foreread_types::StoreId).collect();
            let settings = settings(launched, token).with_meeting(meeting);
            tokio::spawn(async move { begin(Joining::join(settings).await.unwrap(), &stores).await.unwrap() })
        })
        .collect();
    let mut groups = all(ranks).await;
    groups.reverse();
    groups
}

async fn leave(groups: Vec<Group>) {
    let leaving: Vec<_> = groups
        .into_iter()
        .map(|group| tokio::spawn(async move { group.leave(Duration::from_secs(20)).await }))
        .collect();
    assert!(all(leaving).await.iter().all(|left| *left == Left::Together));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_one_node_meet_in_a_private_directory_and_leave_nothing_behind() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    let groups = meet(4, None, || Rendezvous::Node(vec![path.clone()]), None).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("rank0"))), (0o700, 0o600));
    leave(groups).await;
    let left: Vec<_> =
        fs::read_dir(&path).map(|all| all.flatten().map(|e| e.file_name()).collect()).unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_share_a_directory_meet_by_what_rank_0_wrote_there() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("job");
    leave(meet(3, None, || Rendezvous::Directory(path.clone()), Some(base.path())).await).await;
    // Where another run died, its notice is replaced.
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let stale = r#"{"instance":1,"addresses":["127.0.0.1:1","unix:/nowhere"],"token":"4c0d92f7ba8e4167a35e19d2c680fb73"}"#;
    fs::write(path.join("rank0"), stale).unwrap();
    fs::set_permissions(path.join("rank0"), fs::Permissions::from_mode(0o600)).unwrap();
    leave(meet(3, None, || Rendezvous::Directory(path.clone()), None).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meetings_side_by_side_in_one_directory_have_each_its_notice_and_leave_nothing_behind() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    for rendezvous in [Rendezvous::Node(vec![path.clone()]), Rendezvous::Directory(path.clone())] {
        let mut all = Vec::new();
        for meeting in 0..3 {
            all.push(meet_again(meeting, 3, None, || rendezvous.clone(), None).await);
        }
        assert!(["rank0", "rank0-1", "rank0-2"].iter().all(|name| path.join(name).exists()));
        // The first ends while the others go on, and another is held after it.
        leave(all.remove(0)).await;
        all.push(meet_again(3, 3, None, || rendezvous.clone(), None).await);
        for groups in all {
            leave(groups).await;
        }
        assert!(!path.exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meetings_side_by_side_share_one_port_that_the_user_named() {
    let named = port();
    let rendezvous = || Rendezvous::Host { host: "127.0.0.1".to_owned(), ports: vec![named] };
    let first = meet_again(0, 2, Some(TOKEN), rendezvous, None).await;
    let second = meet_again(1, 2, Some(TOKEN), rendezvous, None).await;
    leave(first).await;
    leave(meet_again(2, 2, Some(TOKEN), rendezvous, None).await).await;
    leave(second).await;
}

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_meet_at_a_port_and_talk_by_sockets_where_they_share_a_node() {
    let base = tempfile::tempdir().unwrap();
    let ports = [port(), port(), port()];
    let rendezvous = || Rendezvous::Host { host: "127.0.0.1".to_owned(), ports: ports.to_vec() };
    let groups = meet(3, Some(TOKEN), rendezvous, Some(base.path())).await;
    assert_eq!(fs::read_dir(base.path().join("sockets")).unwrap().count(), 3);
    let tier = foreread_tier::Peers::tier(&groups[1], foreread_types::StoreId(2)).unwrap();
    let shown = format!("{tier:?}");
    assert!(shown.contains("Unix(") && shown.contains("Tcp("), "{shown}");
    leave(groups).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_of_a_list_listens_at_its_entry() {
    let list: Vec<_> = (0..3).map(|_| ("127.0.0.1".to_owned(), port())).collect();
    let groups = meet(3, Some(TOKEN), || Rendezvous::List(list.clone()), None).await;
    for (_, port) in &list {
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
    }
    leave(groups).await;
}

#[tokio::test]
async fn without_a_token_nobody_listens_for_other_nodes() {
    let rendezvous = Rendezvous::Host { host: "node1".to_owned(), ports: vec![port()] };
    for rank in 0..2 {
        let error = Joining::join(settings(launched(rank, 2, rendezvous.clone()), None)).await.unwrap_err();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        assert!(error.to_string().contains("export FOREREAD_TOKEN=$(foreread token)"), "{error}");
    }
}

#[tokio::test]
async fn a_directory_that_others_can_use_is_no_place_to_meet() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    for rank in 0..2 {
        let rendezvous = Rendezvous::Node(vec![path.clone()]);
        let error = Joining::join(settings(launched(rank, 2, rendezvous), None)).await.unwrap_err();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runs_one_after_another_in_one_directory_do_not_meet_each_other() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    let ranks = (0..3).map(|rank| {
        let path = path.clone();
        tokio::spawn(async move {
            let stores = [0, 1, 2].map(foreread_types::StoreId);
            let mut all = Vec::new();
            for _ in 0..20 {
                let launched = launched(rank, 3, Rendezvous::Node(vec![path.clone()]));
                let group =
                    begin(Joining::join(settings(launched, None)).await.unwrap(), &stores).await.unwrap();
                all.push(group.leave(Duration::from_secs(20)).await);
            }
            all
        })
    });
    let ranks: Vec<_> = ranks.collect();
    assert!(all(ranks).await.into_iter().flatten().all(|left| left == Left::Together));
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_of_ranks_that_were_killed_do_not_pile_up() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    // No process has these numbers. Dropping a listener leaves its file.
    let socket = |name: &str, age: u64| {
        let file = path.join(name);
        let listener = std::os::unix::net::UnixListener::bind(&file).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(age);
        let opened =
            rustix::fs::Timestamps { last_access: timespec(long_ago), last_modification: timespec(long_ago) };
        rustix::fs::utimensat(rustix::fs::CWD, &file, &opened, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
        (file, listener)
    };
    let (dead, listener) = socket("3.4194305.00000001.0", 1000);
    drop(listener);
    let (young, listener) = socket("3.4194306.00000001.0", 1);
    drop(listener);
    let (elsewhere, _lives) = socket("3.4194307.00000001.0", 1000);
    leave(meet(2, None, || Rendezvous::Node(vec![path.clone()]), None).await).await;
    assert!(!dead.exists() && young.exists() && elsewhere.exists());
}

/// What an earlier attempt met is no reason when the later ones meet nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stood_in_the_way_once_is_not_said_when_it_is_gone() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("meet");
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let stale =
        r#"{"instance":1,"node":"","addresses":["127.0.0.1:1"],"token":"4c0d92f7ba8e4167a35e19d2c680fb73"}"#;
    fs::write(path.join("rank0"), stale).unwrap();
    fs::set_permissions(path.join("rank0"), fs::Permissions::from_mode(0o600)).unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let progress = move |waiting: &_| drop(tell.send(format!("{waiting}")));
    let launched = launched(1, 2, Rendezvous::Directory(path.clone()));
    let settings =
        settings(launched, None).with_deadline(Duration::from_secs(6)).with_progress(Box::new(progress));
    let joining = tokio::spawn(Joining::join(settings));
    let first = told.recv().await.unwrap();
    assert!(first.contains("cannot connect"), "{first}");
    fs::remove_file(path.join("rank0")).unwrap();
    let error = joining.await.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("within 6 s; see whether it was started, and whether it says the same"),
        "{error}"
    );
}

/// Rank 0 speaks to rank 1 at the very moment at which that one says why it gives up and closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_rank_gives_up_is_heard_although_rank_0_is_just_speaking_to_it() {
    let base = tempfile::tempdir().unwrap();
    for run in 0..100 {
        let path = base.path().join(format!("meet{run}"));
        let ranks = (0..2).map(|rank| {
            let launched = launched(rank, 2, Rendezvous::Node(vec![path.clone()]));
            tokio::spawn(async move {
                let mut joining = Joining::join(settings(launched, None)).await.unwrap();
                if rank == 1 {
                    joining.give_up("its disk is full").await;
                    return None;
                }
                for _ in 0..run {
                    joining.working("listing").await;
                    tokio::task::yield_now().await;
                }
                joining.compare(Vec::new()).await.err()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let began = std::time::Instant::now();
        let error = all(ranks).await.remove(0).unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Refused, "run {run}, after {:?}: {error}", began.elapsed());
        assert!(error.to_string().ends_with("gave up: its disk is full"), "run {run}: {error}");
    }
}

fn timespec(time: std::time::SystemTime) -> rustix::fs::Timespec {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
    rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
}
