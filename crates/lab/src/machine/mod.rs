//! The base of the guests: the machine itself, everything prepared on it, and the small host within it.

pub mod accel;
pub mod cgroup;
pub mod facts;
pub mod kernel;
pub mod ksm;
pub mod lab;
pub mod libvirtd;
pub mod old_qemu;
pub mod packages;
pub mod places;
pub mod process;
pub mod small_host;
pub mod small_tmpfs;
pub mod swap;
pub mod uml_kernel;
pub mod zram;
