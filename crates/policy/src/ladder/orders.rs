//! The operator's orders to take memory from guests.

use std::collections::BTreeMap;

use memtide_model::{Bytes, Ordered, Snapshot};

use crate::belief::guest::Guest;

/// The memory that the operator's orders ask for, with the guest of each: the last order counts.
pub(crate) fn ordered(
    seen: &Snapshot,
    guests: &[Guest<'_>],
    bytes: impl Fn(Ordered) -> Option<Bytes>,
) -> BTreeMap<usize, Bytes> {
    let orders = seen.orders.iter().filter_map(|order| {
        let bytes = bytes(order.ordered)?;
        let index = guests.binary_search_by(|guest| guest.seen.id.cmp(&order.guest)).ok()?;
        Some((index, bytes))
    });
    orders.collect()
}
