//! The network interfaces that a user selects by name.
//!
//! Names match as those of `NCCL_SOCKET_IFNAME`, so that one value serves both.

/// The variable that names interfaces: `ib0,eth1` (prefixes), `=ib0` (whole names), `^docker,lo`
/// (all but these).
pub const INTERFACE: &str = "FOREREAD_INTERFACE";

/// A parsed list of interface names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFilter<'a> {
    names: Vec<&'a str>,
    /// The names are excluded.
    excludes: bool,
    /// The names are whole, not prefixes.
    exact: bool,
}

impl<'a> InterfaceFilter<'a> {
    /// The list in a text.
    pub fn of(text: &'a str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Self { names, excludes, exact }
    }

    /// Whether the list names no interface.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the list selects an interface.
    pub fn matches(&self, interface: &str) -> bool {
        let named = |name: &&str| if self.exact { interface == *name } else { interface.starts_with(*name) };
        self.names.iter().any(named) != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: RANK-26
    fn names_match_as_those_of_nccl_do() {
        for (text, expected_names) in [
            ("ib", "ib0 ib1"),
            ("ib1, eth", "ib1 eth0"),
            ("=ib1", "ib1"),
            ("=ib", ""),
            ("^ib", "lo eth0 docker0"),
            ("^=ib0,lo,docker0", "ib1 eth0"),
        ] {
            let names = InterfaceFilter::of(text);
            let found: Vec<_> = ["lo", "eth0", "ib0", "ib1", "docker0"]
                .into_iter()
                .filter(|name| names.matches(name))
                .collect();
            let mut expected: Vec<_> = expected_names.split_whitespace().collect();
            expected.sort_by_key(|name| found.iter().position(|known| known == name));
            assert_eq!(found, expected, "{text}");
        }
    }
}
