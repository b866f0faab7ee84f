//! Guests that are bound to a NUMA node: the node is a host of its own for them, as a tmpfs is.
//!
//! Nothing is read on a host with one node. A guest's cpuset is read when it is found, and every 30 s, or every two seconds for each guest. The
//! free memory of a node that guests are bound to is read at each observation.

use std::collections::BTreeMap;

use memtide_host::{Root, bound_to, nodes, space_of_node};
use memtide_model::{GuestId, GuestSeen, Moment, Reading, Space, Span, Tmpfs, TmpfsId, Withheld};
use tracing::debug;

const READ_EVERY: Span = Span::from_secs(30);
const READ_EACH: Span = Span::from_secs(2);

/// The nodes of the host, and the guests that are bound to one.
pub(super) struct Nodes {
    root: Root,
    /// The nodes with memory; none if there are not several.
    all: Vec<u32>,
    guests: BTreeMap<GuestId, (Moment, Option<u32>)>,
    /// The last readings.
    spaces: BTreeMap<u32, (Moment, Reading<Space>)>,
}

impl Nodes {
    pub(super) fn open(root: &Root) -> Self {
        let found = nodes(root).unwrap_or_else(|error| {
            debug!("cannot read the NUMA nodes: {error}");
            Vec::new()
        });
        let all = if found.len() > 1 { found } else { Vec::new() };
        Self { root: root.clone(), all, guests: BTreeMap::new(), spaces: BTreeMap::new() }
    }

    /// Notes the node of each guest that is bound to one, and adds these nodes to `limited`. A guest in one of the tmpfs that are there already
    /// stays there. `told` is the node that a guest's memory is bound to by its command line.
    pub(super) fn look(
        &mut self,
        guests: &mut [GuestSeen],
        limited: &mut Vec<Tmpfs>,
        told: impl Fn(&GuestId) -> Option<u32>,
        now: Moment,
    ) {
        if self.all.is_empty() {
            return;
        }
        self.guests.retain(|id, _| guests.binary_search_by(|guest| guest.id.cmp(id)).is_ok());
        let every = READ_EVERY.max(Span::from_millis(READ_EACH.as_millis() * guests.len() as u64));
        let mut bound: BTreeMap<u32, TmpfsId> = BTreeMap::new();
        for guest in guests {
            let known = self.guests.get(&guest.id).filter(|(at, _)| now.since(*at) < every);
            let node = match known {
                Some((_, node)) => *node,
                None => {
                    let node = self.node_of(guest.pid, told(&guest.id));
                    self.guests.insert(guest.id.clone(), (now, node));
                    node
                }
            };
            let is_in_tmpfs = || limited.iter().any(|tmpfs| Some(tmpfs.id) == guest.tmpfs);
            // Huge pages come from the pool of the node, not from what is free of it.
            let is_in_pool = !guest.cost.in_pool.is_zero() || guest.withheld == Some(Withheld::HugePages);
            if let Some(node) = node.filter(|_| !is_in_pool && !is_in_tmpfs()) {
                let id = TmpfsId::of_node(node);
                guest.tmpfs = Some(id);
                bound.insert(node, id);
            }
        }
        self.spaces.retain(|node, _| bound.contains_key(node));
        for (node, id) in bound {
            limited.push(Tmpfs { id, at: format!("NUMA node {node}"), space: self.space(node, now) });
        }
    }

    /// The only node that the memory of a process can come from.
    fn node_of(&self, pid: u32, told: Option<u32>) -> Option<u32> {
        told.filter(|node| self.all.contains(node)).or_else(|| {
            bound_to(&self.root, pid, &self.all).unwrap_or_else(|error| {
                debug!(pid, "cannot read its cpuset: {error}");
                None
            })
        })
    }

    /// The space of a node, or its last reading with its age.
    fn space(&mut self, node: u32, now: Moment) -> Reading<Space> {
        match space_of_node(&self.root, node) {
            Ok(space) => {
                self.spaces.insert(node, (now, Reading::now(space)));
                Reading::now(space)
            }
            Err(error) => match self.spaces.get(&node) {
                Some((at, space)) => space.clone().aged(now.since(*at), &error.absence()),
                None => Reading::absent(error.absence()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{Absence, Backend, Bytes, Capabilities, Cost, Told};
    use std::fs;
    use std::path::Path;

    fn file(dir: &Path, path: &str, content: &str) {
        fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        fs::write(dir.join(path), content).unwrap();
    }

    fn guest(dir: &Path, pid: u32, allowed: &str) -> GuestSeen {
        file(dir, &format!("proc/{pid}/status"), &format!("Mems_allowed_list:\t{allowed}\n"));
        let absent = Absence::NotYet;
        GuestSeen {
            id: GuestId::new("a", u64::from(pid), "boot"),
            pid,
            user: None,
            backend: Backend::new("toy"),
            capabilities: Capabilities::BALLOON,
            cost: Cost::of(Reading::absent(absent.clone()), Bytes::ZERO, Bytes::ZERO, &absent),
            tmpfs: None,
            withheld: None,
            told: Told::nothing(Bytes::from_mib(256), absent),
        }
    }

    #[test]
    fn guests_that_are_bound_to_a_node_have_its_free_memory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        file(dir.path(), "sys/devices/system/node/has_memory", "0-1\n");
        let meminfo = "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 1024 kB\nNode 1 Active(file): 0 kB\n\
                       Node 1 Inactive(file): 0 kB\nNode 1 Dirty: 0 kB\nNode 1 Writeback: 0 kB\n";
        file(dir.path(), "sys/devices/system/node/node1/meminfo", meminfo);
        // The fourth one is in a tmpfs with a limit, the last one on huge pages.
        let guests = [(1, "0-1"), (2, "1"), (3, "0-1"), (4, "1"), (5, "1")];
        let mut guests = guests.map(|(pid, allowed)| guest(dir.path(), pid, allowed));
        guests[3].tmpfs = Some(TmpfsId(26));
        guests[4].withheld = Some(Withheld::HugePages);
        let shm =
            Tmpfs { id: TmpfsId(26), at: "/dev/shm".to_owned(), space: Reading::absent(Absence::NotYet) };
        let third = guests[2].id.clone();
        let told = |id: &GuestId| (*id == third).then_some(1);
        let look = |nodes: &mut Nodes, guests: &mut [GuestSeen], secs: u64| {
            let mut limited = vec![shm.clone()];
            nodes.look(guests, &mut limited, told, Moment::from_millis(secs * 1_000));
            limited.remove(0);
            limited
        };
        let mut nodes = Nodes::open(&root);
        let node = TmpfsId::of_node(1);
        let limited = look(&mut nodes, &mut guests, 0);
        assert_eq!(
            guests.each_ref().map(|guest| guest.tmpfs),
            [None, Some(node), Some(node), Some(TmpfsId(26)), None]
        );
        let space = Space { size: Bytes::from_kib(2048), free: Bytes::from_kib(1024) };
        assert_eq!(limited, [Tmpfs { id: node, at: "NUMA node 1".to_owned(), space: Reading::now(space) }]);
        // A reading that fails ages.
        fs::remove_file(dir.path().join("sys/devices/system/node/node1/meminfo")).unwrap();
        assert!(look(&mut nodes, &mut guests, 11)[0].is_old());
        // One node has everybody.
        file(dir.path(), "sys/devices/system/node/has_memory", "1\n");
        guests[1].tmpfs = None;
        assert_eq!(look(&mut Nodes::open(&root), &mut guests[..2], 0), []);
        assert_eq!(guests[1].tmpfs, None);
    }
}
