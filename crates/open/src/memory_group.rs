//! Which processes of a node may share memory: processes whose memory is limited together.

/// The group of processes whose memory is limited together. The memory of the cache counts for its
/// host, so ranks in different groups, such as containers of one pod each, share none.
pub fn memory_group() -> String {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
    format!("{} {}", space.display(), limited_together(&groups))
}

/// The lines of `/proc/self/cgroup` that are about memory. Slurm has a group for each task, and
/// limits the memory of their step.
fn limited_together(groups: &str) -> String {
    let of_memory = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.is_empty() || controllers.split(',').any(|controller| controller == "memory")
    };
    let of_step = |line| match str::rsplit_once(line, "/task_") {
        Some((step, task)) if task.bytes().all(|byte| byte.is_ascii_digit()) => step,
        _ => line,
    };
    groups.lines().filter(of_memory).map(of_step).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: RANK-39
    fn tasks_of_a_slurm_step_are_of_one_group() {
        assert!(!memory_group().trim().is_empty());
        let slurm = "5:cpu,memory:/slurm/uid_7/job_9/step_0/task_3\n4:pids:/x\n0::/step_0/user/task_3\n";
        assert_eq!(limited_together(slurm), "5:cpu,memory:/slurm/uid_7/job_9/step_0 0::/step_0/user");
        assert_eq!(limited_together("0::/pod/task_a\n"), "0::/pod/task_a");
    }
}
