//! The operator's orders: given to the next decision, and answered once it has heard them.

use std::time::Duration;

use memtide_api::history::Tried;
use memtide_api::view::{
    CgroupReclaimAnswer, CgroupReclaimRequest, GuestStatus, HoldAnswer, HoldRequest, Status, Wanted,
    is_called,
};
use memtide_engine::host_clock;
use memtide_model::{Bytes, GuestId, Hold, Keeps, Moment, Order, Ordered, Reason};
use tracing::info;

use crate::orders::{Heard, TooMany};
use crate::sources::Sources;

/// The longest time that the answer to an order waits for the decision that hears the order.
const DECIDES_WITHIN: Duration = Duration::from_secs(3);

/// Why an order is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No guest has this name.
    NoSuchGuest,
    /// Too many orders wait for a decision, or too many guests are being reclaimed.
    TooMany,
    /// It is not possible now, for this reason.
    NotNow(String),
}

impl From<TooMany> for Refusal {
    fn from(_: TooMany) -> Self {
        Self::TooMany
    }
}

/// Leaves guests alone, or manages them again, as a `user` ordered.
pub(crate) async fn hold(sources: &Sources, user: u32, request: &HoldRequest) -> Result<HoldAnswer, Refusal> {
    let turn = sources.orders.turn(user).await;
    let status = sources.status();
    let wanted = |name: &str| request.guest.as_ref().is_none_or(|guest| is_called(name, guest));
    let about: Vec<_> = status.guests.iter().filter(|guest| wanted(&guest.name)).collect();
    if about.is_empty() && request.guest.is_some() {
        return Err(Refusal::NoSuchGuest);
    }
    let now = host_clock();
    let until = request.for_span.map(|span| now.after(span));
    let ordered = match request.hold {
        Wanted::Hold => Ordered::Leave(Hold { keeps: Keeps::Size, until }),
        Wanted::Release => Ordered::Leave(Hold { keeps: Keeps::Limit, until }),
        Wanted::Resume => Ordered::Manage,
    };
    let orders = about.iter().map(|guest| Order { guest: guest.report.id.clone(), ordered }).collect();
    let heard = sources.orders.give(orders).ok_or(Refusal::TooMany)?;
    drop(turn);
    info!("the operator's order: {}", in_words(request, &about));
    let decided = decided(sources, heard).await.is_some();
    let Status { mode, warnings, counters, unwritten, mut guests, .. } = sources.status();
    guests.retain(|guest| wanted(&guest.name));
    // The decision that heard the order has waited for the journal: what is not told to wait is written.
    let written =
        unwritten.is_none() && counters.ticks_not_journalled == status.counters.ticks_not_journalled;
    Ok(HoldAnswer { mode, decided, written, warnings, guests })
}

/// The order as typed, for the log.
fn in_words(request: &HoldRequest, about: &[&GuestStatus]) -> String {
    let whom = match about {
        [guest] => guest.name.clone(),
        all => format!("all {} guests", all.len()),
    };
    let time = request.for_span.map_or(String::new(), |span| format!(" for {span}"));
    format!("{} {whom}{time}", request.hold)
}

/// Reclaims memory from a guest's cgroup, as a `user` ordered.
pub(crate) async fn reclaim_from_cgroup(
    sources: &Sources,
    user: u32,
    request: &CgroupReclaimRequest,
) -> Result<CgroupReclaimAnswer, Refusal> {
    let status = sources.status();
    let guest = status.guests.iter().find(|guest| is_called(&guest.name, &request.guest));
    let id = guest.ok_or(Refusal::NoSuchGuest)?.report.id.clone();
    let tried = take(sources, user, (&id, &request.guest), (Means::Cgroup, request.bytes)).await?;
    let Status { mode, guests, .. } = sources.status();
    let guest = guests.into_iter().find(|guest| guest.report.id == id).ok_or(Refusal::NoSuchGuest)?;
    Ok(CgroupReclaimAnswer { mode, tried, guest })
}

/// What takes memory from a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Means {
    /// The guest's cgroup on the host: the kernel reclaims at once.
    Cgroup,
    /// The guest's page cache: its agent drops cold pages, and free page reporting returns them within seconds.
    Agent,
    /// The guest's free memory: its balloon takes it, also small pieces, which free page reporting does not return.
    Balloon,
}

/// A `user` orders that memory is taken from a guest. Returns what became of the order; `None` if no decision has heard it yet, or if memtide must
/// leave the guest alone.
pub(crate) async fn take(
    sources: &Sources,
    user: u32,
    (id, name): (&GuestId, &str),
    (means, bytes): (Means, Bytes),
) -> Result<Option<Tried>, Refusal> {
    // What is asked for begins like this: it may be less than was ordered.
    let (ordered, asked, whence) = match means {
        Means::Cgroup => (Ordered::Reclaim(bytes), "reclaim ", "from its cgroup"),
        Means::Agent => (Ordered::Trim(bytes), "trim ", "by its agent"),
        Means::Balloon => (Ordered::Fetch(bytes), "target ", "by its balloon"),
    };
    let turn = sources.orders.turn(user).await;
    let heard = sources.orders.give(vec![Order { guest: id.clone(), ordered }]).ok_or(Refusal::TooMany)?;
    drop(turn);
    info!("the operator's order: reclaim {bytes} ({name}, {whence})");
    let decided = decided(sources, heard).await;
    let why = Reason::Ordered.to_string();
    let is_it =
        |tried: &Tried| Some(tried.at) == decided && tried.change.starts_with(asked) && tried.reason == why;
    Ok(sources.history.of(id).into_iter().rev().find(is_it))
}

/// Waits for the decision that heard an order, until its actions are done. Returns the moment of its snapshot; `None` if it does not come
/// within [`DECIDES_WITHIN`].
async fn decided(sources: &Sources, heard: Heard) -> Option<Moment> {
    let mut ticks = sources.events.subscribe();
    let by = tokio::time::Instant::now() + DECIDES_WITHIN;
    let at = tokio::time::timeout_at(by, heard).await.ok()?.ok()?;
    loop {
        let latest = sources.board.latest();
        if latest.last.as_ref().is_some_and(|last| last.seen.taken_at >= at) {
            return Some(at);
        }
        tokio::time::timeout_at(by, ticks.recv()).await.ok()?.ok();
    }
}
