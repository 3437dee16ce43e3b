//! How much memory a run may take when nobody said: `--memory auto`.
//!
//! Half of what is free within the machine and the control group (a container's or a job's limit), shared by the ranks of
//! the node, less the look-ahead of each. Half, because the trainer's own growth is unknown and being killed costs more than a
//! smaller cache; the rest of the machine's free memory still serves as page cache.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that the memory tier of each of a node's `ranks` may take.
pub(crate) fn automatic(look_ahead: u64, ranks: u32) -> u64 {
    free(Path::new("/")).map_or(0, |free| share(free, look_ahead, ranks))
}

fn share(free: u64, look_ahead: u64, ranks: u32) -> u64 {
    (free / 2 / u64::from(ranks.max(1))).saturating_sub(look_ahead)
}

/// Bytes that are free within the machine and every control group that this process is in. `root` stands for `/`.
fn free(root: &Path) -> Option<u64> {
    let machine = available(&fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // `0::/path` is version 2; `9:memory:/path` is version 1.
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let base = root.join("sys/fs/cgroup");
        match controllers {
            "" => group(&base, path, "memory.max", "memory.current"),
            list if list.split(',').any(|name| name == "memory") => {
                group(&base.join("memory"), path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => None,
        }
    });
    Some(limits.fold(machine, u64::min))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// What is left in the group at `path` and in all above it; a limit may sit at any level.
fn group(base: &Path, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let mut at: PathBuf = base.join(path.trim_start_matches('/'));
    let mut least: Option<u64> = None;
    while at.starts_with(base) {
        let number = |name: &str| fs::read_to_string(at.join(name)).ok()?.trim().parse::<u64>().ok();
        // `max`, which is no number, means no limit here.
        if let Some(limit) = number(limit) {
            let left = limit.saturating_sub(number(usage).unwrap_or(0));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        if !at.pop() {
            break;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   2000 kB\n");

    #[test]
    fn a_limit_above_the_own_group_counts() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "1000000"),
            ("sys/fs/cgroup/job/memory.current", "400000"),
            ("sys/fs/cgroup/job/step/memory.max", "max"),
        ]);
        assert_eq!(free(root.path()), Some(600_000));
    }

    #[test]
    fn the_ranks_of_a_node_take_half_of_it_together_and_not_each() {
        assert_eq!(share(1000, 20, 1), 480);
        assert_eq!(share(1000, 20, 4), 105);
        assert_eq!((share(1000, 20, 50), share(1000, 20, 0)), (0, 480));
    }

    #[test]
    fn version_one_and_none_at_all() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "9:cpu,memory:/j\n3:pids:/\n"),
            ("sys/fs/cgroup/memory/j/memory.limit_in_bytes", "500"),
            ("sys/fs/cgroup/memory/j/memory.usage_in_bytes", "600"),
        ]);
        assert_eq!(free(root.path()), Some(0));
        assert_eq!(free(tree(&[MEMINFO]).path()), Some(2_048_000));
        assert_eq!(free(tree(&[]).path()), None);
    }
}
