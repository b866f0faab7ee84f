//! The memory promised to guests, compared with the host's memory.

use memtide_model::{Absence, Budget, Bytes, Commitment, Fence, Owner, largest_guest};
use memtide_vmm::qemu::Accel;

use super::balloon::ONLY_COUNTED;
use super::{gives_nothing, of_guest};
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};

/// The capacity, and the part of it that guests may have: without the reserve.
fn for_guests(facts: &Facts) -> Option<(Bytes, Bytes)> {
    let total = facts.host.memory.value()?.total;
    let host = facts.cgroups.small_host.as_ref().map_or(total, |(_, limit)| *limit);
    let capacity = match facts.config.budget {
        Budget::Host => host,
        Budget::Size(size) => size.min(host),
    };
    Some((capacity, capacity.saturating_sub(facts.config.reserve_of(capacity))))
}

/// Whether the guests were promised more than they may have.
pub(super) fn is_overcommitted(facts: &Facts) -> bool {
    for_guests(facts).is_some_and(|(_, available)| facts.promised() > available)
}

/// The reserve leaves nothing for guests.
pub(super) fn reserve(facts: &Facts) -> Option<Finding> {
    let (capacity, available) = for_guests(facts)?;
    // The configured value: the value in use is never above the capacity.
    let reserve = facts.config.reserve.of(capacity).max(facts.config.reserve_of(capacity));
    if available > Bytes::ZERO || reserve.is_zero() {
        return None;
    }
    let fact = format!("the reserve of {reserve} leaves nothing of {capacity} for guests");
    Some(
        Finding::of_host("promises.reserve", Severity::Problem, fact)
            .costs("no daemon starts with it; if a cgroup's limit leaves nothing, a daemon starts but cannot keep its commitment")
            .fix(facts.configuration.path.display().to_string(), ["reserve = \"5%\""]),
    )
}

/// Guests that cannot give memory were promised more than the capacity.
pub(super) fn held_for_good(facts: &Facts) -> Option<Finding> {
    let (capacity, available) = for_guests(facts)?;
    let fixed: Vec<&GuestFacts> = facts.guests.iter().filter(|guest| gives_nothing(facts, guest)).collect();
    let held = Bytes::sum(fixed.iter().map(|guest| guest.full));
    if held <= available || reserve(facts).is_some() {
        return None;
    }
    let fact = match fixed.len() {
        1 => format!("1 guest that memtide can take nothing from was promised {held} of {capacity}"),
        guests => format!(
            "{guests} guests that memtide can take nothing from were promised {held} together, of {capacity}"
        ),
    };
    Some(
        Finding::of_host("promises.held", Severity::Problem, fact)
            .costs("no commitment can be kept: if this memory is used, the host swaps or its OOM killer takes a guest")
            .fix("one of", ["apply the fix listed for each of these guests", "start fewer or smaller guests"]),
    )
}

/// The guests were promised more than the capacity, and nobody moves memory.
pub(super) fn more_than_there_is(facts: &Facts) -> Option<Finding> {
    let (capacity, available) = for_guests(facts)?;
    let promised = facts.promised();
    if promised <= available || held_for_good(facts).is_some() || reserve(facts).is_some() {
        return None;
    }
    let over = promised.saturating_sub(available);
    let guests = match facts.guests.len() + facts.instances.len() {
        1 => format!("the guest was promised {promised}, {over} more than the {available} that it"),
        _ => format!(
            "the guests were promised {promised} together, {over} more than the {available} that they"
        ),
    };
    let fact = format!("{guests} may have of {capacity}");
    if facts.is_managed() {
        return None;
    }
    let finding = Finding::of_host("promises.unmanaged", Severity::Warning, fact)
        .costs("nobody moves memory between guests: if all promised memory is used, the host swaps or its OOM killer takes a guest")
        .fix("a shell", [facts.as_root("run --manage")]);
    let mut sizes = deflate_themselves(facts);
    sizes.truncate(at_once(facts));
    let kept = Bytes::sum(sizes.iter().map(|size| (*size).min(within(facts))));
    if facts.config.commitment == Commitment::Elastic || kept.is_zero() {
        return Some(finding);
    }
    let number = sizes.len();
    let cost = format!(
        "{}. A strict commitment keeps room for {number} of them to deflate their own balloons: up to {kept} that other guests cannot use",
        finding.cost
    );
    Some(Finding { cost, ..finding })
}

