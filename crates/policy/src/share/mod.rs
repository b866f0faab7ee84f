//! What each guest should have of the memory. This is the place for a policy of one's own: beliefs in, a fair share for each guest out.
//!
//! A tmpfs or a NUMA node that has less left than the host is a host of its own for its guests ([`tmpfs`]).

pub mod entitlement;
pub mod purse;
pub mod tiers;
pub mod tmpfs;

use memtide_model::Config;

use crate::belief::Beliefs;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use tmpfs::Bound;

/// A way to divide the memory.
///
/// **Rule.** It depends on its arguments alone. It may give a guest anything from its reservation to its limit, in whole steps of its backend: any
/// excess is not granted, because [`crate::check()`] refuses what breaks a promise.
pub trait Sharing {
    /// Notes the fair share of each guest ([`Guest::entitlement`]).
    fn entitle(&self, config: &Config, scene: &Scene, guests: &mut [Guest<'_>]);
}

/// memtide's own: one water-fill over the tiers of all needs ([`entitlement`]).
#[derive(Clone, Copy, Debug)]
pub struct WaterFill;

impl Sharing for WaterFill {
    fn entitle(&self, config: &Config, scene: &Scene, guests: &mut [Guest<'_>]) {
        entitlement::entitle(config, scene, guests);
    }
}

/// Divides the host's memory, and that of each tmpfs that binds its guests, and counts what the guests lack of it.
#[must_use]
pub fn shares(sharing: &dyn Sharing, beliefs: &mut Beliefs<'_>) -> Vec<Bound> {
    let mut bound = tmpfs::bound(beliefs);
    let Beliefs { config, guests, scene, .. } = beliefs;
    sharing.entitle(config, scene, guests);
    for tmpfs in &mut bound {
        tmpfs.entitle(sharing, config, guests);
    }
    scene.count(guests);
    bound
}
