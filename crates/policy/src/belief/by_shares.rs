//! The size that each guest's shares alone would give it, if every guest needed all that it could get.

use memtide_model::{Bytes, HostSeen};

use crate::belief::guest::Guest;

/// The level of the shares alone is found after this many steps at most; one for each kind of guest is enough.
const LEVELS: u32 = 8;

/// Notes the size that each guest's shares alone would give it, if every guest needed all that it could get.
pub fn by_shares(host: &HostSeen, reserve: Bytes, guests: &mut [Guest<'_>]) {
    let beyond = guests.iter().map(|guest| guest.entry.strict_cost().saturating_sub(guest.entry.held));
    let fixed = Bytes::sum([host.beside_guests(), reserve, Bytes::sum(beyond)]);
    let pool = host.capacity.saturating_sub(fixed).get();
    let limits: Vec<(u64, u64)> =
        guests.iter().map(|guest| (guest.bounds.limit().get(), u64::from(guest.class.shares))).collect();
    let mut level = 0_u64;
    // What full guests leave raises the level for the others: each time, more guests are full.
    for _ in 0..LEVELS {
        let (mut left, mut open) = (pool, 0);
        for (limit, shares) in &limits {
            match *limit <= level.saturating_mul(*shares) {
                true => left = left.saturating_sub(*limit),
                false => open += shares,
            }
        }
        let next = left.checked_div(open).unwrap_or(level);
        if next <= level {
            break;
        }
        level = next;
    }
    for (guest, (_, shares)) in guests.iter_mut().zip(&limits) {
        guest.by_shares = guest.bounds.clamp(Bytes::new(level.saturating_mul(*shares)));
    }
}
