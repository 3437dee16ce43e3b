//! Which prefix a store complains of: told by who is refused while others are not.
//!
//! Object stores hold prefixes of keys to ceilings of their own. A ceiling of the whole store refuses requests of all
//! prefixes alike; one of a prefix refuses that prefix's and no others. Requests of two prefixes that leave one after
//! the other are a fair comparison, whatever happens from one second to the next: where one of the two is refused, it
//! is either of them equally often if both are under one ceiling. So every prefix that is refused becomes a
//! suspect, and it is guilty when eight times it was refused and its neighbour was not, the neighbour being of a prefix that
//! has not been refused at all, and hardly ever the other way round. A catalog that is read directory by directory
//! has no such neighbours and makes nobody guilty.
//!
//! Memory is bounded: sixteen suspects at a time, for a minute, and so many pairs as can be under way. The price is
//! that one of very many prefixes that are all refused is not found; then all are slowed together.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rate::Verdict;
use crate::rates::Mark;

/// Suspects at a time.
const MOST: usize = 16;
/// How long a suspicion lasts.
pub(crate) const LASTS: Duration = Duration::from_secs(60);
/// How often a suspect has to be refused beside one that is not, and the part of that in which it may be the other way
/// round.
const TELLING: f64 = 8.0;
const INNOCENT: f64 = 0.1;
/// Pairs that wait for their answers; of more, the oldest are forgotten.
const PAIRS: usize = 2048;

/// One half of a pair of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pair: u64,
    second: bool,
}

/// Two requests of different prefixes that left one after the other, and their answers as far as they are there.
#[derive(Clone, Copy, Debug)]
struct Pair {
    marks: [Option<Mark>; 2],
    answers: [Option<Verdict>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    prefix: Mark,
    begun: Duration,
    /// When it was last refused, and how many of its requests were answered and refused by then.
    last: Duration,
    requests: f64,
    refused: f64,
    /// Those that were answered since.
    fresh: f64,
    /// Pairs in which it was refused and the other not, and the other way round.
    alone: f64,
    spared: f64,
}

/// A prefix with a ceiling of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guilty {
    pub(crate) prefix: Mark,
    /// Its requests in so many seconds, and how many of them were refused.
    pub(crate) seconds: f64,
    pub(crate) requests: f64,
    pub(crate) refused: f64,
}

/// The prefixes of one origin that are refused.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    suspects: Vec<Suspect>,
    pairs: VecDeque<Pair>,
    /// Pairs that are no longer among them.
    gone: u64,
}

impl Suspects {
    /// A request below `prefix` leaves: its half of a pair with the one before or the one after.
    pub(crate) fn left(&mut self, prefix: Mark) -> Ticket {
        if let Some(Pair { marks: [Some(first), second @ None], .. }) = self.pairs.back_mut()
            && *first != prefix
        {
            *second = Some(prefix);
            return Ticket { pair: self.gone + self.pairs.len() as u64 - 1, second: true };
        }
        self.pairs.push_back(Pair { marks: [Some(prefix), None], answers: [None; 2] });
        if self.pairs.len() > PAIRS {
            self.pairs.pop_front();
            self.gone += 1;
        }
        Ticket { pair: self.gone + self.pairs.len() as u64 - 1, second: false }
    }

    /// A request below `prefix` was answered.
    pub(crate) fn answered(&mut self, now: Duration, prefix: Mark, ticket: Option<Ticket>, verdict: Verdict) {
        self.suspects.retain(|suspect| now.saturating_sub(suspect.begun) < LASTS);
        let refused = verdict == Verdict::Refused;
        if refused && self.suspect(prefix).is_none() && self.suspects.len() < MOST {
            let (requests, fresh, alone, spared) = Default::default();
            let (begun, last, refused) = (now, now, 0.0);
            let suspect = Suspect { prefix, begun, last, requests, refused, fresh, alone, spared };
            self.suspects.push(suspect);
        }
        if let Some(suspect) = self.suspect(prefix) {
            suspect.fresh += 1.0;
            if refused {
                suspect.last = now;
                suspect.refused += 1.0;
                suspect.requests += std::mem::take(&mut suspect.fresh);
            }
        }
        if let Some(ticket) = ticket {
            self.compare(ticket, verdict);
        }
    }

    fn suspect(&mut self, prefix: Mark) -> Option<&mut Suspect> {
        self.suspects.iter_mut().find(|suspect| suspect.prefix == prefix)
    }

