//! A week of decisions about guests that start, are held, fail and end: nothing of them is left behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engine/toy.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod toy;

use std::fs;

use memtide_engine::Engine;
use memtide_model::{Bytes, Fence, GuestId, Hold, Keeps, Order, Ordered, Span};

use toy::{Toy, id, manage};

/// The time between two decisions.
const TICK: Span = Span::from_secs(5);
/// Decisions in a day.
const DAY: u64 = 24 * 3600 / 5;
/// Each second decision, a guest starts; it ends after this many more.
const LIVES: u64 = 20;

/// The resident memory of this process.
fn resident() -> Bytes {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    Bytes::new(pages * rustix::param::page_size() as u64)
}

#[test]
fn after_a_week_no_more_is_known_than_after_a_day() {
    let guest = Toy::with(&["a"]).guests.remove(&id("a")).unwrap();
    let mut engine = Engine::new(Toy::with(&["web", "db"]), manage());
    let short_lived = |number: u64| GuestId::new(&format!("job-{number}"), number, "boot");
    let mut sizes = Vec::new();
    for tick in 0..7 * DAY {
        let world = engine.world_mut();
        world.now = world.now.after(TICK);
        world.asked.clear();
        world.observed.clear();
        if tick % 2 == 0 {
            let mut guest = guest.clone();
            guest.refuses = tick % 10 == 0;
            guest.fence = (tick % 14 == 0).then_some(Fence::Paused);
            world.guests.insert(short_lived(tick), guest);
        }
        if let Some(ends) = tick.checked_sub(LIVES) {
            world.guests.remove(&short_lived(ends));
        }
        if tick % 6 == 0 {
            let until = (tick % 12 == 0).then(|| world.now.after(Span::from_secs(3600)));
            let hold = Hold { keeps: Keeps::Size, until };
            world.orders.push(Order { guest: short_lived(tick), ordered: Ordered::Leave(hold) });
        }
        engine.tick();
        if tick % DAY == DAY - 1 {
            let state = serde_json::to_vec(engine.state()).unwrap().len();
            sizes.push((state, resident()));
        }
    }
    let ((state, memory), (last_state, last_memory)) = (sizes[0], sizes[6]);
    assert!(last_state <= state + state / 10, "bytes of the state each day: {sizes:?}");
    assert!(last_memory <= memory.saturating_add(Bytes::from_mib(4)), "memory each day: {sizes:?}");
}
