//! Parses SLURM's host lists: `node[001-004,7],login1`, `rack[1-2]n[0-3]`.
//!
//! The alternative, `scontrol show hostnames`, needs SLURM's tools in the job's container. The
//! input is untrusted: no list has more than [`MAX_HOSTS`] hosts.

use super::LaunchError;

/// More hosts than any machine has. A longer list is a mistake.
const MAX_HOSTS: usize = 100_000;

/// All hosts of a list in order. The last bracket of a name varies fastest.
///
/// # Errors
///
/// An unclosed bracket, a descending range, an empty name, or more than 100,000 hosts.
pub(crate) fn expand(list: &str) -> Result<Vec<String>, LaunchError> {
    let wrong = |why: &str| {
        let text: String = list.chars().take(80).collect();
        LaunchError::new(format!("{text:?} is not a list of nodes: {why}"))
    };
    let mut hosts = Vec::new();
    for entry in entries(list) {
        let mut names = vec![String::new()];
        let mut rest = entry.map_err(wrong)?;
        while let Some((plain, bracket)) = rest.split_once('[') {
            if plain.contains(']') {
                return Err(wrong("a bracket closes that was not opened"));
            }
            let (inside, after) = bracket.split_once(']').ok_or_else(|| wrong("a bracket does not close"))?;
            let numbers = ranges(inside).map_err(wrong)?;
            if hosts.len() + names.len().saturating_mul(numbers.len()) > MAX_HOSTS {
                return Err(wrong("it has more than 100,000 hosts"));
            }
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{plain}{number}")))
                .collect();
            rest = after;
        }
        if rest.contains(']') {
            return Err(wrong("a bracket closes that was not opened"));
        }
        names.iter_mut().for_each(|name| name.push_str(rest));
        if names.iter().any(String::is_empty) || hosts.len() + names.len() > MAX_HOSTS {
            return Err(wrong("a name is empty"));
        }
        hosts.append(&mut names);
    }
    if hosts.is_empty() { Err(wrong("it is empty")) } else { Ok(hosts) }
}

/// The parts between commas outside of brackets.
fn entries(list: &str) -> impl Iterator<Item = Result<&str, &'static str>> {
    let mut rest = Some(list.trim());
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let mut inside = false;
        for (at, c) in text.char_indices() {
            match c {
                '[' if inside => return Some(Err("a bracket opens inside of another")),
                '[' => inside = true,
                ']' => inside = false,
                ',' if !inside => {
                    rest = Some(&text[at + 1..]);
                    return Some(Ok(&text[..at]));
                }
                _ => {}
            }
        }
        Some(Ok(text))
    })
}

/// The numbers of `001-004,7` with their leading zeros.
fn ranges(inside: &str) -> Result<Vec<String>, &'static str> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| "a number is missing or too large"),
            false => Err("only numbers and ranges stand in brackets"),
        };
        let (from, to) = (number(first)?, number(last)?);
        if to < from {
            return Err("a range runs backwards");
        }
        if to - from >= MAX_HOSTS as u64 || numbers.len() > MAX_HOSTS {
            return Err("it has more than 100,000 hosts");
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_lists_expand_as_by_scontrol() {
        for (list, hosts) in [
            ("vm", "vm"),
            ("node[001-004,7]", "node001 node002 node003 node004 node7"),
            ("node[1-2,08-10],login1,gpu[3]", "node1 node2 node08 node09 node10 login1 gpu3"),
            ("rack[1-2]n[0-1]", "rack1n0 rack1n1 rack2n0 rack2n1"),
            ("a[1-2]-ib0,b.example.org", "a1-ib0 a2-ib0 b.example.org"),
            ("n[098-101]", "n098 n099 n100 n101"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), hosts, "{list}");
        }
    }

    #[test]
    fn invalid_host_list_is_refused_with_bounded_memory() {
        for (list, why) in [
            ("", "a name is empty"),
            ("a,,b", "a name is empty"),
            ("a[1", "a bracket does not close"),
            ("a[1[2]]", "a bracket opens inside"),
            ("a]b", "was not opened"),
            ("a][0]", "was not opened"),
            ("a[3-1]", "runs backwards"),
            ("a[]", "a number is missing"),
            ("a[x]", "only numbers"),
            ("a[-]", "a number is missing"),
            ("a[0-99999999999999999999]", "too large"),
            ("a[0-4000000000]", "more than 100,000"),
            ("a[0-999]b[0-999]", "more than 100,000"),
        ] {
            let error = expand(list).unwrap_err();
            assert!(error.to_string().contains(why), "{list}: {error}");
        }
    }

    /// A name with up to two brackets, and its expansion.
    fn entry() -> impl Strategy<Value = (String, Vec<String>)> {
        let bracket = prop::collection::vec((0_u64..200, 0_u64..5, 0_usize..4), 1..4);
        ("[a-z][a-z.-]{0,5}", prop::collection::vec((bracket, "[a-z-]{0,3}"), 0..3)).prop_map(
            |(start, parts)| {
                let (mut text, mut names) = (start.clone(), vec![start]);
                for (ranges, after) in parts {
                    let mut numbers = Vec::new();
                    let mut written = Vec::new();
                    for (from, more, width) in ranges {
                        numbers.extend(
                            (from..=from + more)
                                .map(|n| format!("{n:0width$}", width = width.max(from.to_string().len()))),
                        );
                        let first = format!("{from:0width$}");
                        written.push(if more == 0 { first } else { format!("{first}-{}", from + more) });
                    }
                    text += &format!("[{}]{after}", written.join(","));
                    names = names
                        .iter()
                        .flat_map(|name| numbers.iter().map(move |n| format!("{name}{n}")))
                        .collect();
                    names.iter_mut().for_each(|name| name.push_str(&after));
                }
                (text, names)
            },
        )
    }

    proptest! {
        #[test]
        fn host_list_round_trips(entries in prop::collection::vec(entry(), 1..4)) {
            let (texts, names): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
            prop_assert_eq!(expand(&texts.join(",")).unwrap(), names.concat());
        }

        #[test]
        fn random_text_expands_to_valid_hosts_or_fails(text in "[\\[\\]a-c0-9,-]{0,40}") {
            if let Ok(hosts) = expand(&text) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MAX_HOSTS);
                prop_assert!(hosts.iter().all(|host| !host.is_empty() && !host.contains(['[', ']', ','])));
            }
        }
    }
}