/// More guests may deflate their own balloons than a strict commitment keeps room for.
pub(super) fn self_deflations(facts: &Facts) -> Option<Finding> {
    let (guests, at_once) = (deflate_themselves(facts).len(), at_once(facts));
    let promises = facts.is_managed() && facts.config.commitment == Commitment::Strict;
    if !promises || guests <= at_once || !is_overcommitted(facts) {
        return None;
    }
    let fact = format!("{guests} guests may deflate their own balloons, and `self_deflations` is {at_once}");
    let finding = Finding::of_host("promises.self-deflations", Severity::Hint, fact).costs(
        "a strict commitment holds if no more than that many do so at a time. If more do, the host can run short until memtide \
         has taken the memory back",
    );
    let path = facts.configuration.path.display().to_string();
    Some(finding.fix(
        path,
        [format!("self_deflations = {guests}   # keeps room for all of them; other guests cannot use it")],
    ))
}

/// The guests that a strict commitment keeps room for when they deflate their own balloons at the same time.
fn at_once(facts: &Facts) -> usize {
    usize::try_from(facts.config.self_deflations).unwrap_or(usize::MAX)
}

/// The most of each self-deflation that counts, before any was seen.
fn within(facts: &Facts) -> Bytes {
    facts.config.self_deflation_within.most(Bytes::ZERO)
}

/// The sizes of the guests that may deflate their own balloons, the largest first.
fn deflate_themselves(facts: &Facts) -> Vec<Bytes> {
    let may = |guest: &&GuestFacts| guest.told.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom);
    let mut sizes: Vec<Bytes> = facts.guests.iter().filter(may).map(|guest| guest.full).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// libvirt is in the way to its guests.
pub(super) fn libvirt(facts: &Facts) -> Option<Finding> {
    let guests: Vec<&GuestFacts> = facts.guests.iter().filter(|guest| guest.is_beyond_libvirt()).collect();
    let first = guests.first()?;
    let whose = match guests.as_slice() {
        [guest] => format!("the guest {}", guest.name),
        all => format!("{} guests", all.len()),
    };
    let only_reads = first.told.fence == Some(Fence::Owned(Owner::LibvirtLetsRead));
    let is_denied = only_reads || first.told.balloon.why_not() == Some(&Absence::Forbidden);
    let fact = match (is_denied, only_reads) {
        (_, true) => format!("libvirt gives memtide only read access to {whose}"),
        (true, _) => format!("libvirt's daemon denies memtide access to {whose}"),
        _ => format!("memtide finds no libvirt daemon that answers for {whose}"),
    };
    let cost = match guests.len() {
        1 => ONLY_COUNTED,
        _ => "memtide can only count them, at their worst case",
    };
    let finding = Finding::of_host("libvirt.out-of-reach", Severity::Warning, fact).costs(cost);
    Some(match is_denied {
        true => finding.fix(
            "a shell: run memtide as root, or as a member of libvirt's group",
            [facts.as_root("run --manage")],
        ),
        false => finding.fix(
            format!("{}, with the socket of that daemon", facts.configuration.path.display()),
            ["[[libvirt]]".to_owned(), "socket = \"/PATH/libvirt-sock\"".to_owned()],
        ),
    })
}

/// The guest claims more memory than counts.
pub(super) fn claimed(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let (fact, cost) = unproved(facts, guest.claims?, guest.full);
    Some(of_guest(guest, "guest.claims", Severity::Warning, fact).costs(cost))
}

/// What is said of a guest that claims more memory than counts.
pub(super) fn unproved(facts: &Facts, claims: Bytes, counted: Bytes) -> (String, String) {
    let total = facts.host.memory.value().map_or(Bytes::MAX, |memory| memory.total);
    if claims > largest_guest(total) {
        (
            format!("it claims {claims}, more than this machine has"),
            format!("it counts at {counted}, which it uses; memtide only observes it"),
        )
    } else {
        (
            format!(
                "it claims {claims}, but its process has mapped only {counted}, and no monitor has told its size"
            ),
            format!(
                "it counts at {counted} until its VMM tells its size or maps more; memtide only observes it until then"
            ),
        )
    }
}

/// TCG's code buffer has no limit of its own.
pub(super) fn code_buffer(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let process = &guest.process;
    if process.accel != Accel::Tcg || process.tb_size.is_some() {
        return None;
    }
    let fact = "it runs under software emulation, without a limit for translated code";
    let finding = of_guest(guest, "tcg.code-buffer", Severity::Hint, fact)
        .costs("QEMU can cost up to 1 GiB beyond the guest's memory, and a strict commitment counts this");
    Some(finding.with(advice::fix(guest, Change::TranslationLimit)))
}
