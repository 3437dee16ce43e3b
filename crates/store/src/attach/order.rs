//! The order of an epoch as messages have it.
//!
//! A store that owns a part of a dataset gets the uses of that part alone. So a message has, for
//! each sample, the number of places before it that are not for the receiver, and the sample's
//! number. One encoding serves a job that announces all of its uses and a store that passes parts
//! on. The price is five bytes for most samples, where four would do for whole orders.

use std::num::NonZeroU32;

use foreread_types::{SampleId, Tick};

use super::Piece;

/// One epoch over one dataset, as a job announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochOrder {
    /// The dataset's number among those of the job.
    pub dataset: u32,
    /// The position of the first use, counted over all epochs.
    pub first: Tick,
    /// The places for each position. More than one only in a group of ranks, where a rank serves
    /// samples to others.
    pub per_position: NonZeroU32,
    /// The numbers of the samples in the order of their uses, and [holes](Self::HOLE).
    pub samples: Vec<u32>,
}

/// A piece of an order, or of the part of an order for one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderPiece<'a> {
    /// As in the order.
    pub first: Tick,
    /// As in the order.
    pub per_position: NonZeroU32,
    /// All places of the order.
    pub places: u32,
    /// A piece of the encoded samples. Its number is that of the dataset.
    pub piece: Piece<'a>,
}

impl EpochOrder {
    /// A place without a sample.
    pub const HOLE: u32 = u32::MAX;

    /// All samples, encoded.
    pub fn encoded(&self) -> Vec<u8> {
        self.divided(1, |_| Some(0)).pop().unwrap_or_default()
    }

    /// The samples of each of so many owners, encoded.
    pub fn divided(&self, owners: usize, owner: impl Fn(SampleId) -> Option<usize>) -> Vec<Vec<u8>> {
        let mut parts = vec![(0_u32, Vec::new()); owners];
        for (at, sample) in (0_u32..).zip(&self.samples) {
            let is_sample = *sample != Self::HOLE;
            let part = is_sample.then(|| owner(SampleId(u64::from(*sample)))).flatten();
            let Some((next, part)) = part.and_then(|owner| parts.get_mut(owner)) else { continue };
            let mut holes = at - *next;
            while holes >= 0x80 {
                part.push(holes as u8 | 0x80);
                holes >>= 7;
            }
            part.push(holes as u8);
            part.extend(sample.to_le_bytes());
            *next = at + 1;
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    /// The order of encoded samples, and of the head of any of its pieces. `None` if they are
    /// malformed, or more than the places.
    pub fn decode(head: &OrderPiece<'_>, encoded: &[u8]) -> Option<Self> {
        let OrderPiece { first, per_position, places, piece } = *head;
        let mut samples = Vec::new();
        samples.try_reserve_exact(places as usize).ok()?;
        let mut left = encoded;
        while !left.is_empty() {
            let (mut holes, mut shift) = (0_u32, 0);
            loop {
                let (byte, rest) = left.split_first()?;
                left = rest;
                holes |= u32::from(byte & 0x7f).checked_shl(shift)?;
                shift += 7;
                if *byte < 0x80 {
                    break;
                }
            }
            let (sample, rest) = left.split_first_chunk()?;
            left = rest;
            let at = samples.len() as u64 + u64::from(holes);
            if at >= u64::from(places) {
                return None;
            }
            samples.resize(at as usize, Self::HOLE);
            samples.push(u32::from_le_bytes(*sample));
        }
        samples.resize(places as usize, Self::HOLE);
        Some(Self { dataset: piece.number, first, per_position, samples })
    }

    /// The pieces of a part of the order.
    pub fn pieces<'a>(&self, part: &'a [u8]) -> impl Iterator<Item = OrderPiece<'a>> + use<'a> {
        let (first, per_position) = (self.first, self.per_position);
        let places = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
        Piece::all(self.dataset, part).map(move |piece| OrderPiece { first, per_position, places, piece })
    }
}

impl<'a> OrderPiece<'a> {
    /// The fewest bytes of a sample.
    pub const SAMPLE_BYTES: u64 = 5;

    /// The payload of the call.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = self.first.0.to_le_bytes().to_vec();
        to.extend(self.per_position.get().to_le_bytes());
        to.extend(self.places.to_le_bytes());
        to.extend(self.piece.encode());
        to
    }

    /// Parses a payload. `None` if it is none.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (first, rest) = payload.split_first_chunk()?;
        let (per_position, rest) = rest.split_first_chunk()?;
        let (places, rest) = rest.split_first_chunk()?;
        Some(Self {
            first: Tick(u64::from_le_bytes(*first)),
            per_position: NonZeroU32::new(u32::from_le_bytes(*per_position))?,
            places: u32::from_le_bytes(*places),
            piece: Piece::decode(rest)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(samples: Vec<u32>) -> EpochOrder {
        EpochOrder { dataset: 1, first: Tick(9), per_position: NonZeroU32::new(2).unwrap(), samples }
    }

    /// The order that a receiver makes of the pieces of a part.
    fn received(order: &EpochOrder, part: &[u8]) -> EpochOrder {
        let (mut bytes, mut head) = (Vec::new(), None);
        let payloads: Vec<Vec<u8>> = order.pieces(part).map(|piece| piece.encode()).collect();
        for payload in &payloads {
            let piece = OrderPiece::decode(payload).unwrap();
            bytes.extend(piece.piece.bytes);
            head = Some(piece);
        }
        EpochOrder::decode(&head.unwrap(), &bytes).unwrap()
    }

    proptest! {
        #[test]
        // semantics: CONTROL-10
        fn parts_of_an_order_are_all_of_it(
            samples in prop::collection::vec(prop_oneof![0..50_u32, Just(u32::MAX)], 0..400),
            owners in 1..5_usize,
        ) {
            let order = order(samples);
            prop_assert_eq!(&received(&order, &order.encoded()), &order);
            let mut all = vec![u32::MAX; order.samples.len()];
            for (owner, part) in order.divided(owners, |it| Some(it.0 as usize % owners)).iter().enumerate() {
                let part = received(&order, part);
                prop_assert_eq!(part.samples.len(), all.len());
                for (to, id) in all.iter_mut().zip(part.samples).filter(|(_, id)| *id != u32::MAX) {
                    prop_assert!(id as usize % owners == owner && *to == u32::MAX);
                    *to = id;
                }
            }
            prop_assert_eq!(all, order.samples);
        }

        #[test]
        fn bytes_of_another_program_are_an_order_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            places in 0..100_u32,
        ) {
            let piece = Piece { number: 0, total: bytes.len() as u64, at: 0, bytes: &bytes };
            let head = OrderPiece { first: Tick(0), per_position: NonZeroU32::MIN, places, piece };
            let decoded = EpochOrder::decode(&head, &bytes);
            prop_assert!(decoded.is_none_or(|order| order.samples.len() == places as usize));
        }
    }

    #[test]
    fn long_gaps_and_cut_messages() {
        let mut samples = vec![u32::MAX; 100_000];
        (samples[70_000], samples[99_999]) = (5, 6);
        let order = order(samples);
        let part = order.encoded();
        assert_eq!((part.len(), &received(&order, &part)), (3 + 4 + 3 + 4, &order));
        let head = order.pieces(&part).next().unwrap();
        assert_eq!(EpochOrder::decode(&head, &part[..part.len() - 1]), None);
        // One place too few.
        assert_eq!(EpochOrder::decode(&OrderPiece { places: 99_999, ..head }, &part), None);
        assert_eq!(OrderPiece::decode(&[0; 50]), None);
    }
}