    /// Notes one answer of a pair, and what the two tell when both are there.
    fn compare(&mut self, ticket: Ticket, verdict: Verdict) {
        let at = ticket.pair.checked_sub(self.gone).and_then(|at| usize::try_from(at).ok());
        let Some(pair) = at.and_then(|at| self.pairs.get_mut(at)) else { return };
        pair.answers[usize::from(ticket.second)] = Some(verdict);
        let Pair { marks: [Some(first), Some(second)], answers: [Some(one), Some(other)] } = *pair else {
            return;
        };
        let (refused, admitted) = match (one, other) {
            (Verdict::Refused, Verdict::Admitted) => (first, second),
            (Verdict::Admitted, Verdict::Refused) => (second, first),
            _ => return,
        };
        match (self.suspect(refused).is_some(), self.suspect(admitted).is_some()) {
            (true, false) => self.suspect(refused).into_iter().for_each(|suspect| suspect.alone += 1.0),
            (false, true) => self.suspect(admitted).into_iter().for_each(|suspect| suspect.spared += 1.0),
            _ => {} // of two suspects either may be the guilty one
        }
    }

    /// A prefix that is refused while others are not, if there is one; it is no suspect any longer.
    pub(crate) fn convict(&mut self) -> Option<Guilty> {
        let guilty = |one: &Suspect| one.alone >= TELLING && one.spared <= INNOCENT * one.alone;
        let at = self.suspects.iter().position(guilty)?;
        let Suspect { prefix, begun, last, requests, refused, .. } = self.suspects.swap_remove(at);
        Some(Guilty { prefix, seconds: last.saturating_sub(begun).as_secs_f64(), requests, refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(path: &str) -> Mark {
        Mark::of_path(path)
    }

    /// Requests leave in this order and are answered in it.
    fn run(suspects: &mut Suspects, requests: impl IntoIterator<Item = (Mark, Verdict)>) -> Vec<Mark> {
        let requests: Vec<_> =
            requests.into_iter().map(|(mark, verdict)| (mark, suspects.left(mark), verdict)).collect();
        let mut guilty = Vec::new();
        for (at, (mark, ticket, verdict)) in requests.into_iter().enumerate() {
            suspects.answered(Duration::from_millis(at as u64), mark, Some(ticket), verdict);
            let found = suspects.convict().map(|guilty| guilty.prefix);
            guilty.extend(found.filter(|prefix| !guilty.contains(prefix)));
        }
        guilty
    }

    #[test]
    fn a_prefix_that_is_refused_beside_others_that_are_not_is_found() {
        let (cat, bird, dog) = (mark("a/cat/1"), mark("a/bird/1"), mark("a/dog/1"));
        let mut suspects = Suspects::default();
        let requests = (0..200).map(|at| match at % 3 {
            0 => (cat, if at % 2 == 0 { Verdict::Refused } else { Verdict::Admitted }),
            1 => (dog, Verdict::Admitted),
            _ => (bird, if at % 5 == 0 { Verdict::Refused } else { Verdict::Admitted }),
        });
        assert_eq!(run(&mut suspects, requests), [cat, bird]);
    }

    #[test]
    fn a_ceiling_of_all_and_a_catalog_read_in_order_make_nobody_guilty() {
        let prefixes: Vec<Mark> = (0..40).map(|class| mark(&format!("{class}/x"))).collect();
        let (mut suspects, mut draw) = (Suspects::default(), foreread_tier_testing::Draw::new());
        let mixed = (0..20_000).map(|_| {
            let refused = draw.below(20) == 0;
            let prefix = prefixes[draw.below(40) as usize];
            (prefix, if refused { Verdict::Refused } else { Verdict::Admitted })
        });
        let found = run(&mut suspects, mixed.collect::<Vec<_>>()).len();
        assert!(found <= 2, "{found}"); // by chance: it is told from one of all by eight to none
        let mut suspects = Suspects::default();
        let in_order = (0..4000usize).map(|at| {
            let verdict = if at / 100 % 4 == 3 { Verdict::Refused } else { Verdict::Admitted };
            (prefixes[at / 100], verdict)
        });
        assert_eq!(run(&mut suspects, in_order), [] as [Mark; 0]);
    }

    /// Several threads once came with times of before they had the lock.
    #[test]
    fn suspect_whose_answers_come_in_no_order_is_no_panic() {
        let (cat, dog) = (mark("a/cat/1"), mark("a/dog/1"));
        let mut suspects = Suspects::default();
        for at in (0..20).rev() {
            let (first, second) = (suspects.left(cat), suspects.left(dog));
            let now = Duration::from_millis(at);
            suspects.answered(now, cat, Some(first), Verdict::Refused);
            suspects.answered(now, dog, Some(second), Verdict::Admitted);
        }
        let guilty = suspects.convict().unwrap();
        assert_eq!((guilty.prefix, guilty.seconds, guilty.refused), (cat, 0.0, 20.0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut suspects = Suspects::default();
        for at in 0..10_000u64 {
            let prefix = mark(&format!("{at}/x"));
            let ticket = suspects.left(prefix);
            if at % 3 == 0 {
                suspects.answered(Duration::from_millis(at), prefix, Some(ticket), Verdict::Refused);
            }
        }
        assert!(suspects.pairs.len() <= PAIRS && suspects.suspects.len() <= MOST);
        assert_ne!(mark("a/b/c/1"), mark("a/d/c/1"));
        assert_eq!((mark("a/b/c/1"), mark("x")), (mark("a/b/d/2"), mark("y")));
    }
}
