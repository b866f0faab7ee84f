//! A search for setups without faults in which memtide does worse than another manager, or than nobody.
//!
//! **Problem.** People write scenarios only for situations that they can imagine.
//!
//! **Algorithm.**
//! 1. Run random plausible setups (`plausible`) under memtide with each commitment, and under all other managers. `ill` measures how bad
//!    memtide is against the best clean manager.
//! 2. For each way to be bad and each commitment, keep the worst few. Change one of them at random (`mutate`), again and again. A worse
//!    setup replaces the kept one with the same ancestor. Setups of other ancestors stay beside it, so not all descend from one.
//! 3. Shrink the worst (`shrink`) while they stay two thirds as bad, name their guests after their work, and write them as scenario files
//!    (`told`). Of several with the same shape only the worst counts, and at most two for each way to be bad.
//!
//! **Properties.** The same plan gives the same findings on every machine, unless `go_on` ends the second stage early. There is no clock
//! here: deadlines are up to the caller.

mod ill;
mod mutate;
pub(crate) mod plausible;
pub(crate) mod told;

use memtide_model::Commitment;
use serde::Serialize;

use crate::seeds::draw::Draw;
use crate::shrink::shrink;
use memtide_sim::setup::Setup;
use memtide_sim::{Manager, Outcome};

pub use ill::Ill;

/// The number of setups with different ancestors to keep for each way to be bad.
const KEPT: usize = 5;
/// A lower badness is not worth a look, in thousandths.
const LEAST: u64 = 15;
/// The number of the worst setups to shrink, and the most setups to try for each.
const SHRUNK: usize = 14;
const SHRINK_RUNS: u64 = 300;
/// The most findings for one way to be bad.
const OF_ONE_ILL: usize = 2;

/// The extent of a search.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all choices.
    pub seed: u64,
    /// The number of random setups to start with.
    pub starts: u64,
    /// The number of changes to try after that.
    pub steps: u64,
    /// The number of findings wanted.
    pub findings: usize,
}

/// The progress of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    /// Setups tried so far.
    pub tried: u64,
    /// Findings shrunk so far; `None` before that stage.
    pub shrunk: Option<usize>,
    /// The worst badness of each way to be bad.
    pub worst: Vec<(Ill, Commitment, u64)>,
}

/// A setup in which memtide does badly.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The way in which it does badly.
    pub ill: Ill,
    /// The commitment.
    pub commitment: Commitment,
    /// How badly, in thousandths: see [`Ill`].
    pub badness: u64,
    /// The best other manager; `None` if none is clean.
    pub best: Option<Manager>,
    /// The kind of the setup.
    pub shape: Vec<&'static str>,
    /// The problem, in a sentence.
    pub about: String,
    /// The setup.
    pub setup: Setup,
    /// Its scenario file, with the bound that a good policy would keep.
    pub file: String,
}

/// A kept setup.
#[derive(Clone)]
struct Kept {
    badness: u64,
    /// The random setup that it descends from.
    parent: u64,
    setup: Setup,
}

/// The worst setups for one way to be bad, the worst first.
struct Cell {
    ill: Ill,
    commitment: Commitment,
    kept: Vec<Kept>,
}

impl Cell {
    fn take(&mut self, new: Kept) {
        if new.badness < LEAST {
            return;
        }
        match self.kept.iter_mut().find(|kept| kept.parent == new.parent) {
            Some(kept) if kept.badness < new.badness => *kept = new,
            Some(_) => return,
            None => self.kept.push(new),
        }
        self.kept.sort_by(|a, b| b.badness.cmp(&a.badness).then(a.parent.cmp(&b.parent)));
        self.kept.truncate(KEPT);
    }
}

/// Searches by a plan. Asks `go_on` before each setup whether to continue. Findings are shrunk in any case, which takes a few thousand
/// runs; `go_on` hears of that, too.
pub fn search(plan: &Plan, go_on: &mut dyn FnMut(&Progress) -> bool) -> Vec<Finding> {
    search_and_shrink(plan, SHRINK_RUNS, go_on)
}

fn search_and_shrink(plan: &Plan, runs: u64, go_on: &mut dyn FnMut(&Progress) -> bool) -> Vec<Finding> {
    let commitments = [Commitment::Strict, Commitment::Elastic];
    let cell = |ill| commitments.map(|commitment| Cell { ill, commitment, kept: Vec::new() });
    let mut cells: Vec<Cell> = Ill::ALL.into_iter().flat_map(cell).collect();
    let mut draw = Draw::new(plan.seed, 100);
    let mut tried = 0;
    while tried < plan.starts.saturating_add(plan.steps) && go_on(&progress(tried, None, &cells)) {
        let (parent, setup) = next(&mut draw, tried, plan, &cells);
        tried += 1;
        if plausible::is_plausible(&setup) {
            try_out(&setup, parent, &mut cells);
        }
    }
    let mut worst: Vec<(Ill, Commitment, Kept)> = Vec::new();
    for cell in &cells {
        worst.extend(cell.kept.iter().take(3).map(|kept| (cell.ill, cell.commitment, kept.clone())));
    }
    worst.sort_by_key(|(ill, commitment, kept)| (std::cmp::Reverse(kept.badness), *ill, *commitment as u8));
    let mut findings = Vec::new();
    for (ill, commitment, kept) in spread(worst) {
        let now = progress(tried, Some(findings.len()), &cells);
        let runs = if go_on(&now) { runs } else { 0 };
        findings.extend(finding(ill, commitment, kept.setup, runs, &mut || go_on(&now)));
    }
    different(findings, plan.findings)
}

