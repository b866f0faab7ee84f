//! Readers on trees of files: other kernels, other cgroup layouts, broken files.
#![allow(clippy::unwrap_used, reason = "a helper of tests may fail its test")]

mod cgroups;
mod sensor;
mod tree;
mod vmm;
