//! Servers that hang, are slow or evict the client, and files in an archive.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use foreread_lustre::read_layout;
use foreread_lustre_testing::{Counts, EvictedFrom, LayoutSpec, Recall, StandInOptions};
use foreread_tier::ObjectLayout;
use foreread_tier_testing::until;
use rustix::io::Errno;

use super::{Finally, KIB, Mounted, assert_range, is_mounted, mounted};

/// `ost-2` is on OST 2, and so on.
fn by_name() -> StandInOptions {
    let ost = |path: &str| path.bytes().last().map_or(0, |digit| u32::from(digit - b'0'));
    StandInOptions::new(4).with_layout(move |path, _| LayoutSpec::on([ost(path)], 1 << 20))
}

const FILES: &[(&str, usize)] = &[("ost-0", 64 * KIB), ("ost-1", 64 * KIB), ("ost-2", 64 * KIB)];

fn read(file: &File) -> io::Result<usize> {
    file.read_at(&mut [0; 100], 0)
}

#[test]
#[ignore = "needs FUSE"]
fn hung_ost_answers_when_it_resumes() {
    let mounted = mounted(by_name(), FILES);
    let file = mounted.open("ost-1");
    thread::scope(|scope| {
        let hung = mounted.hang(1);
        let reader = scope.spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert_range(&file, "ost-1", 500, 1000);
            thread
        });
        let waiting = || mounted.stand_in.waiting_threads(1);
        until("the reader waits", || waiting().len() == 1);
        let own = mounted.stand_in.waiting_threads_by_ost(std::process::id());
        assert_eq!(own, [0, 1, 0, 0]);
        assert_eq!(mounted.stand_in.waiting_threads_by_ost(1), [0; 4]);
        // Other OSTs and the MDT answer, and so does the MDT for files of the hung one.
        assert_range(&mounted.open("ost-2"), "ost-2", 0, 5000);
        assert_eq!(mounted.open("ost-1").metadata().unwrap().len(), 64 << 10);
        let thread = waiting()[0];
        assert!(!reader.is_finished());
        drop(hung);
        assert_eq!(reader.join().unwrap(), thread);
        until("the thread is no longer counted", || waiting().is_empty());
    });
}

#[test]
#[ignore = "needs FUSE"]
fn unmounting_ends_readers_of_a_hung_ost() {
    let Mounted { stand_in, backing } = mounted(by_name(), FILES);
    let root = stand_in.root().to_owned();
    assert!(is_mounted(&root));
    stand_in.hang(2);
    let mut child = Command::new("cat").arg(root.join("ost-2")).stderr(Stdio::piped()).spawn().unwrap();
    let file = File::open(root.join("ost-2")).unwrap();
    let reader = thread::spawn(move || read(&file).unwrap_err());
    until("both wait", || stand_in.waiting_threads(2).len() == 2);
    assert_eq!(stand_in.waiting_threads_by_ost(child.id()), [0, 0, 1, 0]);
    // The kernel does not let go of a reader that is killed.
    child.kill().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    until("it cannot be interrupted", || fs::read_to_string(&stat).unwrap().contains(") D "));
    drop(stand_in);
    until("the reader ends", || reader.is_finished());
    let errno = Errno::from_io_error(&reader.join().unwrap());
    assert!([Some(Errno::NOTCONN), Some(Errno::CONNABORTED)].contains(&errno), "{errno:?}");
    until("the killed one ends", || child.try_wait().unwrap().is_some());
    assert!(!is_mounted(&root) && !root.exists());
    assert!(backing.path().join("ost-2").exists());
}

#[test]
#[ignore = "needs FUSE"]
fn evicted_client_gets_errors_until_it_reconnects() {
    let mounted = mounted(by_name(), FILES);
    let [zero, one] = [mounted.open("ost-0"), mounted.open("ost-1")];
    read(&one).unwrap();
    mounted.stand_in.reset_counts();
    mounted.stand_in.evict(EvictedFrom::Ost(1), Errno::NOTCONN, Some(2));
    let errors: Vec<_> = (0..2).map(|_| Errno::from_io_error(&read(&one).unwrap_err())).collect();
    assert_eq!(errors, [Some(Errno::NOTCONN); 2]);
    read(&zero).unwrap();
    read(&one).unwrap();
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.evicted, counts.locks), (2, 2), "locks are taken again");
    mounted.stand_in.evict(EvictedFrom::All, Errno::SHUTDOWN, None);
    for _ in 0..3 {
        assert_eq!(Errno::from_io_error(&read(&zero).unwrap_err()), Some(Errno::SHUTDOWN));
        let open = File::open(mounted.path("ost-2")).unwrap_err();
        assert_eq!(Errno::from_io_error(&open), Some(Errno::SHUTDOWN));
        zero.metadata().unwrap_err();
    }
    mounted.stand_in.reconnect();
    read(&zero).unwrap();
    mounted.stand_in.evict(EvictedFrom::Mdt, Errno::NOTCONN, Some(1));
    read(&zero).unwrap();
    zero.metadata().unwrap_err();
    zero.metadata().unwrap();
}

