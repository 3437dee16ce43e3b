//! The identity of a run.
//!
//! A job's token, launcher variables and addresses outlive a run. A restarted rank 0 has the same
//! ones, and so has another job that gets its address. Samples of two runs may differ although ids
//! and lengths are equal, so connections for samples belong to one run. Rank 0 draws a nonce, and
//! the id binds it to the run's data and plan. The price is that a rank serves nothing before all
//! ranks have planned.

use std::fmt;

use foreread_types::Fingerprint;
use sha2::{Digest, Sha256};

/// The nonce of a run: 128 random bits that rank 0 draws once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nonce(u128);

impl Nonce {
    /// A nonce of these bits, which must be random.
    pub fn new(bits: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bits))
    }

    /// Parses the output of [`Display`](fmt::Display). `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for Nonce {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The id of a run: equal on all of its ranks and on no other rank. It is not secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId([u8; 16]);

impl RunId {
    /// The run that begins with `nonce`, for ranks that agree on `bound` in this order.
    pub fn new(nonce: Nonce, bound: &[Fingerprint]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"foreread run 1");
        hash.update(nonce.0.to_le_bytes());
        bound.iter().for_each(|fingerprint| hash.update(fingerprint.0.to_le_bytes()));
        let digest: [u8; 32] = hash.finalize().into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in the handshake.
    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Half of the id, for the header of each frame.
    pub fn tag(&self) -> u64 {
        let (half, _) = self.0.split_at(8);
        half.iter().rev().fold(0, |tag, byte| tag << 8 | u64::from(*byte))
    }
}

impl fmt::Display for RunId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_depends_on_nonce_and_all_that_is_bound() {
        let id = |nonce: u8, bound: &[u128]| {
            let bound: Vec<_> = bound.iter().copied().map(Fingerprint).collect();
            RunId::new(Nonce::new([nonce; 16]), &bound)
        };
        let all = [id(1, &[]), id(2, &[]), id(1, &[7]), id(1, &[7, 8]), id(1, &[8, 7]), id(1, &[0])];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one && other.tag() != one.tag()));
        }
        assert_eq!(id(1, &[7, 8]), all[3]);
    }

    #[test]
    fn nonce_round_trips_as_text() {
        let nonce = Nonce::new([7; 16]);
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        for other in ["", "7", &"g".repeat(32), &"7".repeat(33)] {
            assert_eq!(Nonce::parse(other), None, "{other}");
        }
    }

    #[test]
    fn run_id_round_trips_and_gives_its_tag() {
        let id = RunId::new(Nonce::new([3; 16]), &[Fingerprint(9)]);
        assert_eq!(RunId::from_bytes(*id.as_bytes()), id);
        assert_eq!(id.tag().to_le_bytes(), id.as_bytes()[..8]);
        assert_eq!(id.to_string().len(), 32);
    }
}
