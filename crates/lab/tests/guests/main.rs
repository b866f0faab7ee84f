//! Tests with real guests, and their common parts.
//!
//! ```text
//! cargo test -p memtide-lab --test guests               # minutes; the first time may install packages
//! cargo test -p memtide-lab --test guests operator      # the tests of one module
//! cargo test -p memtide-lab --test guests -- --ignored  # the long tests: make test-long
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod density;
mod ends;
mod kills;
mod ksm;
mod lab;
mod libvirt;
mod memtide;
mod no_harm;
mod old_and_new;
mod operator;
mod policies;
mod sweep;
mod tier;
mod torn;
mod uml;
mod untouched;

use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use memtide_host::Root;
use memtide_host::zram;
use memtide_lab::error::LabError;
use memtide_lab::guest::image;
use memtide_lab::guest::probe;
use memtide_lab::guest::{self, Guest, GuestBuilder};
use memtide_lab::machine::lab::{Lab, Run};
use memtide_lab::machine::packages;
use memtide_lab::machine::process;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_model::Bytes;
use memtide_testing::skip;

/// The longest time for a job, a balloon or a decision. It is generous, since the machine may be busy.
pub const JOB: Duration = Duration::from_secs(90);

/// A test and its name.
type Test = (&'static str, fn());

macro_rules! tests {
    ($($test:path),* $(,)?) => { [$((stringify!($test), $test as fn())),*] };
}

/// Tests that set something of the whole machine: each has the machine to itself.
const ALONE: [Test; 3] = tests![
    ksm::a_guest_shares_if_its_class_does,
    ksm::a_burst_merges_what_is_equal_and_a_kill_leaves_nothing_behind,
    untouched::nor_are_they_while_ksm_merges,
];

/// Tests that take minutes each (one an hour), and show with real guests the effects that scenarios show in seconds. Each has the machine
/// to itself, and runs only on request.
const LONG: [Test; 16] = tests![
    tier::a_swap_in_takes_at_most_twice_as_long_as_a_read,
    tier::an_hour_of_swapping_loses_no_byte,
    ends::fifty_ends_are_no_emergency,
    ksm::ten_kills_in_the_middle_of_bursts_leave_nothing_behind,
    no_harm::a_cache_in_use_is_left_to_its_guest,
    no_harm::a_smaller_cache_in_use_is_left_to_its_guest,
    no_harm::a_cache_in_use_is_left_to_a_guest_of_linux_6_1,
    operator::who_runs_dry_gets_what_somebody_else_gave_to_another_guest,
    agent::the_agent_says_what_linux_5_10_cannot_do,
    agent::a_hostile_agent_gains_its_share_at_most,
    uml::memory_moves_between_instances_of_linux_6_12,
    policies::an_instance_is_squeezed_until_it_squeals,
    policies::instances_are_squeezed_by_the_clock,
    policies::an_idle_instance_gives_when_memory_is_short,
    policies::an_instance_gets_what_it_lacks_when_memory_is_ample,
    policies::an_expensive_instance_gets_more_than_a_cheap_one,
];

/// Tests that wait most of the time, the longest first: they start in this order.
const OTHERS: [Test; 38] = tests![
    density::more_guests_get_through_with_memtide,
    operator::an_operator_is_obeyed,
    operator::balloons_that_somebody_else_moved_are_left_alone,
    kills::fifty_kills_hurt_nobody,
    old_and_new::an_old_guest_beside_a_new_one,
    old_and_new::an_old_qemu_beside_an_old_kernel,
    libvirt::a_guest_of_libvirt_is_managed_like_any_other,
    libvirt::a_frozen_qemu_holds_up_nobody_else,
    libvirt::a_guest_swaps_to_a_tier_that_libvirt_attached,
    libvirt::a_guest_that_was_saved_and_restored_is_managed_again,
    memtide::a_stall_is_answered_from_free_memory,
    memtide::a_stall_is_answered_from_a_donor,
    untouched::a_template_and_a_shared_image_are_never_changed,
    memtide::a_guest_that_lies_gains_only_its_share,
    memtide::a_reset_hurts_nobody,
    memtide::a_self_deflation_hurts_nobody,
    agent::the_agent_trims_cold_cache_and_hurts_nothing,
    agent::the_agent_does_the_same_on_linux_6_1,
    agent::freed_memory_in_small_pieces_returns,
    agent::memtide_asks_the_agent_before_it_takes,
    tier::cold_memory_goes_to_a_tier_and_every_byte_comes_back,
    tier::a_full_tier_that_does_not_compress_hurts_nobody_and_is_let_go,
    tier::a_device_that_is_taken_away_leaves_nothing_and_is_replaced,
    tier::a_guest_without_a_port_gets_no_tier_and_no_device_stays,
    torn::memtide_gives_the_host_its_torn_huge_pages,
    uml::memory_moves_between_uml_instances,
    uml::an_instance_and_a_qemu_guest_share_a_host,
    uml::an_instances_agent_tells_what_its_kernel_cannot_do,
    uml::an_instance_killed_in_the_middle_of_a_request_hurts_nobody,
    uml::an_instance_that_reboots_stops_or_halts_is_noticed,
    uml::instances_fit_into_a_small_tmpfs,
    sweep::a_guest_swaps_to_compressed_memory_and_gets_every_byte_back,
    lab::a_guest_comes_back_after_a_reset,
    lab::freed_pages_come_back_and_the_balloon_moves,
    lab::a_guest_does_what_it_is_told,
    memtide::observing_changes_nothing,
    lab::a_small_host_kills_who_exceeds_it,
    lab::a_guests_own_oom_killer_is_survived,
];

fn main() -> ExitCode {
    let run = |trials: Vec<Trial>, at_a_time| {
        let arguments = Arguments { test_threads: Some(at_a_time), ..Arguments::from_args() };
        libtest_mimic::run(&arguments, trials)
    };
    let long = LONG.iter().map(|test| trial(test).with_ignored_flag(true));
    let alone = run(ALONE.iter().map(trial).chain(long).collect(), 1);
    let others = run(OTHERS.iter().map(trial).collect(), 2);
    // Guests that outlived their daemon left their tiers.
    let _ = zram::sweep(&Root::system());
    if alone.has_failed() { alone.exit_code() } else { others.exit_code() }
}

fn trial(&(name, test): &Test) -> Trial {
    memtide_testing::trial(name, move || {
        // All others run memtide, whose budget counts what guests cost.
        if let Some(why) = memtide_testing::cannot_trace().filter(|_| !name.starts_with("lab::")) {
            skip(why);
        }
        test();
    })
}

/// This many MiB.
pub const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// The guests' requirements, prepared once, by the first test that needs them.
static LAB: LazyLock<Result<Lab, String>> = LazyLock::new(|| match probe::prepare(&say) {
    // Apt can install a missing part, so its absence is a failure.
    Err(LabError::Missing(why)) if process::find("apt-get").is_none() => Err(why),
    prepared => Ok(prepared.unwrap()),
});

/// Tells the person who runs the tests about steps that take time or change the machine.
pub fn say(text: &str) {
    eprintln!("{text}");
}

/// The lab. The first time may install packages. Skips the test if this machine cannot have one.
pub fn the_lab() -> &'static Lab {
    LAB.as_ref().unwrap_or_else(|why| skip(why))
}

