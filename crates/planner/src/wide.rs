//! Products of 64-bit figures: computed in 128 bits, rounded down, saturating.

/// `of * part / whole`, rounded down. Rounded twice if the product does not fit.
pub(crate) fn share(of: u128, part: u128, whole: u128) -> u128 {
    let whole = whole.max(1);
    of.checked_mul(part).map_or_else(|| (of / whole).saturating_mul(part), |product| product / whole)
}

/// Converts to 64 bits. Saturates.
pub(crate) fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
