//! Which calls are which requests, and how many a server takes at a time.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use foreread_lustre::{Layout, read_layout};
use foreread_lustre_testing::{LayoutSpec, RequestKind, StandInOptions};
use foreread_tier::{ObjectLayout, StorageServer};
use foreread_tier_testing::until;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::{KIB, MIB, Mounted, assert_range, mounted};

fn on_ost(ost: u32) -> StandInOptions {
    StandInOptions::new(4).with_layout(move |_, _| LayoutSpec::on([ost], 1 << 20))
}

#[test]
#[ignore = "needs FUSE"]
fn open_read_and_close_are_two_metadata_requests() {
    let mounted = mounted(on_ost(3), &[("train/a", 5000)]);
    let file = mounted.open("train/a");
    assert_range(&file, "train/a", 0, 5000);
    drop(file);
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.opens, counts.flushes, counts.getattrs), (1, 1, 0));
    assert_eq!((counts.mdt_requests, counts.reads, counts.bytes, counts.locks), (2, 1, 5000, 1));
    let by_ost: Vec<_> = counts.by_ost.iter().map(|ost| (ost.requests, ost.bytes)).collect();
    assert_eq!(by_ost, [(0, 0), (0, 0), (0, 0), (1, 5000)]);
    assert_eq!(counts.by_ost[3].in_flight + counts.by_ost[3].unanswered, 0);
    mounted.stand_in.reset_counts();
    assert_eq!(mounted.stand_in.counts().by_ost.iter().map(|ost| ost.requests).sum::<u64>(), 0);
    assert_eq!(mounted.stand_in.counts().mdt_requests, 0);
}

#[test]
#[ignore = "needs FUSE"]
fn kept_descriptor_costs_reads_only() {
    let mounted = mounted(on_ost(0), &[("shard", 4 * MIB)]);
    let file = mounted.open("shard");
    mounted.stand_in.reset_counts();
    for at in 0..8 {
        assert_range(&file, "shard", at * 400 * KIB, 64 * KIB);
    }
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.mdt_requests, counts.reads, counts.by_ost[0].requests), (0, 8, 8));
}

#[test]
#[ignore = "needs FUSE"]
fn only_a_full_stat_is_a_request() {
    let mounted = mounted(on_ost(0), &[("a", 5000)]);
    let file = mounted.open("a");
    mounted.stand_in.reset_counts();
    let statx = |flags| statx(&file, "", AtFlags::EMPTY_PATH | flags, StatxFlags::BASIC_STATS).unwrap();
    for _ in 0..5 {
        let found = statx(AtFlags::STATX_DONT_SYNC);
        assert_eq!((found.stx_size, found.stx_mtime.tv_nsec), (5000, 0));
    }
    assert_range(&file, "a", 0, 5000);
    assert_eq!(statx(AtFlags::STATX_DONT_SYNC).stx_size, 5000);
    assert_eq!(mounted.stand_in.counts().mdt_requests, 0);
    statx(AtFlags::empty());
    statx(AtFlags::STATX_FORCE_SYNC);
    file.metadata().unwrap();
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.getattrs, counts.mdt_requests), (3, 3));
    // By path it is one request, too.
    fs::metadata(mounted.path("a")).unwrap();
    assert_eq!(mounted.stand_in.counts().getattrs, 4);
}

#[test]
#[ignore = "needs FUSE"]
fn full_stat_shows_a_changed_file() {
    let mounted = mounted(on_ost(0), &[("a", 5000)]);
    let file = mounted.open("a");
    fs::write(mounted.backing.path().join("a"), "short").unwrap();
    let size = |flags| statx(&file, "", AtFlags::EMPTY_PATH | flags, StatxFlags::SIZE).unwrap().stx_size;
    assert_eq!(size(AtFlags::STATX_DONT_SYNC), 5000);
    assert_eq!(size(AtFlags::empty()), 5);
    assert_eq!(size(AtFlags::STATX_DONT_SYNC), 5);
    // Replaced by another file: the descriptor keeps the old one.
    fs::write(mounted.backing.path().join("new"), "other").unwrap();
    fs::rename(mounted.backing.path().join("new"), mounted.backing.path().join("a")).unwrap();
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"other");
    let mut old = [0; 5];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut old, 0).unwrap();
    assert_eq!(&old, b"short");
    assert_eq!(file.metadata().unwrap().len(), 5);
}