/// The next setup to try, and the random setup that it descends from.
fn next(draw: &mut Draw, tried: u64, plan: &Plan, cells: &[Cell]) -> (u64, Setup) {
    let filled: Vec<&Cell> = cells.iter().filter(|cell| !cell.kept.is_empty()).collect();
    if tried < plan.starts || filled.is_empty() {
        return (tried, plausible::setup(&mut Draw::new(plan.seed, 1_000 + tried)));
    }
    let cell = filled[draw.index(filled.len())];
    let kept = &cell.kept[draw.index(cell.kept.len())];
    (kept.parent, mutate::mutate(draw, &kept.setup))
}

fn try_out(setup: &Setup, parent: u64, cells: &mut [Cell]) {
    let best = ill::best(setup);
    let commitments = [Commitment::Strict, Commitment::Elastic];
    for commitment in commitments.into_iter().filter(|one| plausible::promise_fits(setup, *one)) {
        let own = ill::tried(setup, Manager::Memtide(commitment));
        for cell in cells.iter_mut().filter(|cell| cell.commitment == commitment) {
            let badness = ill::badness(cell.ill, &own, best.as_ref());
            cell.take(Kept { badness, parent, setup: setup.clone() });
        }
    }
}

fn progress(tried: u64, shrunk: Option<usize>, cells: &[Cell]) -> Progress {
    let worst = cells.iter().filter_map(|cell| Some((cell.ill, cell.commitment, cell.kept.first()?.badness)));
    Progress { tried, shrunk, worst: worst.collect() }
}

/// The setups to shrink: first the worst of each way to be bad and commitment, then the second worst, and so on.
fn spread(worst: Vec<(Ill, Commitment, Kept)>) -> Vec<(Ill, Commitment, Kept)> {
    let mut ranked: Vec<(usize, (Ill, Commitment, Kept))> = Vec::new();
    for entry in worst {
        let rank = ranked.iter().filter(|(_, other)| (other.0, other.1) == (entry.0, entry.1)).count();
        ranked.push((rank, entry));
    }
    // The sort is stable: within a rank, the worst stay first.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(SHRUNK).map(|(_, entry)| entry).collect()
}

/// Shrinks a setup to a finding, for as long as `goes_on`; `None` if the format cannot express it.
fn finding(
    ill: Ill,
    commitment: Commitment,
    setup: Setup,
    runs: u64,
    goes_on: &mut dyn FnMut() -> bool,
) -> Option<Finding> {
    let manager = Manager::Memtide(commitment);
    let best = ill::best(&setup);
    let rival = best.as_ref().map(|best| best.manager);
    let before = ill::badness(ill, &ill::tried(&setup, manager), best.as_ref());
    let floor = (before * 2 / 3).max(LEAST);
    // The result against a single rival is never worse than against the best, so two runs are enough.
    let mut is_bad = |setup: &Setup| {
        if !goes_on() || !plausible::promise_fits(setup, commitment) {
            return false;
        }
        let own = ill::tried(setup, manager);
        let other = rival.map(|rival| ill::tried(setup, rival)).filter(is_clean);
        ill::badness(ill, &own, other.as_ref()) >= floor
    };
    let mut setup = shrink(setup, runs, &plausible::is_plausible, &mut is_bad);
    let named = told::named(&setup);
    if is_bad(&named) {
        setup = named;
    }
    let (best, own) = (ill::best(&setup), ill::tried(&setup, manager));
    let file = told::scenario(ill, &setup, &own, best.as_ref())?;
    Some(Finding {
        ill,
        commitment,
        badness: ill::badness(ill, &own, best.as_ref()),
        best: best.as_ref().map(|best| best.manager),
        shape: told::shape(&setup).into_iter().collect(),
        about: told::about(ill, &setup, &own, best.as_ref()),
        setup,
        file,
    })
}

fn is_clean(run: &Outcome) -> bool {
    run.host.killed_guests == 0 && run.host.above_capacity == 0
}

/// The worst `count` findings of different kinds.
fn different(mut findings: Vec<Finding>, count: usize) -> Vec<Finding> {
    findings
        .sort_by_key(|finding| (std::cmp::Reverse(finding.badness), finding.ill, finding.commitment as u8));
    let mut chosen: Vec<Finding> = Vec::new();
    for finding in findings {
        let same_ill = chosen.iter().filter(|other| other.ill == finding.ill).count();
        let is_known = chosen.iter().any(|other| other.shape == finding.shape);
        if chosen.len() < count && !is_known && same_ill < OF_ONE_ILL {
            chosen.push(finding);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_sim::Scenario;

    #[test]
    fn the_same_plan_finds_the_same() {
        let plan = Plan { seed: 4, starts: 40, steps: 10, findings: 3 };
        let found = || search_and_shrink(&plan, 8, &mut |_| true);
        let (first, second) = (found(), found());
        assert!(!first.is_empty(), "no setup of this seed is bad any more: take another one");
        let files = |found: &[Finding]| found.iter().map(|one| one.file.clone()).collect::<Vec<_>>();
        assert_eq!(files(&first), files(&second));
        for finding in first {
            let scenario = Scenario::parse(&finding.file).unwrap();
            assert_eq!(scenario.setup, finding.setup);
            assert_eq!(scenario.commitments, [Manager::Memtide(finding.commitment)]);
            assert!(scenario.bounds[0].fails.is_some());
        }
    }

    #[test]
    fn nobody_wants_to_go_on() {
        let plan = Plan { seed: 1, starts: u64::MAX, steps: u64::MAX, findings: 3 };
        assert!(search(&plan, &mut |_| false).is_empty());
    }
}
