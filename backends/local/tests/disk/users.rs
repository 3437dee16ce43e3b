//! Directories that other users can write to: a cache is private, and planted objects are left
//! unchanged.
//!
//! Only root can change owners. These parts are skipped where the tests run as another user.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use foreread_local::disk::{self, Access, CleanRule, DiskConfig, DiskDirectory, DiskTier};
use foreread_tier::{ErrorKind, HeapBuffers};
use foreread_tier_testing::copy_program;
use foreread_types::DatasetId;

use crate::rig::{
    config, datasets, files, is_stored, known, listen, open, open_as, place, read, root, run, store, verify,
    warnings,
};

/// Another user.
const STRANGER: u32 = 65_534;

const DIRECTORY: &str = "FOREREAD_TEST_USERS_DIRECTORY";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can give files away");
    }
    root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The four names of this user's cache in a directory.
fn roots(directory: &Path) -> Vec<PathBuf> {
    let first = root(directory).display().to_string();
    (0..4).map(|at| if at == 0 { first.clone().into() } else { format!("{first}.{at}").into() }).collect()
}

/// Changes the owner of a tree.
fn give_away(path: &Path) {
    for path in files(path).iter().flat_map(|file| file.ancestors()).filter(|found| found.starts_with(path)) {
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

fn make_fifo(path: &Path) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero byte and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}

/// Everything that could be changed below a path: names, kinds, owners, modes, times, contents.
fn picture(path: &Path) -> Vec<String> {
    let metadata = fs::symlink_metadata(path).unwrap();
    let (inode, mode) = (metadata.ino(), metadata.mode());
    let (owner, changed) = (metadata.uid(), (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec()));
    let mut lines = vec![format!("{} {inode} {mode:o} {owner} {changed:?}", path.display())];
    if metadata.is_file() {
        lines.push(format!("{:?}", fs::read(path).unwrap()));
    }
    if metadata.is_dir() {
        let mut below: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        below.sort();
        lines.extend(below.iter().flat_map(|path| picture(path)));
    }
    lines
}

/// Stores one sample and reads it again with the next tier.
fn works(directory: &Path) {
    let tier = open(directory, 8 << 20);
    assert_eq!(tier.access(), [Access::Owner]);
    run(store(&tier, &known(7))).unwrap().unwrap();
    drop(tier);
    let tier = open(directory, 8 << 20);
    assert_eq!(run(read(&tier, &known(7))).unwrap(), known(7).content);
}

/// Fills a cache under the umask and user of the process. Without a directory from its parent it
/// does nothing.
#[test]
fn child_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    works(Path::new(&directory));
    println!("it works");
}

