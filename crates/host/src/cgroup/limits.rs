//! Limits of cgroups that the guests in them can run into.
//!
//! **Problem.** The limit of a cgroup often equals the memory of the guest in it. The guest's VMM needs memory besides, so the kernel kills
//! it at the limit, even if the host has free memory. A limit binds all cgroups below it, so it can be far above the guest.
//!
//! **Rule.** Each guest *needs* its full size and the bound of its VMM's own memory. A limit is *too low* if the guests in its cgroup and
//! below together need more. Only a limit that is the nearest such limit for one of its guests is told: it must be raised first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use memtide_model::{Bytes, Limit};

use super::{Cgroup, CgroupVersion};
use crate::HostError;

/// A cgroup with a limit of its own, and the guests in it and below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Its directory.
    pub dir: PathBuf,
    /// Its hierarchy.
    pub version: CgroupVersion,
    /// The limit.
    pub limit: Bytes,
    /// The guests, by index, in ascending order.
    pub guests: Vec<usize>,
}

impl Cgroup {
    /// The limits of this cgroup and of those above it, the nearest first. Levels beyond the nearest 64 are not read.
    ///
    /// # Errors
    /// If a limit cannot be read.
    pub fn limits(&self) -> Result<Vec<(Self, Bytes)>, HostError> {
        let mut limits = Vec::new();
        for level in self.nearest() {
            if let Limit::At(limit) = level.own_limit()? {
                limits.push((level, limit));
            }
        }
        Ok(limits)
    }
}

impl Limited {
    /// The cgroups with a limit, in the order of their paths, from the limits of each guest.
    #[must_use]
    pub fn gather<'a>(guests: impl IntoIterator<Item = &'a [(Cgroup, Bytes)]>) -> Vec<Self> {
        let mut all: BTreeMap<PathBuf, Self> = BTreeMap::new();
        for (index, limits) in guests.into_iter().enumerate() {
            for (cgroup, limit) in limits {
                let entry = all.entry(cgroup.dir.clone()).or_insert_with(|| Self {
                    dir: cgroup.dir.clone(),
                    version: cgroup.version,
                    limit: *limit,
                    guests: Vec::new(),
                });
                // It may have been changed between two readings.
                entry.limit = entry.limit.min(*limit);
                entry.guests.push(index);
            }
        }
        all.into_values().collect()
    }

    /// The cgroups of `all` whose limit is too low for what each of their guests `needs`, with the sum that their guests need.
    pub fn too_low<'a>(
        all: impl IntoIterator<Item = &'a Self>,
        needs: impl Fn(usize) -> Bytes,
    ) -> Vec<(&'a Self, Bytes)> {
        let needed = |limited: &Self| Bytes::sum(limited.guests.iter().map(|guest| needs(*guest)));
        let low = all.into_iter().map(|limited| (limited, needed(limited)));
        let mut low: Vec<_> = low.filter(|(limited, needed)| *needed > limited.limit).collect();
        // The deeper of two cgroups that hold the same guest is the nearer one.
        low.sort_by_key(|(limited, _)| std::cmp::Reverse(limited.dir.components().count()));
        let mut told: BTreeSet<usize> = BTreeSet::new();
        low.retain(|(limited, _)| {
            let before = told.len();
            told.extend(&limited.guests);
            told.len() > before
        });
        low.sort_by(|(a, _), (b, _)| a.dir.cmp(&b.dir));
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(dir: &str, mib: u64, guests: &[usize]) -> Limited {
        let (version, limit) = (CgroupVersion::V2, Bytes::from_mib(mib));
        Limited { dir: dir.into(), version, limit, guests: guests.to_vec() }
    }

    /// The cgroups that are too low for guests of these sizes.
    fn low(all: &[Limited], sizes: &[u64]) -> Vec<(String, u64)> {
        let low = Limited::too_low(all, |guest| Bytes::from_mib(sizes[guest]));
        low.iter().map(|(limited, needs)| (limited.dir.display().to_string(), needs.whole_mib())).collect()
    }

    #[test]
    fn a_limit_must_hold_all_guests_below_it() {
        let slice = |limit| [limited("/vms", limit, &[0, 1])];
        assert_eq!(low(&slice(600), &[300, 300]), []);
        assert_eq!(low(&slice(599), &[300, 300]), [("/vms".to_owned(), 600)]);
        assert_eq!(low(&slice(0), &[0, 0]), [], "a guest without a known size needs nothing");
    }

    #[test]
    fn the_nearest_limit_of_each_guest_is_told() {
        let all = [
            limited("/vms", 500, &[0, 1, 2]),
            limited("/vms/a", 200, &[0]),
            limited("/vms/b", 300, &[1]),
            limited("/vms/b/qemu", 299, &[1]),
        ];
        // The slice is the nearest for the third guest.
        let vms = || ("/vms".to_owned(), 900);
        let (a, qemu) = (("/vms/a".to_owned(), 300), ("/vms/b/qemu".to_owned(), 300));
        assert_eq!(low(&all, &[300, 300, 300]), [vms(), a.clone(), qemu.clone()]);
        // All guests of the slice have a nearer one.
        let two = [limited("/vms", 500, &[0, 1]), all[1].clone(), all[3].clone()];
        assert_eq!(low(&two, &[300, 300]), [a, qemu]);
    }
}
