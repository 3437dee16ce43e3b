//! The cost of reading from the origin: time, alone and in parallel, and money.

use crate::curve::{Curve, transfer_ns};
use crate::error::PlanReason;
use crate::wide::narrow;

/// The slow shared storage, as its clients see it.
///
/// Three limits of its throughput are given, because each is the narrowest for some systems. The
/// first is the throughput (and latency) of one read. The second is the throughput of one client
/// over all its reads. The third is the throughput of all clients together. Fields that are not set
/// have defaults that do not limit.
///
/// A kept sample saves `(latency + size / bandwidth) / footprint` per use and byte. Only ratios
/// between samples matter there, so rough figures suffice. The larger the product of latency and
/// bandwidth is compared with the sizes, the more small samples are preferred.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Nanoseconds from a request to its first byte.
    pub latency_ns: u64,
    /// Bytes per second of one read after its first byte. Not 0.
    pub bytes_per_second: u64,
    /// The number of reads that one rank has in flight. Not 0.
    pub in_flight: u32,
    /// Bytes per second of one rank over all its reads. Not 0.
    pub client_bytes_per_second: u64,
    /// Bytes per second of all ranks together, by number of reading ranks.
    pub clients: Curve,
    /// The price of reads. `None` if they are free.
    pub price: Option<Price>,
    /// The throughput of large reads, if measured separately. A store that is limited by requests
    /// and not by bytes gives them more than the figures above.
    pub large: Option<LargeReads>,
}

/// The throughput of one rank with large reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LargeReads {
    /// The length of a read in bytes. Not 0.
    pub bytes: u64,
    /// Bytes per second of all reads together. Not 0.
    pub bytes_per_second: u64,
}

/// The price of an object store, in 10^-9 of any currency's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Price {
    /// Per read request.
    pub request_nano: u64,
    /// Per 10^9 bytes.
    pub gigabyte_nano: u64,
}

impl Price {
    /// The price of requests and bytes, rounded down. Saturates at `u64::MAX`.
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
    /// Nanoseconds of one read of `bytes` bytes without other readers, rounded down. Saturates at
    /// `u64::MAX`, also at 0 bytes per second.
    ///
    /// ```
    /// use foreread_planner::Origin; let origin = Origin { latency_ns: 500, bytes_per_second:
    /// 2_000_000_000, ..Origin::default() }; assert_eq!(origin.nanoseconds(4000), 2500);
    /// ```
    pub fn nanoseconds(&self, bytes: u64) -> u64 {
        transfer_ns(bytes.into(), self.bytes_per_second).saturating_add(self.latency_ns)
    }

    /// The origin for samples that are decoded when they are read: `stored` bytes become
    /// `delivered` ones. Rates and prices are then of delivered bytes.
    #[must_use]
    pub fn decoding(self, stored: u64, delivered: u64) -> Self {
        let scaled =
            |bytes: u64, by: u64, of: u64| narrow(u128::from(bytes) * u128::from(by) / u128::from(of.max(1)));
        let rate = |bytes| scaled(bytes, delivered, stored).max(1);
        let large = |large: LargeReads| LargeReads {
            bytes: rate(large.bytes),
            bytes_per_second: rate(large.bytes_per_second),
        };
        let price =
            |price: Price| Price { gigabyte_nano: scaled(price.gigabyte_nano, stored, delivered), ..price };
        Self {
            bytes_per_second: rate(self.bytes_per_second),
            client_bytes_per_second: rate(self.client_bytes_per_second),
            clients: self.clients.map(rate),
            price: self.price.map(price),
            large: self.large.map(large),
            ..self
        }
    }

    pub(crate) fn check(&self) -> Result<(), PlanReason> {
        for (field, value) in [
            ("origin.bytes_per_second", self.bytes_per_second),
            ("origin.in_flight", self.in_flight.into()),
            ("origin.client_bytes_per_second", self.client_bytes_per_second),
        ] {
            if value == 0 {
                return Err(PlanReason::Zero { field });
            }
        }
        if self.large.is_some_and(|large| large.bytes == 0 || large.bytes_per_second == 0) {
            return Err(PlanReason::Zero { field: "origin.large" });
        }
        self.clients.check("origin.clients")
    }
}

impl Default for Origin {
    /// 1 ms and 200 MB/s per read: between a parallel file system in one building and an object
    /// store in one region. 64 reads in flight, and no other limit or price.
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
    // semantics: FORMAT-5
    fn rates_of_decoded_samples_are_higher() {
        let price = Some(Price { request_nano: 3, gigabyte_nano: 80 });
        let origin = Origin { bytes_per_second: 100, price, ..Origin::default() }.decoding(10, 40);
        assert_eq!((origin.bytes_per_second, origin.client_bytes_per_second), (400, u64::MAX));
        assert_eq!(origin.price, Some(Price { request_nano: 3, gigabyte_nano: 20 }));
        assert_eq!(origin.clients, Curve::unlimited());
        assert_eq!(Origin::default().decoding(u64::MAX, 0).bytes_per_second, 1);
    }

    #[test]
    fn read_time_is_rounded_down_and_saturates() {
        let origin =
            |latency_ns, bytes_per_second| Origin { latency_ns, bytes_per_second, ..Origin::default() };
        assert_eq!(origin(1, 3).nanoseconds(1), 333_333_334);
        assert_eq!(origin(u64::MAX, 1).nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(Origin::default().nanoseconds(200), 1_001_000);
    }
}