fn works_under(umask: &str, user: Option<u32>, directory: &Path) {
    let mut program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.env(DIRECTORY, directory).current_dir("/");
    if let Some(user) = user {
        // A directory that the user may enter.
        let own = directory.join("program");
        copy_program(&program, &own);
        set_mode(&own, 0o755);
        program = own;
        std::os::unix::process::CommandExt::uid(&mut command, user);
    }
    let script = format!("umask {umask}; exec \"$0\" --exact users::child_process --nocapture");
    let output = command.args(["-c", &script]).arg(program).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stdout);
    assert!(
        reported.contains("it works"),
        "umask {umask}: {reported}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
// semantics: DISK-12
fn cache_is_private_whatever_the_umask() {
    for umask in ["0", "022", "077"] {
        let directory = tempfile::tempdir().unwrap();
        set_mode(directory.path(), 0o777);
        works_under(umask, None, directory.path());
        for folder in [root(directory.path()), place(directory.path(), 1), place(directory.path(), 2)] {
            assert_eq!(mode(&folder), 0o700, "umask {umask}: {}", folder.display());
        }
        let files = files(&root(directory.path()));
        assert_eq!(files.len(), 6, "{files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "umask {umask}: {}", file.display());
        }
        if is_root() {
            let cat = ["setpriv", "--reuid=65534", "--clear-groups", "cat"];
            let read = |path: &Path| crate::rig::command(&[&cat[..], &[path.to_str().unwrap()]].concat());
            let public = directory.path().join("public");
            fs::write(&public, "x").unwrap();
            set_mode(&public, 0o644);
            assert!(read(&public), "the stranger reads what is open");
            assert!(!read(&place(directory.path(), 1).join("00000.segment")));
        }
    }
}

/// As another user, because root opens directories with any mode.
#[test]
// semantics: DISK-12
fn cache_works_under_a_umask_without_owner_rights() {
    if is_root() {
        let directory = tempfile::tempdir().unwrap();
        set_mode(directory.path(), 0o777);
        works_under("0777", Some(STRANGER), directory.path());
        let own = directory.path().join(format!("foreread-cache-{STRANGER}"));
        assert_eq!(mode(&own), 0o700);
        assert!(files(&own).iter().all(|file| mode(file) == 0o600));
    }
}

/// A cache that was copied, or that its user has made readable.
#[test]
// semantics: DISK-12
fn readable_cache_is_made_private_when_opened() {
    let directory = tempfile::tempdir().unwrap();
    works(directory.path());
    let (own, lock) = (root(directory.path()), place(directory.path(), 1).join("lock"));
    disk::list(directory.path()).unwrap(); // waits for the last writes
    for path in [&own, &place(directory.path(), 1), &lock] {
        set_mode(path, if path.is_dir() { 0o755 } else { 0o644 });
    }
    let tier = open(directory.path(), 8 << 20);
    assert_eq!(run(verify(&tier, known)), 1);
    assert_eq!([&own, &place(directory.path(), 1), &lock].map(|path| mode(path)), [0o700, 0o700, 0o600]);
}

#[test]
// semantics: DISK-13
fn planted_cache_is_neither_read_nor_changed() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Identical to this user's cache, and written by another user.
    works(directory.path());
    disk::list(directory.path()).unwrap();
    give_away(&root(directory.path()));
    for mode in [0o700, 0o777] {
        set_mode(&root(directory.path()), mode);
        let planted = picture(&root(directory.path()));
        let tier = open(directory.path(), 8 << 20);
        assert_eq!(tier.access(), [Access::Owner]);
        assert!(tier.samples(DatasetId(0)).is_empty() && !is_stored(&tier, &known(7)));
        run(store(&tier, &known(8))).unwrap().unwrap();
        assert_eq!(run(verify(&tier, known)), 1);
        assert!(place(directory.path(), 1).exists() && roots(directory.path())[1].exists());
        let listed = disk::list(directory.path()).unwrap();
        assert!(listed.iter().all(|entry| entry.path.starts_with(&roots(directory.path())[1])), "{listed:?}");
        drop(tier);
        disk::clean(directory.path(), &CleanRule::all()).unwrap();
        assert_eq!(picture(&root(directory.path())), planted);
        assert!(disk::list(directory.path()).unwrap().is_empty());
    }
}

/// A live owner of the space, with readers that follow it.
#[test]
// semantics: DISK-13
fn planted_owner_is_not_followed() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let planted = open(directory.path(), 8 << 20);
    run(store(&planted, &known(7))).unwrap().unwrap();
    chown(root(directory.path()), Some(STRANGER), None).unwrap();
    let tier = open(directory.path(), 8 << 20);
    assert_eq!(tier.access(), [Access::Owner], "its lock delays no one else");
    tier.refresh();
    assert!(!is_stored(&tier, &known(7)));
    // The owner changes under a reader too: the dataset's directory is checked each time.
    drop((tier, planted));
    let directory = tempfile::tempdir().unwrap();
    let planted = open(directory.path(), 8 << 20);
    chown(place(directory.path(), 1), Some(STRANGER), None).unwrap();
    let reader = open(directory.path(), 8 << 20);
    assert_eq!(reader.access(), [Access::ReadOnly]);
    run(store(&planted, &known(7))).unwrap().unwrap();
    reader.refresh();
    assert!(!is_stored(&reader, &known(7)));
}

/// Owned by this user, but writable for others.
#[test]
// semantics: DISK-13
fn cache_that_others_can_write_to_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    works(directory.path());
    disk::list(directory.path()).unwrap();
    for (at, mode) in [0o777, 0o720, 0o1777].into_iter().enumerate() {
        set_mode(&roots(directory.path())[at], mode);
        let tier = open(directory.path(), 8 << 20);
        assert!(!is_stored(&tier, &known(7)), "mode {mode:o}");
        run(store(&tier, &known(7))).unwrap().unwrap();
        drop(tier);
        disk::list(directory.path()).unwrap();
    }
    // Its user has checked it and takes it back.
    set_mode(&roots(directory.path())[0], 0o700);
    assert!(is_stored(&open(directory.path(), 8 << 20), &known(7)));
}

