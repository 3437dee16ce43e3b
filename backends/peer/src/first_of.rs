//! Connecting to a process that has several addresses.

use std::time::Duration;

use foreread_connection::{Address, WireError};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::timeout;

/// The first connection that `open` makes to one of several addresses, and its address. An address
/// is tried when one before it has failed, or all before it have not answered for `head_start`. So
/// the first ones are preferred, and a slow one delays no other.
///
/// # Errors
/// The errors of all addresses, in the order in which they came.
///
/// # Cancel safety
/// Dropping the future closes the connections.
pub(crate) async fn first_of<T, F: Future<Output = Result<T, WireError>>>(
    addresses: Vec<Address>,
    head_start: Duration,
    open: impl Fn(Address) -> F,
) -> Result<(Address, T), Vec<(Address, WireError)>> {
    let (mut waiting, mut tried) = (addresses.into_iter(), FuturesUnordered::new());
    let mut errors = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            let opening = open(address.clone());
            tried.push(async move { (address, opening.await) });
        }
        let answered = if waiting.len() == 0 {
            tried.next().await
        } else {
            let Ok(answered) = timeout(head_start, tried.next()).await else { continue };
            answered
        };
        match answered {
            Some((address, Ok(opened))) => return Ok((address, opened)),
            Some((address, Err(error))) => errors.push((address, error)),
            None => return Err(errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_address_delays_no_other_and_all_errors_are_known() {
        let second = Duration::from_secs(1);
        let at = |port| Address::tcp("h", port);
        let open = |address: Address| async move {
            match address {
                Address::Tcp(_, 1) => pending().await,
                Address::Tcp(_, 2) => Err(WireError::malformed("two")),
                address => Ok(address),
            }
        };
        let begun = tokio::time::Instant::now();
        let found = first_of([1, 2, 3].map(at).to_vec(), second, open).await.unwrap();
        assert_eq!((found, begun.elapsed()), ((at(3), at(3)), second));
        let errors = first_of([2, 2].map(at).to_vec(), second, open).await.unwrap_err();
        assert_eq!((errors.len(), begun.elapsed()), (2, second));
        assert!(first_of(Vec::new(), second, open).await.unwrap_err().is_empty());
    }
}