#[test]
#[ignore = "needs FUSE"]
fn layout_is_read_by_path_without_an_open() {
    let layouts = |path: &str, _: u64| match path {
        "empty" => LayoutSpec::none(),
        "wide" => LayoutSpec::striped(200, 64 << 10, 3, 8),
        _ => LayoutSpec::on([2, 5], 64 << 10).with_pool("flash").with_dom(64 << 10),
    };
    let options = StandInOptions::new(8).with_layout(layouts);
    let mounted = mounted(options, &[("in/a", 5000), ("empty", 0), ("wide", 10)]);
    let root = File::open(mounted.stand_in.root()).unwrap();
    mounted.stand_in.reset_counts();
    let layout = read_layout(root.as_fd(), "in/a").unwrap().unwrap();
    let targets = [0, 64 << 10, 128 << 10].map(|offset| layout.server(offset));
    assert_eq!(targets, [StorageServer::Metadata, StorageServer::Data(5), StorageServer::Data(2)].map(Some));
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.getxattrs, counts.opens, counts.mdt_requests), (1, 0, 1));
    // After a stat there is no request.
    fs::metadata(mounted.path("wide")).unwrap();
    mounted.stand_in.reset_counts();
    let wide = read_layout(root.as_fd(), "wide").unwrap().unwrap();
    assert_eq!((wide.stripe_count(), wide.server(65_536)), (200, Some(StorageServer::Data(4))));
    assert_eq!(mounted.stand_in.counts().mdt_requests, 0);
    let none = read_layout(root.as_fd(), "empty").unwrap().unwrap();
    assert!(none.is_known() && none.stripe_count() == 0);
    assert_eq!(read_layout(root.as_fd(), "in").unwrap(), Some(none.clone()));
    assert_eq!(read_layout(root.as_fd(), "").unwrap(), Some(none));
    assert_ne!(layout, Layout::default());
    read_layout(root.as_fd(), "absent").unwrap_err();
}

#[test]
#[ignore = "needs FUSE"]
fn large_read_is_one_request_for_each_stripe() {
    let options = StandInOptions::new(4).with_layout(|_, _| LayoutSpec::on([1, 3], 1 << 20));
    let mounted = mounted(options, &[("shard", 6 * MIB)]);
    let file = mounted.open("shard");
    assert_range(&file, "shard", 0, 4 * MIB);
    let counts = mounted.stand_in.counts();
    let by_ost: Vec<_> = counts.by_ost.iter().map(|ost| ost.bytes).collect();
    assert_eq!(by_ost, [0, 2 << 20, 0, 2 << 20]);
    assert!((4..=10).contains(&counts.reads), "{} reads", counts.reads);
    // One read over the bound of two stripes is a request to both.
    mounted.stand_in.reset_counts();
    assert_range(&file, "shard", MIB - 100, 200);
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.reads, counts.by_ost[1].bytes, counts.by_ost[3].bytes), (1, 100, 100));
}

#[test]
#[ignore = "needs FUSE"]
fn small_data_on_the_mdt_comes_with_the_open() {
    let options = StandInOptions::new(2).with_layout(|_, _| LayoutSpec::on([1], 1 << 20).with_dom(64 << 10));
    let mounted = mounted(options, &[("a", 100 * KIB)]);
    let file = mounted.open("a");
    mounted.stand_in.reset_counts();
    assert_range(&file, "a", 0, 8 * KIB);
    assert_eq!(mounted.stand_in.counts().mdt_requests, 0);
    assert_range(&file, "a", 0, 9 * KIB);
    assert_range(&file, "a", 60 * KIB, 8 * KIB);
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.mdt_requests, counts.by_ost[1].requests, counts.by_ost[1].bytes), (2, 1, 4 << 10));
}

fn in_parallel(threads: usize, call: impl Fn(usize) + Sync) -> Duration {
    let barrier = Barrier::new(threads);
    let start = Instant::now();
    thread::scope(|scope| {
        for number in 0..threads {
            let (barrier, call) = (&barrier, &call);
            scope.spawn(move || {
                barrier.wait();
                call(number);
            });
        }
    });
    start.elapsed()
}

