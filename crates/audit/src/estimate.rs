//! From the classes that were seen to the saving, with its interval.
//!
//! If the sample holds a part p of all classes, each class in it counts 1/p times (Horvitz and Thompson, 1952). The variance
//! of the sum is Σ (1 − p) / p² × saved², over the classes of the sample. Classes that were counted one by one stand for themselves. With
//! few classes in the sample, that variance says little: a saving is not bounded closer than by three classes, as large as the largest of the
//! sample, that the sample missed. That happens with a probability of about 1/20.
//!
//! If the kernel does not merge across NUMA nodes, each node keeps a copy. Nobody asks on which node a page is: the lower bounds hold if each class is spread
//! over all nodes, the estimates and the upper bounds if each is on one.

use memtide_model::{Bytes, PageSize};

use crate::merging::Merging;

/// Both ends of the interval lie this many standard deviations from its middle: 95 %.
const DEVIATIONS: f64 = 1.96;
/// Of this many classes, a sample misses all in one of twenty cases, for each class that it should hold.
const MISSED: f64 = 3.0;

/// A class as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Its members that did not change, by group.
    pub members: Vec<(usize, u64)>,
    /// Whether it was counted, and not met by chance.
    pub is_counted: bool,
}

/// Pages of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pages {
    /// All that are present.
    pub present: u64,
    /// Those full of zeros, without those that the kernel's own page of zeros stands for.
    pub zeros: u64,
    /// The part of the pages that did not change between the two looks.
    pub stable: f64,
    /// The part of the pages full of zeros that did not change.
    pub stable_zeros: f64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The groups' pages.
    pub groups: Vec<Pages>,
    /// The classes of the sample, and those that were counted.
    pub classes: Vec<Class>,
    /// The part of all classes in the sample.
    pub part: f64,
    /// How the kernel would merge.
    pub merging: Merging,
    /// The size of a page.
    pub page: PageSize,
}

/// A size that was estimated, and the bounds that hold with a probability of 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The estimate.
    pub value: Bytes,
    /// The lower bound.
    pub low: Bytes,
    /// The upper bound.
    pub high: Bytes,
}

/// The saving of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupEstimate {
    /// Its private anonymous memory.
    pub memory: Bytes,
    /// Its part of what all groups together save: of each class, in proportion to its members. With its pages full of zeros.
    pub saving: Interval,
    /// Pages full of zeros.
    pub zeros: Bytes,
    /// What it would save alone, without zeros.
    pub within: Bytes,
    /// The part of its pages that changed between the two looks.
    pub changes: f64,
}

/// What two groups save together beyond what each saves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEstimate {
    /// The groups, by their number.
    pub groups: (usize, usize),
    /// The saving.
    pub saving: Bytes,
}

/// The estimate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// All groups together, with their pages full of zeros.
    pub saving: Interval,
    /// The part of it in pages full of zeros.
    pub zeros: Bytes,
    /// The part of it that each group saves alone, without zeros.
    pub within: Bytes,
    /// The part of it that takes several groups.
    pub across: Bytes,
    /// The groups in their order.
    pub groups: Vec<GroupEstimate>,
    /// The pairs that save anything together, the largest saving first.
    pub pairs: Vec<PairEstimate>,
}

/// A sum of classes, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    value: f64,
    /// The value if each class is spread over all nodes.
    spread: f64,
    variance: f64,
    /// The largest class of the sample.
    largest: f64,
}

impl Sum {
    /// Adds a class that saves `saved` pages, or `spread` if it is spread over all nodes.
    fn add(&mut self, (saved, spread): (f64, f64), is_counted: bool, part: f64) {
        let weight = if is_counted { 1.0 } else { 1.0 / part };
        self.value += saved * weight;
        self.spread += spread * weight;
        if !is_counted {
            self.variance += (1.0 - part) / (part * part) * saved * saved;
            self.largest = self.largest.max(saved);
        }
    }
}

/// The pages that a class of `members` saves, if at most `most` pages share one copy.
fn saved(members: u64, most: u64) -> f64 {
    float(members - members.div_ceil(most.max(1)))
}

/// The same if each of the `nodes` keeps copies of its own, and the members are spread over all of them.
fn saved_apart(members: u64, most: u64, nodes: u64) -> f64 {
    let copies = members.div_ceil(most.max(1)).saturating_add(nodes.saturating_sub(1));
    float(members.saturating_sub(copies))
}

fn float(count: u64) -> f64 {
    count as f64
}

