//! Long lists that become other forms piece by piece.

/// The items in pieces of at most `size`. The memory of taken items is released, because millions
/// of items take hundreds of megabytes, and their other form as much.
pub(crate) fn in_pieces<T>(mut items: Vec<T>, size: usize) -> impl Iterator<Item = Vec<T>> {
    items.reverse();
    std::iter::from_fn(move || {
        let piece: Vec<T> = items.drain(items.len().saturating_sub(size)..).rev().collect();
        items.shrink_to_fit();
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::in_pieces;

    #[test]
    fn pieces_are_the_items_in_their_order() {
        let pieces = |count: u32| in_pieces((0..count).collect(), 3).collect::<Vec<_>>();
        assert!(pieces(0).is_empty());
        assert_eq!(pieces(3), [[0, 1, 2]]);
        assert_eq!(pieces(7), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    }
}
