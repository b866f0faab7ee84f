//! Guests that end while the operator holds them, and start again.

use memtide_engine::Engine;
use memtide_model::{GuestId, Hold, Keeps, Order, Ordered, Span};

use crate::toy::{Toy, halves, id, manage};

/// The same guest after another start.
fn restarted(name: &str) -> GuestId {
    GuestId::new(name, 7_000, "boot")
}

#[test]
fn a_hold_survives_the_restart_of_its_guest_unless_it_is_over() {
    let minutes = |minutes: u64| Span::from_secs(60 * minutes);
    // How long the guest is held, and how long it is gone.
    for (held_for, gone_for, is_held) in [
        (None, minutes(5), true),
        (Some(minutes(30)), minutes(5), true),
        (Some(minutes(3)), minutes(5), false),
        (None, minutes(11), false),
    ] {
        let toy = Toy::with(&["a", "b"]);
        let now = toy.now;
        let mut engine = Engine::new(toy, manage()).with_policy(halves());
        let hold = Hold { keeps: Keeps::Size, until: held_for.map(|span| now.after(span)) };
        engine.world_mut().orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
        engine.tick();
        let guest = engine.world_mut().guests.remove(&id("a")).unwrap();
        for (seconds, starts) in [(1, false), (gone_for.as_millis() / 1000 - 1, true)] {
            let world = engine.world_mut();
            world.now = world.now.after(Span::from_secs(seconds));
            if starts {
                world.guests.insert(restarted("a"), guest.clone());
            }
            engine.tick();
        }
        let state = engine.state().guests.get(&restarted("a")).and_then(|guest| guest.hold);
        assert_eq!(state, is_held.then_some(hold), "{held_for:?}, gone for {gone_for}");
        assert!(engine.state().guests[&id("b")].hold.is_none());
    }
}

#[test]
fn what_the_operator_says_after_a_restart_is_newer() {
    let mut engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(halves());
    let hold = Hold { keeps: Keeps::Size, until: None };
    engine.world_mut().orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
    engine.tick();
    let guest = engine.world_mut().guests.remove(&id("a")).unwrap();
    engine.world_mut().guests.insert(restarted("a"), guest);
    engine.world_mut().orders.push(Order { guest: restarted("a"), ordered: Ordered::Manage });
    engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
    engine.tick();
    assert_eq!(engine.state().guests[&restarted("a")].hold, None);
}
