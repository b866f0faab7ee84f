//! The output of a run: samples, statistics, results, plots, a report page.

pub mod plot;
pub mod report;
pub mod results;
pub mod sample;
pub mod screen;
pub mod show;
pub mod statistics;
