//! What is seen of a run, what is computed from it, and what is left of it: samples, results, pictures, a page.

pub mod live;
pub mod plot;
pub mod report;
pub mod results;
pub mod sample;
pub mod show;
pub mod statistics;
