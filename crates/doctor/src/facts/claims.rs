//! Sizes that nobody has proved.
//!
//! **Problem.** Anybody can start a process whose command line names any size. Sums that believe it say that a host is full that is not.
//!
//! **Rule.** The daemon's: as long as no VMM has told a guest's size, the size counts no further than its process has mapped memory. No guest
//! is larger than the machine: one that seems to be counts at what it uses.

use memtide_model::{Bytes, Fence, largest_guest};

use super::guest::{GuestFacts, Informant, ProcessStatus};

/// What counts of a size that a process claims, on a host with `memory`. `is_told`: its VMM has told the size. `mapped` is the memory of the process
/// that can be its guest's; `None` if its mappings were not read, and then all of its memory may be.
pub(super) fn counted(
    claims: Bytes,
    is_told: bool,
    mapped: Option<Bytes>,
    status: ProcessStatus,
    memory: Bytes,
) -> Bytes {
    if claims > largest_guest(memory) {
        return claims.min(status.resident);
    }
    if is_told { claims } else { claims.min(mapped.unwrap_or(status.mapped)) }
}

/// Bounds what counts of a guest on a host with `memory`.
pub(super) fn bound(guest: &mut GuestFacts, memory: Bytes) {
    if guest.informant == Informant::Daemon {
        // The daemon has bounded it.
        guest.claims = match guest.told.fence {
            Some(Fence::Oversized { claims }) => Some(claims),
            _ => guest.process.memory.filter(|claims| guest.told.claimed && *claims > guest.full),
        };
        return;
    }
    let status = guest.status.unwrap_or_default();
    let full = counted(guest.full, !guest.told.claimed, guest.ram_mapped, status, memory);
    guest.claims = Some(guest.full).filter(|claims| full < *claims);
    (guest.full, guest.told.full) = (full, full);
    guest.overhead_bound = guest.overhead_bound.filter(|bound| *bound <= largest_guest(memory));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Bytes = Bytes::from_mib(4096);

    #[test]
    fn a_size_counts_as_far_as_it_is_proved() {
        let mib = Bytes::from_mib;
        let status = ProcessStatus { resident: mib(4), mapped: mib(300), ..ProcessStatus::default() };
        let of = |claims, is_told, mapped| counted(claims, is_told, mapped, status, MACHINE);
        assert_eq!(of(mib(2048), true, Some(mib(64))), mib(2048), "its VMM has told it");
        assert_eq!(of(mib(2048), false, Some(mib(64))), mib(64));
        assert_eq!(of(mib(2048), false, Some(mib(4096))), mib(2048), "it claims less than it has mapped");
        assert_eq!(of(mib(2048), false, None), mib(300), "its mappings cannot be read");
        // As large as the machine, and larger.
        assert_eq!(of(mib(4608), true, None), mib(4608));
        for is_told in [false, true] {
            assert_eq!(of(mib(4609), is_told, Some(mib(4609))), mib(4));
        }
    }
}