#[test]
// semantics: DISK-13
fn link_in_place_of_a_cache_is_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let important = directory.path().join("important");
    fs::create_dir(&important).unwrap();
    for name in ["owner", "index", "00000.segment"] {
        fs::write(important.join(name), "this user's own, and nothing to do with a cache").unwrap();
    }
    let before = picture(&important);
    symlink(&important, &roots(directory.path())[0]).unwrap();
    symlink(directory.path().join("nothing"), &roots(directory.path())[1]).unwrap();
    symlink(&roots(directory.path())[2], &roots(directory.path())[2]).unwrap();
    works(directory.path());
    assert_eq!(picture(&important), before);
    assert!(!directory.path().join("nothing").exists());
    assert!(place(directory.path(), 1).parent().unwrap().is_symlink() && roots(directory.path())[3].is_dir());
    // The same for a dataset's directory in a cache.
    let directory = tempfile::tempdir().unwrap();
    works(directory.path());
    disk::list(directory.path()).unwrap();
    fs::remove_dir_all(place(directory.path(), 1)).unwrap();
    symlink(&important, place(directory.path(), 1)).unwrap();
    let error = open_as(config(directory.path(), 8 << 20)).unwrap_err();
    assert!(error.to_string().contains(place(directory.path(), 1).to_str().unwrap()), "{error}");
    assert!(disk::clean(directory.path(), &CleanRule::all()).unwrap().len() == 1, "the other dataset's");
    assert_eq!(picture(&important), before);
}

#[test]
// semantics: DISK-13
fn pipe_in_place_of_a_cache_does_not_block() {
    let directory = tempfile::tempdir().unwrap();
    make_fifo(&root(directory.path()));
    works(directory.path());
    assert_eq!(disk::list(directory.path()).unwrap().len(), 2);
    fs::remove_file(root(directory.path())).unwrap();
    fs::remove_dir_all(&roots(directory.path())[1]).unwrap();
    works(directory.path());
    disk::list(directory.path()).unwrap();
    // Inside a cache only its user can have put it there: an error that names it.
    for path in [root(directory.path()).join("owner"), place(directory.path(), 1)] {
        let moved = directory.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        make_fifo(&path);
        disk::list(directory.path()).unwrap();
        let error = open_as(config(directory.path(), 8 << 20)).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
    }
    // A segment, an index or a lock of that kind is damage.
    for name in ["00000.segment", "index", "lock"] {
        let path = place(directory.path(), 1).join(name);
        fs::remove_file(&path).unwrap();
        make_fifo(&path);
        drop(open(directory.path(), 8 << 20));
        disk::list(directory.path()).unwrap();
    }
    assert!(
        disk::clean(directory.path(), &CleanRule::all())
            .unwrap()
            .iter()
            .all(|removed| removed.left.is_empty())
    );
    works(directory.path());
}

#[test]
// semantics: DISK-13
fn directory_whose_names_are_all_taken_costs_one_warning() {
    listen();
    let (taken, free) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for root in roots(taken.path()) {
        fs::write(root, "a file").unwrap();
    }
    let before = picture(taken.path());
    let both = [(taken.path().to_owned(), 8 << 20), (free.path().to_owned(), 8 << 20)];
    let tier = open_as(DiskConfig::new(both).with_reader(crate::reader())).unwrap();
    assert_eq!(tier.access(), [Access::Unused, Access::Owner]);
    run(store(&tier, &known(3))).unwrap().unwrap();
    assert_eq!(run(verify(&tier, known)), 1);
    let reported = warnings(taken.path());
    assert!(reported.len() == 1 && reported[0].contains("remove these, or choose another"), "{reported:?}");
    // None at all.
    let tier = open(taken.path(), 8 << 20);
    assert!(tier.capacity() == 0 && run(store(&tier, &known(3))).is_none() && !is_stored(&tier, &known(3)));
    assert_eq!(picture(taken.path()), before);
    assert!(disk::list(taken.path()).unwrap().is_empty());
}