#[test]
#[ignore = "needs FUSE"]
fn server_takes_as_many_requests_as_it_has_slots() {
    let latency = Duration::from_millis(40);
    let mounted = mounted(on_ost(1).with_latency(latency), &[("a", 64 * KIB)]);
    let file = mounted.open("a");
    mounted.stand_in.reset_counts();
    // Three rounds of 8.
    let took = in_parallel(20, |number| assert_range(&file, "a", number * 1000, 1000));
    let ost = mounted.stand_in.counts().by_ost[1];
    assert_eq!((ost.requests, ost.max_in_flight), (20, 8));
    assert!(took >= 3 * latency, "{took:?}");
    // 14 opens are two rounds of 7, and 14 closes as well. On a busy machine, any may be late.
    until("seven at once", || {
        let took = in_parallel(14, |_| drop(mounted.open("a")));
        assert!(took >= 4 * latency, "{took:?}");
        took < 12 * latency
    });
    // Stats have other slots.
    until("eight at once", || {
        let took = in_parallel(16, |_| assert!(fs::metadata(mounted.path("a")).is_ok()));
        assert!(took >= 2 * latency, "{took:?}");
        took < 8 * latency
    });
}

#[test]
#[ignore = "needs FUSE"]
fn log_has_the_thread_and_the_order_of_requests() {
    let files = ["d/one", "d/two", "d/three"].map(|name| (name, 10));
    let mounted = mounted(on_ost(0).with_log(100), &files);
    let list = |mounted: &Mounted| {
        let entries = fs::read_dir(mounted.path("d")).unwrap().map(|entry| entry.unwrap());
        let sized =
            |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len());
        entries.map(sized).collect::<Vec<_>>()
    };
    let listed = list(&mounted);
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let counts = mounted.stand_in.counts();
    // The C library's `opendir` asks for the directory's own attributes.
    assert_eq!((counts.opendirs, counts.readdirs, counts.getattrs), (1, 1, 4));
    let of_file = |path: &str| path.starts_with("d/");
    let stats = counts.log.iter().filter(|it| it.kind == RequestKind::Getattr && of_file(&it.path));
    let stats: Vec<_> = stats.map(|request| (request.path.clone(), request.thread)).collect();
    let expected: Vec<_> = listed.iter().map(|(name, _)| (format!("d/{name}"), thread)).collect();
    assert_eq!(stats, expected);
    assert!(listed.iter().all(|(_, size)| *size == 10));
}

#[test]
#[ignore = "needs FUSE"]
fn glimpse_asks_the_osts_of_a_file_that_was_not_read() {
    let options = StandInOptions { glimpses: true, ..StandInOptions::new(4) };
    let options = options.with_layout(|_, _| LayoutSpec::on([1, 2], 64 << 10));
    let mounted = mounted(options, &[("a", 100)]);
    fs::metadata(mounted.path("a")).unwrap();
    let asked = |mounted: &Mounted| {
        mounted.stand_in.counts().by_ost.iter().map(|ost| ost.requests).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mounted), [0, 1, 1, 0]);
    let file = mounted.open("a");
    assert_range(&file, "a", 0, 100);
    file.metadata().unwrap();
    assert_eq!(asked(&mounted), [0, 2, 2, 0], "the lock of OST 1 is there, that of OST 2 is not");
}

#[test]
#[ignore = "needs FUSE"]
fn list_of_thousands_of_files_is_complete() {
    let names: Vec<_> = (0..3000).map(|number| format!("d/file-with-a-long-name-{number:05}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mounted = mounted(on_ost(0), &files);
    let entries = fs::read_dir(mounted.path("d")).unwrap();
    let mut found: Vec<_> =
        entries.map(|entry| format!("d/{}", entry.unwrap().file_name().display())).collect();
    found.sort();
    assert_eq!(found, names);
    let counts = mounted.stand_in.counts();
    assert_eq!((counts.opendirs, counts.readdirs, counts.getattrs, counts.mdt_requests), (1, 1, 1, 3));
}