/// Estimates the saving.
pub fn estimate(seen: &Seen) -> Estimate {
    let Merging { most_sharing: most, nodes, .. } = seen.merging;
    let both = |members: u64| (saved(members, most), saved_apart(members, most, nodes));
    let mut total = Sum::default();
    let mut groups = vec![(Sum::default(), Sum::default()); seen.groups.len()];
    let mut pairs = vec![Sum::default(); seen.groups.len() * seen.groups.len()];
    for class in &seen.classes {
        let members: u64 = class.members.iter().map(|(_, members)| members).sum();
        let all = both(members);
        let (counted, part) = (class.is_counted, seen.part);
        total.add(all, counted, part);
        for (at, (group, own)) in class.members.iter().enumerate() {
            if let Some((sum, within)) = groups.get_mut(*group) {
                let share = float(*own) / float(members.max(1));
                sum.add((all.0 * share, all.1 * share), counted, part);
                within.add(both(*own), counted, part);
            }
            for (other, others) in class.members.iter().skip(at + 1) {
                let together = saved(own + others, most) - saved(*own, most) - saved(*others, most);
                let (first, second) = (*group.min(other), *group.max(other));
                if let Some(pair) = pairs.get_mut(first * seen.groups.len() + second) {
                    pair.add((together, together), counted, part);
                }
            }
        }
    }
    let missed = if seen.part < 1.0 { MISSED / seen.part } else { 0.0 };
    let size = |pages: f64| size(pages, seen.page);
    let interval = |sum: Sum, certain: f64| {
        let reach = (DEVIATIONS * sum.variance.sqrt()).max(missed * sum.largest.max(1.0));
        let value = sum.value + certain;
        let low = (sum.spread + certain - reach).max(certain);
        Interval { value: size(value), low: size(low), high: size(value + reach) }
    };
    let zeros: Vec<f64> = seen.groups.iter().map(|group| float(group.zeros) * group.stable_zeros).collect();
    let all_zeros: f64 = zeros.iter().sum();
    let kept = if seen.merging.use_zero_pages { 0.0 } else { (all_zeros / float(most.max(1))).ceil() };
    let zero_part = if all_zeros > 0.0 { (all_zeros - kept) / all_zeros } else { 0.0 };
    let within: f64 = groups.iter().map(|(_, within)| within.value).sum();
    let of_group = |((pages, zeros), (sum, within)): ((&Pages, &f64), &(Sum, Sum))| GroupEstimate {
        memory: size(float(pages.present)),
        saving: interval(*sum, zeros * zero_part),
        zeros: size(*zeros),
        within: size(within.value),
        changes: 1.0 - pages.stable,
    };
    Estimate {
        saving: interval(total, all_zeros * zero_part),
        zeros: size(all_zeros * zero_part),
        within: size(within),
        across: size((total.value - within).max(0.0)),
        groups: seen.groups.iter().zip(&zeros).zip(&groups).map(of_group).collect(),
        pairs: of_pairs(&pairs, seen.groups.len(), size),
    }
}

fn of_pairs(sums: &[Sum], groups: usize, size: impl Fn(f64) -> Bytes) -> Vec<PairEstimate> {
    let pair = |(at, sum): (usize, &Sum)| PairEstimate {
        groups: (at / groups.max(1), at % groups.max(1)),
        saving: size(sum.value),
    };
    let mut pairs: Vec<PairEstimate> =
        sums.iter().enumerate().map(pair).filter(|pair| !pair.saving.is_zero()).collect();
    pairs.sort_by(|a, b| b.saving.cmp(&a.saving).then(a.groups.cmp(&b.groups)));
    pairs
}

fn size(pages: f64, page: PageSize) -> Bytes {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of pages, and saturating"
    )]
    let pages = pages.round() as u64;
    Bytes::new(pages.saturating_mul(page.bytes().get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::PAGE_4K;

    fn seen(classes: &[&[(usize, u64)]], part: f64) -> Seen {
        let class = |members: &&[(usize, u64)]| Class { members: members.to_vec(), is_counted: false };
        Seen {
            groups: vec![Pages { present: 100, zeros: 0, stable: 1.0, stable_zeros: 1.0 }; 3],
            classes: classes.iter().map(class).collect(),
            part,
            merging: Merging::default(),
            page: PAGE_4K,
        }
    }

    fn pages(count: u64) -> Bytes {
        Bytes::from_kib(4 * count)
    }

    #[test]
    fn a_whole_sample_is_exact() {
        // Three copies within the first group; one page in all three; a page of its own.
        let found = estimate(&seen(&[&[(0, 3)], &[(0, 1), (1, 1), (2, 1)], &[(1, 1)]], 1.0));
        assert_eq!(found.saving, Interval { value: pages(4), low: pages(4), high: pages(4) });
        assert_eq!((found.within, found.across), (pages(2), pages(2)));
        assert_eq!(found.groups[0].within, pages(2));
        assert_eq!(found.pairs.len(), 3);
        assert!(found.pairs.iter().all(|pair| pair.saving == pages(1)));
    }

    #[test]
    fn a_class_of_a_sample_stands_for_others() {
        let found = estimate(&seen(&[&[(0, 2)], &[(1, 2)]], 0.5));
        assert_eq!(found.saving.value, pages(4));
        assert!(found.saving.low < pages(4) && found.saving.high >= pages(10), "{:?}", found.saving);
        let mut counted = seen(&[&[(0, 2)]], 0.5);
        counted.classes[0].is_counted = true;
        assert_eq!(estimate(&counted).saving.value, pages(1));
    }

    #[test]
    fn a_copy_is_shared_by_so_many_pages_and_no_more() {
        let found = estimate(&seen(&[&[(0, 257)]], 1.0));
        assert_eq!(found.saving.value, pages(255));
    }

    #[test]
    fn nodes_that_keep_copies_of_their_own_lower_the_lower_bound() {
        let mut apart = seen(&[&[(0, 10)], &[(0, 1), (1, 1)]], 1.0);
        apart.merging.nodes = 2;
        // 9 and 1 on one node; 8 and 0 if each class is on both.
        let found = estimate(&apart);
        assert_eq!(found.saving, Interval { value: pages(10), low: pages(8), high: pages(10) });
    }

    #[test]
    fn zeros_are_saved_to_the_last_only_with_a_page_of_the_kernel() {
        let mut zeros = seen(&[], 1.0);
        zeros.groups[0].zeros = 50;
        zeros.groups[1].zeros = 50;
        zeros.groups[1].stable_zeros = 0.5;
        assert_eq!(estimate(&zeros).zeros, pages(74));
        zeros.merging.use_zero_pages = true;
        let found = estimate(&zeros);
        assert_eq!((found.zeros, found.saving.value), (pages(75), pages(75)));
        assert_eq!(found.groups[1].zeros, pages(25));
    }
}
