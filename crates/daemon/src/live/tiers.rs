//! Guests' tiers: made by the helper, attached by the guests' VMMs, read from the kernel.
//!
//! The kernel counts what a tier takes, and the notes say whose it is ([`zram`]), so a daemon that starts anew, or only observes, knows the tiers of
//! its guests. A device that no process has open is removed: after a guest has ended, after a tier was let go, and every [`SWEEPS_EVERY`].

use std::collections::BTreeMap;
use std::time::Duration;

use memtide_host::zram::{self, NotedTier, TierReader};
use memtide_host::{Root, Scratch};
use memtide_model::{Absence, Cost, GuestId, Moment, Reading, Request, Span, Tier, TierOrder};
use memtide_vmm::{Fleet, TierDevice};
use tracing::warn;

use crate::helpers::tier::TierMaker;

/// How often the notes are read, unless this daemon has just made a device.
const LOOKS_EVERY: Span = Span::from_secs(10);
/// How often unused devices are removed, at least.
const SWEEPS_EVERY: Span = Span::from_secs(60);

/// The tiers of all guests.
#[derive(Debug)]
pub(super) struct Tiers {
    root: Root,
    maker: TierMaker,
    /// The devices by the guest's process and its start.
    known: BTreeMap<(u32, u64), (NotedTier, TierReader)>,
    looked_at: Option<Moment>,
    swept_at: Moment,
    scratch: Scratch,
}

impl Tiers {
    pub(super) fn new(root: &Root, maker: TierMaker) -> Self {
        let known = BTreeMap::new();
        Self {
            root: root.clone(),
            maker,
            known,
            looked_at: None,
            swept_at: Moment::default(),
            scratch: Scratch::default(),
        }
    }

    /// Whether memtide can make tiers.
    pub(super) const fn works(&self) -> bool {
        self.maker.works()
    }

    /// Looks which devices there are, and removes unused ones; `has_ended`: a guest has ended since the last look.
    pub(super) fn look(&mut self, has_ended: bool, now: Moment) {
        let is_due = self.looked_at.is_none_or(|at| now.since(at) >= LOOKS_EVERY);
        if !is_due && !has_ended {
            return;
        }
        self.looked_at = Some(now);
        let noted = zram::noted(&self.root);
        let sweeps = has_ended || now.since(self.swept_at) >= SWEEPS_EVERY;
        if sweeps && self.works() && !noted.is_empty() {
            self.sweep(now);
        }
        self.known.retain(|_, (known, _)| noted.contains(known));
        for noted in noted {
            let key = (noted.pid, noted.start);
            if !self.known.contains_key(&key)
                && let Ok(reader) = TierReader::open(&self.root, noted.device)
            {
                self.known.insert(key, (noted, reader));
            }
        }
    }

    fn sweep(&mut self, now: Moment) {
        self.swept_at = now;
        if let Err(why) = self.maker.sweep() {
            warn!("unused tiers are not removed: {why}");
        }
    }

    /// Adds the tier of a guest's process to its cost.
    pub(super) fn count(&mut self, pid: u32, start: u64, cost: &mut Cost) {
        let Some((_, reader)) = self.known.get(&(pid, start)) else { return };
        let read = reader.read(&mut self.scratch);
        if let Ok(Tier { held, limit, .. }) = read {
            let footprint = std::mem::replace(&mut cost.footprint, Reading::unsupported());
            cost.footprint = footprint.map(|bytes| bytes.saturating_add(held));
            cost.overhead = cost.overhead.saturating_add(held);
            cost.overhead_bound = cost.overhead_bound.saturating_add(limit.max(held));
        }
        cost.tier = match read {
            Ok(tier) => Reading::now(tier),
            Err(error) => Reading::absent(error.absence()),
        };
    }

    /// Carries an order out.
    ///
    /// # Errors
    /// If the helper, the guest's VMM or the kernel refuses. No device is left of a tier that was not attached.
    pub(super) fn request(
        &mut self,
        fleet: &Fleet,
        guest: &GuestId,
        order: TierOrder,
        within: Duration,
        now: Moment,
    ) -> Result<(), Absence> {
        let pid = fleet.seen(guest).ok_or(Absence::Gone)?.found.process.pid;
        match order {
            TierOrder::Attach(size) => {
                self.looked_at = None;
                let (device, file) = self.maker.make(pid, guest.start(), size)?;
                let tier = TierDevice { file, path: zram::device_path(device) };
                let attached = fleet.attach(guest, tier, within);
                if attached.is_err() {
                    // Once the VMM has closed it, too.
                    self.sweep(now);
                }
                attached
            }
            TierOrder::Detach => {
                let detached = fleet.request(guest, Request::Tier(order), within);
                self.looked_at = None;
                self.sweep(now);
                detached
            }
        }
    }
}
