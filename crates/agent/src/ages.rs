//! `/sys/kernel/debug/lru_gen`: memory by the generations of the multi-generational LRU.
//!
//! Each memory cgroup has, on each node, a few generations, from the oldest to the youngest. The age of a generation is the time since it
//! was opened. What was in it when the next younger one was opened has not been found in use since then, so it counts as old as that one.
//! (Documentation/admin-guide/mm/multigen_lru.rst) New pages of files that no program has mapped begin in the oldest generation
//! (`lru_gen_folio_seq` in mm_inline.h), and leave it only when reclaim finds that they were read again. So a generation says what the kernel
//! evicts first. File pages in an old one may have been read a second ago.

use memtide_model::{AgentAge, Bytes, PageSize, Pages};

use crate::wire::MAX_AGES;

/// Ages in reports, in milliseconds: now, 1 s, 10 s, 1 min, 10 min, 1 h, 6 h, 1 day.
const STEPS: [u64; MAX_AGES] = [0, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000];

/// A generation of a cgroup on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The kernel's number of the cgroup.
    pub memcg: u64,
    /// The node.
    pub node: u64,
    /// The generation's number.
    pub number: u64,
    /// The time since the next younger generation was opened, in milliseconds.
    pub since_ms: u64,
    /// Anonymous pages.
    pub anon: Pages,
    /// File pages.
    pub file: Pages,
}

/// All generations, in the kernel's order: by cgroup and node, each from the oldest to the youngest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations(pub Vec<Generation>);

/// Parses the file. Lines of another form are left out.
#[must_use]
pub fn parse_ages(text: &str) -> Generations {
    let mut found: Vec<Generation> = Vec::new();
    let (mut memcg, mut node) = (0, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("memcg"), Some(id)) => memcg = id.parse().unwrap_or(0),
            (Some("node"), Some(id)) => node = id.parse().unwrap_or(0),
            (Some(number), Some(age)) => {
                let pages = |word: Option<&str>| -> Option<Pages> {
                    // The kernel marks sizes of generations that are about to go with a letter.
                    word?.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok().map(Pages::new)
                };
                let (Ok(number), Ok(age)) = (number.parse(), age.parse()) else { continue };
                let (Some(anon), Some(file)) = (pages(words.next()), pages(words.next())) else { continue };
                if let Some(older) =
                    found.last_mut().filter(|older| (older.memcg, older.node) == (memcg, node))
                {
                    older.since_ms = age;
                }
                found.push(Generation { memcg, node, number, since_ms: 0, anon, file });
            }
            _ => {}
        }
    }
    Generations(found)
}

impl Generations {
    /// The same by age, the youngest first, without ages that have no pages.
    #[must_use]
    pub fn by_age(&self, page: PageSize) -> Vec<AgentAge> {
        let mut ages = STEPS.map(|since_ms| AgentAge { since_ms, ..AgentAge::default() });
        for generation in &self.0 {
            let step = STEPS.iter().rposition(|step| *step <= generation.since_ms).unwrap_or(0);
            let age = &mut ages[step];
            age.file = age.file.saturating_add(generation.file.to_bytes(page));
            age.anon = age.anon.saturating_add(generation.anon.to_bytes(page));
        }
        ages.into_iter().filter(|age| !Bytes::sum([age.file, age.anon]).is_zero()).collect()
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::PAGE_4K;

    use super::*;

    /// Linux 6.12, shortened.
    const TEXT: &str = "\
memcg     1 /
 node     0
          0     120034          0       25600\x20
          1      60021        256        1280\x20
          2        512          0         256\x20
          3         10       2560          0x
memcg     7 /system.slice
 node     0
          4     700000          1           2\x20
          5     650000          0           0\x20
";

    #[test]
    fn pages_are_as_old_as_the_next_generation() {
        let ages = parse_ages(TEXT);
        let since: Vec<u64> = ages.0.iter().map(|generation| generation.since_ms).collect();
        assert_eq!(since, [60_021, 512, 10, 0, 650_000, 0]);
        assert_eq!(ages.0[0].file, Pages::new(25_600));
        assert_eq!((ages.0[3].file, ages.0[4].memcg), (Pages::new(0), 7));
    }

    #[test]
    fn ages_are_summed_over_all_cgroups() {
        let kib = Bytes::from_kib;
        let age =
            |since_ms, file: u64, anon: u64| AgentAge { since_ms, file: kib(file * 4), anon: kib(anon * 4) };
        assert_eq!(
            parse_ages(TEXT).by_age(PAGE_4K),
            [age(0, 1536, 2816), age(60_000, 25_600, 0), age(600_000, 2, 1)]
        );
    }

    #[test]
    fn anything_else_is_left_out() {
        assert_eq!(parse_ages("memcg\nnode x\n 1 2 3\nnonsense 4 5 6 7\n\u{0}"), Generations::default());
    }
}
