//! The experiments by name.

use crate::experiments::experiment::Entry;

pub mod cooperative;
pub mod demo;
pub mod density;
pub mod experiment;
pub mod freed;
pub mod hotplug;
pub mod ksm;
pub mod pause;
pub mod react;
pub mod sharing;
pub mod steady;

/// All experiments, in the order of the list.
pub const ALL: [Entry; 14] = [
    Entry::of::<demo::Demo>(),
    Entry::of::<demo::DemoUml>(),
    Entry::of::<density::Density>(),
    Entry::of::<density::uml::DensityUml>(),
    Entry::of::<steady::Steady>(),
    Entry::of::<steady::uml::SteadyUml>(),
    Entry::of::<react::React>(),
    Entry::of::<react::uml::ReactUml>(),
    Entry::of::<cooperative::Cooperative>(),
    Entry::of::<pause::Pause>(),
    Entry::of::<freed::Freed>(),
    Entry::of::<hotplug::Hotplug>(),
    Entry::of::<sharing::Sharing>(),
    Entry::of::<ksm::Ksm>(),
];

/// The experiment with this name.
#[must_use]
pub fn find(name: &str) -> Option<Entry> {
    ALL.into_iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::experiment::Effort;

    #[test]
    fn the_documents_and_the_list_tell_the_same_times() {
        let readme = include_str!("../../../../README.md");
        let results = include_str!("../../../../docs/results.md");
        let density = find("density").expect("an experiment");
        let [full, usual, quick] =
            [Effort::Full, Effort::Usual, Effort::Quick].map(|effort| density.minutes(effort));
        let told =
            format!("density --full     # {full} minutes; without --full {usual}, with --quick {quick}\n");
        assert!(results.contains(&told), "{told}");
        let demo = find("demo").expect("an experiment").minutes(Effort::Usual);
        assert!(demo == 3 && readme.contains("The demo takes about three minutes"), "{demo}");
    }
}
