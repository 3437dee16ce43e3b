//! A kernel that refuses rings: threads read instead, unless a ring is required.

use std::process::Command;

use foreread_local::disk::DiskReader;
use foreread_tier::ErrorKind;

use crate::rig::{config, known, open_as, read, run, store};

const CHILD: &str = "FOREREAD_TEST_REFUSE_RINGS";

/// From now on this process's `io_uring_setup` fails with `errno`, as under a container's seccomp
/// profile.
fn refuse(errno: u32) {
    const SETUP: u32 = libc::SYS_io_uring_setup as u32;
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the number of the system call
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, SETUP, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: these calls take numbers, and a pointer to a program of `len` steps that the kernel
    // copies.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// The process in which rings are refused. Without a variable from its parent it does nothing.
#[test]
fn child_process() {
    let Some(errno) = std::env::var_os(CHILD) else { return };
    let errno: u32 = errno.to_str().unwrap().parse().unwrap();
    // The test harness has its own threads. A filter applies to this thread and its children.
    refuse(errno);
    let directory = tempfile::tempdir().unwrap();
    let as_set = |reader| open_as(config(directory.path(), 8 << 20).with_reader(reader));
    let error = as_set(DiskReader::Ring).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let cause = std::io::Error::from_raw_os_error(errno as i32).to_string();
    assert!(error.to_string().contains(&cause), "{error}");
    assert!(error.to_string().contains("io_uring"), "{error}");
    let tier = as_set(DiskReader::Auto).unwrap();
    assert_eq!(tier.reader(), DiskReader::Threads);
    run(async {
        store(&tier, &known(7)).await.unwrap().unwrap();
        assert_eq!(read(&tier, &known(7)).await.unwrap(), known(7).content);
    });
    println!("fell back");
}

#[test]
// semantics: DISK-23
fn threads_read_where_rings_are_refused() {
    for errno in [libc::ENOSYS, libc::EPERM, libc::ENOMEM] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "refused::child_process", "--nocapture"])
            .env(CHILD, errno.to_string())
            .output()
            .unwrap();
        let reported = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && reported.contains("fell back"), "{reported}");
    }
}
