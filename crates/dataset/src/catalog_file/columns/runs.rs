//! Rows of a catalog that stand for runs of samples, whose places are computed.

/// For each row the number of samples up to its end. Empty if each row is a sample.
#[derive(Debug, Default)]
pub(crate) struct RunEnds(pub(crate) Vec<u64>);

impl RunEnds {
    /// Whether rows stand for runs.
    pub(crate) fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// The number of rows of so many samples.
    pub(crate) fn rows(&self, samples: u64) -> u64 {
        if self.are_there() { self.0.len() as u64 } else { samples }
    }

    /// The row of a sample, and the sample's number in the row's run.
    pub(crate) fn row_of(&self, sample: u64) -> (u64, u64) {
        if !self.are_there() {
            return (sample, 0);
        }
        let row = self.0.partition_point(|end| *end <= sample);
        (row as u64, sample - self.first(row))
    }

    /// The first sample of a row, and the number of its samples.
    pub(crate) fn run(&self, row: u64) -> (u64, u64) {
        let at = usize::try_from(row).unwrap_or(usize::MAX);
        let Some(end) = self.0.get(at) else { return (row, 1) };
        (self.first(at), end - self.first(at))
    }

    fn first(&self, row: usize) -> u64 {
        row.checked_sub(1).and_then(|before| self.0.get(before)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_in_their_runs() {
        let runs = RunEnds(vec![3, 5]);
        assert_eq!(
            (0..6).map(|sample| runs.row_of(sample)).collect::<Vec<_>>(),
            [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
        );
        assert_eq!((runs.run(0), runs.run(1), runs.rows(5)), ((0, 3), (3, 2), 2));
        let rows = RunEnds::default();
        assert_eq!((rows.row_of(4), rows.run(4), rows.rows(9)), ((4, 0), (4, 1), 9));
    }
}
