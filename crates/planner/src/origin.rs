//! What reading from the origin costs: in time, alone and among others, and in money.

use crate::curve::{Curve, transfer_ns};
use crate::error::Reason;
use crate::forecast::narrow;

/// The slow shared store, as its clients see it.
///
/// Three limits of its speed stand side by side, because each is the narrowest somewhere: what one read gets once it
/// flows (and its latency), what one client gets in all its reads, and what all clients together get. An origin that
/// is described by less has defaults that do not limit.
///
/// What keeping a sample saves, for each byte that keeping it takes, is `(latency + size / bandwidth) / footprint` a
/// use. There only ratios between samples matter, so rough figures do: the larger the product of latency and bandwidth
/// is against the sizes, the more smaller samples are preferred.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Nanoseconds from a request to its first byte.
    pub latency_ns: u64,
    /// Bytes a second of one read, once it flows; not 0.
    pub bytes_per_second: u64,
    /// Reads that one rank has in flight; not 0.
    pub in_flight: u32,
    /// Bytes a second that one rank gets in all its reads; not 0.
    pub client_bytes_per_second: u64,
    /// Bytes a second that all ranks together get, over the number of ranks that read.
    pub clients: Curve,
    /// What is paid; none where nothing is.
    pub price: Option<Price>,
    /// What large reads get, where that is known by itself: a store that is busy with requests rather than with bytes gives
    /// them more than the figures above say.
    pub large: Option<Large>,
}

/// How fast one rank reads by large reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Large {
    /// The length of each, in bytes; not 0.
    pub bytes: u64,
    /// Bytes a second of all of them together; not 0.
    pub bytes_per_second: u64,
}

/// What an object store charges, in any currency: in thousand-millionths of its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Price {
    /// For a read request.
    pub request_nano: u64,
    /// For 10^9 bytes.
    pub gigabyte_nano: u64,
}

impl Price {
    /// What some requests and bytes cost, rounded down; saturates at `u64::MAX`.
    ///
    /// ```
    /// use foreread_planner::Price;
    /// // 0.0000004 a request and 0.09 a GB.
    /// let price = Price { request_nano: 400, gigabyte_nano: 90_000_000 };
    /// assert_eq!(price.nano(1_000_000, 100_000_000_000), 400_000_000 + 9_000_000_000);
    /// ```
    pub fn nano(&self, requests: u64, bytes: u64) -> u64 {
        let bytes = u128::from(bytes) * u128::from(self.gigabyte_nano) / 1_000_000_000;
        narrow((u128::from(requests) * u128::from(self.request_nano)).saturating_add(bytes))
    }
}

impl Origin {
    /// Nanoseconds that one read of `bytes` bytes takes when nobody else reads, rounded down; saturates at `u64::MAX`.
    ///
    /// ```
    /// use foreread_planner::Origin;
    /// let origin = Origin { latency_ns: 500, bytes_per_second: 2_000_000_000, ..Origin::default() };
    /// assert_eq!(origin.nanoseconds(4000), 2500);
    /// ```
    pub fn nanoseconds(&self, bytes: u64) -> u64 {
        transfer_ns(bytes.into(), self.bytes_per_second).saturating_add(self.latency_ns)
    }

    pub(crate) fn check(&self) -> Result<(), Reason> {
        for (field, value) in [
            ("origin.bytes_per_second", self.bytes_per_second),
            ("origin.in_flight", self.in_flight.into()),
            ("origin.client_bytes_per_second", self.client_bytes_per_second),
        ] {
            if value == 0 {
                return Err(Reason::Zero { field });
            }
        }
        if self.large.is_some_and(|large| large.bytes == 0 || large.bytes_per_second == 0) {
            return Err(Reason::Zero { field: "origin.large" });
        }
        self.clients.check("origin.clients")
    }
}

impl Default for Origin {
    /// 1 ms and 200 MB/s a read: between a parallel file system in one building and an object store in one region. 64
    /// reads in flight, and no other limit or price.
    fn default() -> Self {
        Self {
            latency_ns: 1_000_000,
            bytes_per_second: 200_000_000,
            in_flight: 64,
            client_bytes_per_second: u64::MAX,
            clients: Curve::unlimited(),
            price: None,
            large: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_down_and_saturate() {
        let origin =
            |latency_ns, bytes_per_second| Origin { latency_ns, bytes_per_second, ..Origin::default() };
        assert_eq!(origin(1, 3).nanoseconds(1), 333_333_334);
        assert_eq!(origin(u64::MAX, 1).nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(Origin::default().nanoseconds(200), 1_001_000);
    }
}
