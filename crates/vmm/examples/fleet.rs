//! Prints the fleet's view of this host, once a second.
//!
//! usage: `fleet SECONDS [NAME=QMP_SOCKET]... [poll] [refresh] [target=NAME:MIB]...`
//!
//! Only reads, unless one of these is given: `poll` (switches on polling of the statistics), `refresh` (gets statistics out of
//! turn), or a target.

use std::time::{Duration, Instant};

use memtide_model::{Bytes, Request, Span};
use memtide_vmm::qemu::{ConfiguredGuest, Qemu};
use memtide_vmm::{Admitted, Fleet, Wish};

const DEADLINE: Duration = Duration::from_millis(800);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds: u64 = args.first().and_then(|text| text.parse().ok()).unwrap_or(10);
    let is_given = |word: &str| args.iter().any(|arg| arg == word);
    let configured = args.iter().filter_map(|arg| arg.split_once('=')).filter(|(name, _)| *name != "target");
    let configured = configured.map(|(name, qmp)| ConfiguredGuest { name: name.to_owned(), qmp: qmp.into() });
    let qemu = Qemu::new("/proc".as_ref(), configured);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let begun = Instant::now();
    let (wake, woken) = std::sync::mpsc::channel();
    let mut fleet = Fleet::start(handle, vec![Box::new(qemu)], Admitted::named(&["*"]), move |reason| {
        println!("{:7.3} woken: {reason:?}", begun.elapsed().as_secs_f64());
        let _ = wake.send(());
    });

    let mut acted = false;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let asked = Instant::now();
        let seen =
            fleet.observe(DEADLINE, |_| Some(Wish { refresh_stats: is_given("refresh"), ..Wish::default() }));
        println!("{:7.3} asked for {:?}", begun.elapsed().as_secs_f64(), asked.elapsed());
        for guest in &seen {
            let told = &guest.told;
            println!("  {:?}", guest.found);
            println!(
                "    full {} reset {} fence {:?} polling {:?}\n    {:?}\n    {:?}\n    {:?}",
                told.full, told.reset, told.fence, told.polling, told.balloon, told.hotplug, told.stats
            );
            if acted {
                continue;
            }
            if is_given("poll") {
                println!(
                    "    poll: {:?}",
                    fleet.request(&guest.found.id, Request::PollStats(Span::from_secs(1)), DEADLINE)
                );
            }
            let targets = args.iter().filter_map(|arg| arg.strip_prefix("target=")?.split_once(':'));
            for (_, mib) in targets.filter(|(name, _)| *name == guest.found.id.name()) {
                let target = Bytes::from_mib(mib.parse().unwrap_or(0));
                println!(
                    "    target {target}: {:?}",
                    fleet.request(&guest.found.id, Request::SetTarget(target), DEADLINE)
                );
            }
        }
        acted = true;
        // A wake ends the wait early. The next look is one second away.
        let _ = woken.recv_timeout(Duration::from_secs(1));
    }
    for warning in fleet.warnings() {
        println!("{warning}");
    }
}
