//! The checksum of HDF5's newer structures: Jenkins' lookup3, `hashlittle` with an initial value
//! of 0.

/// The checksum of some bytes.
pub(super) fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xDEAD_BEEF_u32.wrapping_add(bytes.len() as u32);
    let mut state = [start; 3];
    let mut rest = bytes;
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        add(&mut state, block);
        mix(&mut state);
        rest = after;
    }
    if rest.is_empty() {
        return state[2];
    }
    add(&mut state, rest);
    last(&mut state)
}

/// Adds up to 12 bytes as three words.
fn add(state: &mut [u32; 3], bytes: &[u8]) {
    for (word, bytes) in state.iter_mut().zip(bytes.chunks(4)) {
        let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
        *word = word.wrapping_add(value);
    }
}

fn mix(state: &mut [u32; 3]) {
    let [mut a, mut b, mut c] = *state;
    for (first, second, third) in [(4, 6, 8), (16, 19, 4)] {
        a = a.wrapping_sub(c) ^ c.rotate_left(first);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(second);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(third);
        b = b.wrapping_add(a);
    }
    *state = [a, b, c];
}

fn last(state: &mut [u32; 3]) -> u32 {
    let [mut a, mut b, mut c] = *state;
    for (first, second, third) in [(14, 11, 25), (16, 4, 14)] {
        c = (c ^ b).wrapping_sub(b.rotate_left(first));
        a = (a ^ c).wrapping_sub(c.rotate_left(second));
        b = (b ^ a).wrapping_sub(a.rotate_left(third));
    }
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    #[test]
    fn checksums_are_those_of_the_published_code() {
        // `driver5` of lookup3.c.
        assert_eq!(super::lookup3(b""), 0xDEAD_BEEF);
        assert_eq!(super::lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }
}