#[test]
#[ignore = "needs FUSE"]
fn released_file_is_restored_by_its_first_read() {
    let mounted = mounted(by_name(), FILES);
    let root = File::open(mounted.stand_in.root()).unwrap();
    let layout = || read_layout(root.as_fd(), "ost-2").unwrap().unwrap();
    let time = Duration::from_millis(200);
    mounted.stand_in.release("ost-2", Recall::After(time));
    assert!(layout().is_released() && layout().is_known());
    let file = mounted.open("ost-2");
    assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    assert_eq!(mounted.stand_in.counts().recalls, 0, "only a read restores");
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| assert_range(&file, "ost-2", 0, 1000));
        scope.spawn(|| assert_range(&file, "ost-2", 2000, 1000));
    });
    assert!(start.elapsed() >= time);
    assert_eq!(mounted.stand_in.counts().recalls, 1);
    assert!(!layout().is_released());

    mounted.stand_in.release("ost-2", Recall::Fails(Duration::from_millis(10)));
    for _ in 0..2 {
        assert_eq!(Errno::from_io_error(&read(&file).unwrap_err()), Some(Errno::NODATA));
    }
    assert_eq!(mounted.stand_in.counts().recalls, 3);

    mounted.stand_in.release("ost-2", Recall::OnDemand);
    thread::scope(|scope| {
        let _recalled = Finally(|| mounted.stand_in.recalled("ost-2"));
        let requests = || mounted.stand_in.counts().by_ost[2].requests;
        let before = requests();
        let reader = scope.spawn(|| read(&file).unwrap());
        until("the restore begins", || mounted.stand_in.counts().recalls == 4);
        // A later read is answered, and this one has not begun.
        read(&mounted.open("ost-1")).unwrap();
        assert!(requests() == before && !reader.is_finished());
        mounted.stand_in.recalled("ost-2");
        assert_eq!((reader.join().unwrap(), requests()), (100, before + 1));
    });
}

#[test]
#[ignore = "needs FUSE"]
fn commands_of_another_process_set_faults() {
    let mounted = mounted(by_name(), FILES);
    let run = |lines: &str| {
        let mut answers = Vec::new();
        mounted.stand_in.run_commands(lines.as_bytes(), &mut answers).unwrap();
        String::from_utf8(answers).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let file = mounted.open("ost-1");
    assert_eq!(run("evict 1 108 1\n"), ["ok"]);
    assert_eq!(Errno::from_io_error(&read(&file).unwrap_err()), Some(Errno::SHUTDOWN));
    read(&file).unwrap();
    let counts: serde_json::Value = serde_json::from_str(&run("counts\n")[0]).unwrap();
    assert_eq!((&counts["evicted"], &counts["by_ost"][1]["requests"]), (&1.into(), &1.into()));
    assert_eq!(run("reset\nhang 1\nslow 1 1\n"), ["ok"; 3]);
    assert_eq!(
        mounted.stand_in.counts(),
        Counts { by_ost: vec![Default::default(); 4], ..Default::default() }
    );
    thread::scope(|scope| {
        let _resumed = Finally(|| mounted.stand_in.resume(1));
        let reader = scope.spawn(|| read(&file).unwrap());
        until("the reader waits", || run(&format!("waiting {}", std::process::id())) == ["[0, 1, 0, 0]"]);
        assert_eq!(run("resume 1"), ["ok"]);
        reader.join().unwrap();
    });
    assert_eq!(run("release ost-1 5\nrelease ost-2 never\nrecalled ost-2\nreconnect\n"), ["ok"; 4]);
    for (line, error) in [
        ("hang 4", "error: there is no OST 4"),
        ("slow 0 -1", "error: invalid factor '-1': expected 0 to 1000000"),
        ("evict all 0", "error: invalid error number '0'"),
        ("dance", "error: unknown command 'dance'"),
    ] {
        assert_eq!(run(line), [error]);
    }
}

/// A mount over a directory that is not there, and on one.
#[test]
#[ignore = "needs FUSE"]
fn mount_without_a_backing_directory_is_an_error() {
    let mounted = mounted(by_name(), &[]);
    let absent = mounted.backing.path().join("absent");
    foreread_lustre_testing::StandIn::mount(&absent, by_name()).err().unwrap();
    // The mount is read-only.
    let error = File::create(mounted.path("new")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    assert!(fs::read_dir(mounted.stand_in.root()).unwrap().next().is_none());
}
