//! `foreread run`: which file a path means, the rights to read it, and the environment of a
//! program.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{number, run, with_usual_signals};
use crate::unchanged::{ALL, Dataset, compile, report};

/// Whether this process has the rights of root.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root may make this case");
    }
    is_root
}

const NEVER: [&str; 2] = ["--check", "never"];

/// On file servers, originals are not compared at each open.
#[test]
// semantics: FILES-6
fn write_by_one_name_reaches_all_names_of_the_file() {
    let dataset = Dataset::new(12, 5000);
    let root = dataset.root();
    for (target, link) in
        [("0000.bin", "link"), ("link", "second"), ("0003.bin", "third"), ("0006.bin", "name")]
    {
        std::os::unix::fs::symlink(target, root.join("c0").join(link)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("c1"), dataset.at("nested")).unwrap();
    let nested = dataset.at("nested");
    let more = [&NEVER[..], &["--root", nested.to_str().unwrap()]].concat();
    let read = "cat data/c*/* nested/* > /dev/null";
    let copied = dataset.until_copied(read, 20);
    run(&mut dataset.command(ALL, &more, &["sh", "-c", &copied])).ok();
    let script =
        "cat data/c0/second > /dev/null; echo one > data/c0/0000.bin; cat data/c0/link data/c0/second
        echo two > data/c0/third; cat data/c0/0003.bin; ln -sf 0009.bin data/c0/name; wc -c < data/c0/name
        cat nested/0001.bin > /dev/null; echo three > data/c1/0001.bin; cat nested/0001.bin
        echo four > nested/0004.bin; cat data/c1/0004.bin; ln data/c1/0007.bin hard; echo five > hard
        cat data/c1/0007.bin nested/0007.bin; rm data/c1/0010.bin; cat nested/0010.bin 2>&1 | grep -c such";
    let finished = run(&mut dataset.command(ALL, &more, &["sh", "-c", script]));
    let report = report(&finished);
    assert_eq!(finished.ok(), "one\none\ntwo\n5009\nthree\nfour\nfive\nfive\n1\n");
    assert!(number(&report, "/served") >= 1, "{report}");
}

#[test]
// semantics: FILES-6
fn late_run_compares_what_an_earlier_one_has_copied() {
    let dataset = Dataset::new(3, 5000);
    dataset.warm(ALL);
    let wait = "touch ready; while [ -e data ] && [ ! -e end ]; do sleep .05; done";
    let mut first = dataset.command(ALL, &NEVER, &["sh", "-c", wait]);
    let mut first = first.stderr(Stdio::null()).spawn().unwrap();
    until("the program runs", || dataset.at("ready").exists());
    fs::write(dataset.root().join("c0/0000.bin"), b"new").unwrap();
    let late = run(&mut dataset.command(ALL, &NEVER, &["cat", "data/c0/0000.bin"]));
    assert_eq!(late.ok(), "new");
    fs::write(dataset.at("end"), b"").unwrap();
    first.wait().unwrap();
}

/// Another directory at the path of the dataset, in the namespace of one program.
#[test]
// semantics: FILES-5
fn other_directory_at_the_path_in_a_namespace_is_read() {
    if !is_root() {
        return;
    }
    let dataset = Dataset::new(6, 5000);
    fs::create_dir_all(dataset.at("other/c0")).unwrap();
    fs::write(dataset.at("other/c0/0000.bin"), b"other").unwrap();
    let unshare = Command::new("unshare").args(["-m", "true"]).status();
    if !unshare.is_ok_and(|status| status.success()) {
        return println!("skipped: this system allows no mount namespaces");
    }
    dataset.warm(ALL);
    let inner = "mount --bind other data && cat data/c0/0000.bin";
    let below = "mount --bind other/c0 data/c0 && cat data/c0/0000.bin";
    for check in ["auto", "never"] {
        let script = format!(
            "cat data/c0/0003.bin | wc -c; unshare -m sh -c '{inner}'; unshare -m sh -c '{below}'
             unshare -m cat data/c0/0003.bin | wc -c; cat data/c0/0000.bin | wc -c"
        );
        let finished = run(&mut dataset.command(ALL, &["--check", check], &["sh", "-c", &script]));
        let report = report(&finished);
        assert_eq!(finished.ok(), "5003\notherother5003\n5000\n", "{check}: {report}");
        // A bind mount of the same tree is served.
        assert_eq!(number(&report, "/served"), 3, "{check}: {report}");
    }
}

/// Two runs in two mount namespaces, with two datasets at one path and one directory of copies.
#[test]
// semantics: FILES-7
fn containers_with_one_path_have_their_own_files() {
    if !is_root() {
        return;
    }
    let dataset = Dataset::new(6, 5000);
    fs::create_dir_all(dataset.at("other/c0")).unwrap();
    fs::write(dataset.at("other/c0/0000.bin"), b"other").unwrap();
    dataset.warm(ALL);
    let wait =
        "cat data/c0/* > /dev/null; touch ready; while [ -e data ] && [ ! -e end ]; do sleep .05; done";
    let mut first = dataset.command(ALL, &NEVER, &["sh", "-c", wait]);
    let mut first = first.stderr(Stdio::null()).spawn().unwrap();
    until("the program runs", || dataset.at("ready").exists());
    let inner = dataset.command(ALL, &NEVER, &["sh", "-c", "cat data/c0/0000.bin"]);
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let script = format!("mount --bind other data && {}", words.join(" "));
    let mut second = Command::new("unshare");
    second.args(["-m", "sh", "-c", &script]).current_dir(dataset.at(""));
    let found = run(&mut second).ok();
    fs::write(dataset.at("end"), b"").unwrap();
    first.wait().unwrap();
    assert_eq!(found, "other");
}

#[test]
// semantics: FILES-2
fn program_without_the_right_to_read_gets_no_copy() {
    if !is_root() {
        return;
    }
    let dataset = Dataset::new(3, 5000);
    let file = dataset.root().join("c0/0000.bin");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
    dataset.warm(ALL);
    for check in ["auto", "never"] {
        let script = "cat data/c0/0000.bin | wc -c; unshare -r cat data/c0/0000.bin 2>&1 | grep -c denied";
        let finished = run(&mut dataset.command(ALL, &["--check", check], &["sh", "-c", script]));
        assert_eq!(finished.ok(), "5000\n1\n", "{check}");
    }
}

/// Calls that the C library passes on to the kernel, and a program that is started by its
/// descriptor.
#[test]
// semantics: FILES-5
fn copy_is_executable_and_no_call_changes_it() {
    let dataset = Dataset::new(3, 5000);
    let source = dataset.at("calls.c");
    let code = "#define _GNU_SOURCE\n#include <errno.h>\n#include <fcntl.h>\n#include <stdio.h>\n\
        #include <sys/ioctl.h>\n#include <linux/fs.h>\n#include <sys/syscall.h>\n#include <sys/time.h>\n\
        #include <unistd.h>\n\
        int main(int count, char **names) { int f = open(names[1], O_RDONLY); long flags = 16;\n\
        struct timeval times[2] = {{1, 0}, {1, 0}};\n\
        printf(\"%d \", futimes(f, times) < 0 && errno == EROFS);\n\
        printf(\"%d \", ioctl(f, FS_IOC_SETFLAGS, &flags) < 0 && errno == EROFS);\n\
        close(f); f = open(names[2], O_RDONLY); close(f);\n\
        f = syscall(SYS_openat, AT_FDCWD, names[2], O_WRONLY | O_TRUNC); write(f, \"new\", 3);\n\
        char b[8] = {0}; read(open(names[2], O_RDONLY), b, 7); printf(\"%s\\n\", b); }\n";
    fs::write(&source, code).unwrap();
    if !compile(&source, &dataset.at("calls"), &["-O1", "-w"]) {
        return println!("skipped: there is no C compiler");
    }
    fs::copy("/bin/true", dataset.root().join("c0/program")).unwrap();
    dataset.warm(ALL);
    let script = "exec 3< data/c0/program; /proc/self/fd/3 && echo runs; test -x /proc/self/fd/3 && echo yes
        ./calls data/c0/0000.bin data/c1/0001.bin";
    let finished = run(&mut dataset.command(ALL, &NEVER, &["sh", "-c", script]));
    let report = report(&finished);
    assert_eq!(finished.ok(), "runs\nyes\n1 1 new\n", "{report}");
    assert_eq!(number(&report, "/served"), 3, "{report}");
}

#[test]
// semantics: FILES-5
fn signals_reach_the_program_and_ignored_ones_stay() {
    let dataset = Dataset::new(1, 100);
    let handles = "for s in USR1 USR2 INT QUIT ALRM TERM HUP; do trap \"echo $s; exit 7\" $s; done
        touch ready; while :; do sleep .05; done";
    let handled =
        [Signal::USR1, Signal::USR2, Signal::INT, Signal::QUIT, Signal::ALARM, Signal::TERM, Signal::HUP];
    for (signal, name) in handled.into_iter().zip(["USR1", "USR2", "INT", "QUIT", "ALRM", "TERM", "HUP"]) {
        let mut command = with_usual_signals(&dataset.command(ALL, &[], &["sh", "-c", handles]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        until("the program runs", || dataset.at("ready").exists());
        fs::remove_file(dataset.at("ready")).unwrap();
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let mut output = String::new();
        child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        assert_eq!((output.trim(), child.wait().unwrap().code()), (name, Some(7)));
    }
    // As `nohup` starts it, with a closed standard input.
    let inner = dataset.command(
        ALL,
        &[],
        &["sh", "-c", "[ -e /proc/self/fd/0 ] || echo closed; kill -HUP $$; echo on"],
    );
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let script = format!("trap '' HUP PIPE; {} <&-", words.join(" "));
    let found = run(Command::new("sh").args(["-c", &script]).current_dir(dataset.at(""))).ok();
    assert_eq!(found, "closed\non\n");
}

#[test]
// semantics: FILES-2
fn refused_directory_for_copies_is_not_made() {
    let dataset = Dataset::new(1, 100);
    let inside = format!("--disk={}/new/copies=1MB", dataset.root().display());
    let mut command = crate::support::foreread(["run", "--root"]);
    let line = run(command.arg(dataset.root()).arg(inside).args(["--", "true"])).fails(2);
    assert!(line.contains("--disk") && line.contains("whose files are copied"), "{line}");
    assert!(!dataset.root().join("new").exists());
    let open = dataset.at("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = crate::support::foreread(["run", "--root"]);
    let disk = format!("--disk={}=1MB", open.display());
    let line = run(command.arg(dataset.root()).arg(disk).args(["--", "true"])).fails(2);
    assert!(line.contains("no sticky bit"), "{line}");
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
}

/// A kernel or a file server may take a while for a call.
#[test]
// semantics: FILES-6
fn file_read_while_it_is_truncated_is_new_afterwards() {
    let dataset = Dataset::new(6, 5000);
    let slow = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n
        int truncate(const char *path, long length) {\n
            int (*next)(const char *, long) = dlsym(RTLD_NEXT, \"truncate\");\n
            close(creat(\"begun\", 0600));\n
            while (access(\"go\", F_OK)) usleep(1000);\n
            return next(path, length); }\n";
    let program = "#include <unistd.h>\nint main(int n, char **words) { return truncate(words[1], 3); }\n";
    fs::write(dataset.at("slow.c"), slow).unwrap();
    fs::write(dataset.at("cut.c"), program).unwrap();
    let flags = ["-shared", "-fPIC", "-ldl"];
    if !compile(&dataset.at("slow.c"), &dataset.at("slow.so"), &flags)
        || !compile(&dataset.at("cut.c"), &dataset.at("cut"), &[])
    {
        return println!("skipped: there is no C compiler");
    }
    // The host has seen the opens of the file before it copies the others, which come after it.
    let script = |copies: u64| {
        format!(
            "(LD_PRELOAD=\"$LD_PRELOAD:./slow.so\" ./cut data/c0/0000.bin) &
            while [ -e data ] && [ ! -e begun ]; do sleep .01; done
            {}; touch go; wait; cat data/c0/0000.bin | wc -c",
            dataset.until_copied("cat data/c0/0000.bin data/c*/* > /dev/null", copies)
        )
    };
    for warm in [false, true] {
        if warm {
            fs::remove_file(dataset.at("go")).unwrap();
            fs::remove_file(dataset.at("begun")).unwrap();
            fs::write(dataset.root().join("c0/0000.bin"), [1; 5000]).unwrap();
            dataset.warm(ALL);
            // The others are copied again.
            let others = dataset.copies().into_iter().filter(|copy| fs::read(copy).unwrap() != [1; 5000]);
            assert_eq!(others.map(|copy| fs::remove_file(copy).unwrap()).count(), 5);
        }
        let finished = run(&mut dataset.command(ALL, &NEVER, &["sh", "-c", &script(5)]));
        assert_eq!(finished.ok(), "3\n");
    }
}

/// After `chroot` and without rights, the library is not there. The dynamic linker would print an
/// error for each program.
#[test]
// semantics: FILES-5
fn programs_that_cannot_load_the_library_start_without_it() {
    let dataset = Dataset::new(3, 5000);
    let other = dataset.at("other.c");
    fs::write(&other, "int other(void) { return 0; }").unwrap();
    assert!(compile(&other, &dataset.at("other.so"), &["-shared", "-fPIC"]));
    // As Python starts programs.
    let spawns = "#include <spawn.h>\n#include <sys/wait.h>\nextern char **environ;\n
        int main(int n, char **words) { pid_t child; int end = 1;
            posix_spawnp(&child, words[1], 0, 0, words + 1, environ);
            waitpid(child, &end, 0); return end; }\n";
    fs::write(dataset.at("spawns.c"), spawns).unwrap();
    assert!(compile(&dataset.at("spawns.c"), &dataset.at("spawns"), &[]));
    let script = "cat data/c0/0000.bin > /dev/null; rm disk/foreread-files-*/preload-*.so
        cat data/c0/0000.bin | wc -c; env | grep LD_PRELOAD";
    let spawned = run(&mut dataset.command(ALL, &["--report", "off"], &["./spawns", "sh", "-c", script]));
    assert!(spawned.stderr.is_empty(), "{}", spawned.stderr);
    assert_eq!(spawned.stdout, "5000\n");
    let command = || dataset.command(ALL, &["--report", "off"], &["sh", "-c", script]);
    let found = run(&mut command());
    assert!(!found.stderr.contains("ld.so") && found.stderr.is_empty(), "{}", found.stderr);
    assert_eq!(found.stdout, "5000\n");
    // Libraries of the user stay.
    let found = run(command().env("LD_PRELOAD", dataset.at("other.so")));
    assert!(found.stderr.is_empty(), "{}", found.stderr);
    assert_eq!(found.stdout, format!("5000\nLD_PRELOAD={}\n", dataset.at("other.so").display()));
}