/// As earlier versions made it.
#[test]
// semantics: DISK-15
fn cache_of_an_earlier_version_is_named_once_and_cleaned() {
    listen();
    let directory = tempfile::tempdir().unwrap();
    works(directory.path());
    disk::list(directory.path()).unwrap();
    let old = directory.path().join("foreread-cache");
    fs::rename(root(directory.path()), &old).unwrap();
    set_mode(&old, 0o755);
    let tiers = [1, 2].map(|_| {
        let tier = open(directory.path(), 8 << 20);
        assert!(!is_stored(&tier, &known(7)), "any user may have written it");
        tier
    });
    drop(tiers);
    let about = |line: &&String| line.contains("earlier version");
    let reported = warnings(&old);
    assert_eq!(reported.iter().filter(about).count(), 1, "{reported:?}");
    assert!(reported.iter().any(|line| line.contains("foreread cache clean")), "{reported:?}");
    let bytes: u64 = reported[0].split(" takes ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(bytes, crate::rig::taken(&old));
    let listed = disk::list(directory.path()).unwrap();
    let of_old: Vec<_> = listed.iter().filter(|entry| entry.is_old).collect();
    assert!(of_old.len() == 2 && of_old.iter().all(|entry| entry.path.starts_with(&old)), "{listed:?}");
    assert_eq!((of_old[0].samples, listed.len()), (1, 4));
    assert_eq!(disk::clean(directory.path(), &CleanRule::all()).unwrap().len(), 4);
    assert!(!old.exists());
    // Another user's is neither named nor removed.
    if is_root() {
        fs::create_dir(&old).unwrap();
        give_away(&old);
        drop(open(directory.path(), 8 << 20));
        assert_eq!(warnings(&old).iter().filter(about).count(), 1);
        disk::clean(directory.path(), &CleanRule::all()).unwrap();
        assert!(old.exists());
    }
}

fn open_shared(directory: &Path) -> DiskTier {
    let directory = DiskDirectory::new(directory, 8 << 20).with_shared(true);
    let config = DiskConfig::new([directory]).with_reader(crate::reader());
    DiskTier::open(config, &datasets(), Arc::new(HeapBuffers)).unwrap()
}

#[test]
// semantics: DISK-14
fn shared_cache_is_used_with_any_owner() {
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path().join("foreread-cache-shared");
    let tier = open_shared(directory.path());
    run(store(&tier, &known(7))).unwrap().unwrap();
    drop(tier);
    disk::list(directory.path()).unwrap();
    assert!(!root(directory.path()).exists());
    set_mode(&shared, 0o777);
    if is_root() {
        give_away(&shared);
    }
    let tier = open_shared(directory.path());
    assert_eq!(run(read(&tier, &known(7))).unwrap(), known(7).content);
    assert_eq!(mode(&shared), 0o777, "an administrator's modes stay");
    drop(tier);
    assert_eq!(disk::list(directory.path()).unwrap()[0].samples, 1);
    // This user's own is a different one.
    assert!(!is_stored(&open(directory.path(), 8 << 20), &known(7)));
}

/// Each rank of a node has a part of one cache and counts only its own.
#[test]
fn parts_of_a_cache_count_only_their_own_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let of = |part| {
        let directory = DiskDirectory::new(directory.path(), 4 << 20).with_part(part);
        let config = DiskConfig::new([directory]).with_reader(crate::reader());
        DiskTier::open(config, &datasets(), Arc::new(HeapBuffers)).unwrap()
    };
    let (first, second) = (of(0), of(1));
    let room = (first.capacity(), second.capacity());
    run(async {
        for id in 0..60 {
            for tier in [&first, &second] {
                if let Some(stored) = store(tier, &known(id)).await {
                    stored.unwrap();
                }
            }
        }
    });
    drop((first, second));
    assert_eq!(disk::list(directory.path()).unwrap().len(), 4);
    let (second, first) = (of(1), of(0));
    assert_eq!((first.capacity(), second.capacity()), room);
    assert!(run(verify(&first, known)) > 0 && run(verify(&second, known)) > 0);
    assert_eq!(mode(&root(directory.path()).join("rank-1")), 0o700);
    assert_eq!(DiskDirectory::new(directory.path(), 1).parts(), 2);
}
