//! Raises the limit of open file descriptors for runs of many ranks.
//!
//! A rank has a connection to each rank that it requests from, and a connection from each rank that
//! requests from it. They stay open. The default limit of 1,024 descriptors is exceeded at 512
//! ranks. Then opening data files fails as well. The limit is raised to the needs of the run and no
//! further. Programs that close all possible descriptors before they start another program become
//! slow with the highest limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{MeetError, MeetErrorKind};

/// Descriptors for other uses: data and cache files, sockets to storage, pipes.
const RESERVED: u64 = 512;

/// Raises the limit to the needs of a run of `world` ranks.
///
/// # Errors
/// The hard limit is too low.
pub(super) fn raise_limit(world: u32) -> Result<(), MeetError> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let needed = needed(world, open);
    let limit = getrlimit(Resource::Nofile);
    match raised(limit, needed, world)? {
        None => Ok(()),
        Some(raised) => {
            tracing::info!(
                from = limit.current,
                to = needed,
                "raises the limit of open descriptors, which {world} ranks need"
            );
            let cannot = |error| {
                let line = format!("cannot raise the limit of open descriptors to {needed}: {error}");
                MeetError::new(MeetErrorKind::Setting, line)
            };
            setrlimit(Resource::Nofile, raised).map_err(cannot)
        }
    }
}

fn needed(world: u32, open: u64) -> u64 {
    2 * u64::from(world.saturating_sub(1)) + open + RESERVED
}

/// The new limit. `None` if the current one is high enough.
fn raised(limit: Rlimit, needed: u64, world: u32) -> Result<Option<Rlimit>, MeetError> {
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(None);
    }
    if let Some(most) = limit.maximum.filter(|most| *most < needed) {
        return Err(MeetError::new(
            MeetErrorKind::Setting,
            format!(
                "{world} ranks need {needed} open descriptors in each process, and this one may have \
                 {most}: raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE of the service that \
                 starts the ranks)"
            ),
        ));
    }
    Ok(Some(Rlimit { current: Some(needed), maximum: limit.maximum }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: u64, maximum: u64) -> Rlimit {
        Rlimit { current: Some(current), maximum: Some(maximum) }
    }

    #[test]
    // semantics: RANK-11
    fn limit_is_raised_to_the_need_and_no_further() {
        let needed = needed(1024, 20);
        assert_eq!(needed, 2 * 1023 + 20 + RESERVED);
        assert_eq!(raised(limit(1024, 1 << 20), needed, 1024).unwrap(), Some(limit(needed, 1 << 20)));
        assert_eq!(raised(limit(needed, 1 << 20), needed, 1024).unwrap(), None);
        assert_eq!(raised(Rlimit { current: None, maximum: None }, needed, 1024).unwrap(), None);
    }

    #[test]
    // semantics: RANK-11
    fn hard_limit_error_names_the_needed_number() {
        let error = raised(limit(1024, 2000), 2578, 1024).unwrap_err().to_string();
        assert!(error.starts_with("1024 ranks need 2578 open descriptors"), "{error}");
        assert!(error.contains("ulimit -Hn 2578") && error.contains("may have 2000"), "{error}");
    }
}
