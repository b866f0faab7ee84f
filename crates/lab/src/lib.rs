//! Real guests, the demo, experiments, plots and reports.