/// How much larger a program for guests may be, as a file and in memory, if it is linked statically against glibc instead of musl.
pub fn more_with_glibc(program: &Path) -> Bytes {
    if program.iter().any(|part| part == image::MUSL) { Bytes::ZERO } else { mib(1) }
}

/// A small host.
pub fn small_host(name: &str, capacity: Bytes) -> SmallHost {
    or_skip(SmallHost::create(name, capacity, Bytes::ZERO))
}

/// The value. Skips the test if this machine cannot have a small host.
pub fn or_skip<T>(of_small_host: Result<T, LabError>) -> T {
    match of_small_host {
        Err(error @ LabError::NoSmallHost(_)) => skip(&error.to_string()),
        other => other.unwrap(),
    }
}

/// Skips a test that needs packages of Debian 12 if this is another system.
pub fn needs_debian_12(why: &str) {
    if !packages::is_debian_12() {
        skip(why);
    }
}

/// Skips a test that needs zram devices on the host.
pub fn needs_zram() {
    if let Err(error) = zram::can_make(&Root::system()) {
        skip(&error.to_string());
    }
}

/// A run of this name in the lab.
pub fn prepare(name: &str) -> Run {
    Run::create(the_lab(), name).unwrap()
}

/// A guest that reports free pages, like all guests that memtide manages here.
pub fn reporting(name: &str, memory: Bytes, deflate_on_oom: bool) -> GuestBuilder {
    Guest::builder(name).memory(memory).deflate_on_oom(deflate_on_oom).free_page_reporting(true)
}

/// Guests that are up. They are started at the same time.
pub fn start(run: &Run, builders: impl IntoIterator<Item = GuestBuilder>) -> Vec<Guest> {
    guest::start_all(builders, run, None).unwrap()
}

/// The same, in a small host.
pub fn start_in(run: &Run, host: &SmallHost, builders: impl IntoIterator<Item = GuestBuilder>) -> Vec<Guest> {
    guest::start_all(builders, run, Some(host)).unwrap()
}

/// Checks for damage that no neighbour and no manager may cause: the guest's end, kills in it, lost loads.
pub fn unhurt(guest: &Guest) {
    assert!(guest.alive(), "{} is gone", guest.name());
    assert_eq!(guest.meminfo().unwrap().oom_kills(), 0, "{}", guest.name());
    assert_eq!(guest.lost(), Vec::<String>::new(), "{}", guest.name());
}

/// Waits until what `memtide explain` says of the guest `is_so`.
pub fn until_explained(
    daemon: &Daemon,
    name: &str,
    what: &str,
    within: Duration,
    is_so: impl Fn(&str) -> bool,
) {
    let mut explained = String::new();
    let found = until(what, within, || {
        explained = daemon.command(&["explain", name])?;
        Ok(is_so(&explained).then_some(()))
    });
    assert!(found.is_ok(), "{what}: {explained}");
}

/// Waits until memtide has made the guest smaller than `most`.
pub fn until_smaller(daemon: &Daemon, name: &str, most: Bytes, within: Duration) {
    let smaller = daemon
        .until("a smaller guest", within, name, |detail| (detail.status.report.actual <= most).then_some(()));
    assert!(smaller.is_ok(), "{:#?}", daemon.guest(name).unwrap().status);
}
