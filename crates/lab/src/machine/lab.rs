//! Everything that guests need, prepared once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LabError;
use crate::guest::image;
use crate::guest::image::Program;
use crate::machine::accel::Accel;
use crate::machine::kernel;
use crate::machine::kernel::{Kernel, Which};
use crate::machine::old_qemu;
use crate::machine::packages;
use crate::machine::packages::Tools;
use crate::machine::places;
use crate::machine::places::RunDir;

/// Programs, kernel, initrd and accelerator.
#[derive(Clone, Debug)]
pub struct Lab {
    tools: Tools,
    kernel: Kernel,
    programs: Vec<Program>,
    initrd: PathBuf,
    cache: PathBuf,
    accel: Accel,
}

impl Lab {
    /// Finds, fetches and builds missing parts. Guests run under TCG. `say` is called for everything that takes time or changes
    /// the machine.
    ///
    /// # Errors
    /// If a part is not available.
    pub fn gather(say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let cache = places::cache()?;
        let tools = packages::ensure(say)?;
        let kernel = kernel::ensure(&cache, Which::Newest, say)?;
        let programs = image::build_programs()?;
        let initrd = image::ensure(&cache, &kernel, &tools, &programs)?;
        Ok(Self { tools, kernel, programs, initrd, cache, accel: Accel::Tcg })
    }

    /// The same lab with another accelerator.
    #[must_use]
    pub const fn with_accel(mut self, accel: Accel) -> Self {
        self.accel = accel;
        self
    }

    /// The same lab with Debian 12's own QEMU.
    ///
    /// # Errors
    /// If it is not available.
    pub fn with_old_qemu(&self, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        Ok(Self { tools: old_qemu::ensure(&self.cache, &self.tools, say)?, ..self.clone() })
    }

    /// The same lab with another kernel in its guests.
    ///
    /// # Errors
    /// If it is not available.
    pub fn with_kernel(&self, which: Which, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let kernel = kernel::ensure(&self.cache, which, say)?;
        let initrd = image::ensure(&self.cache, &kernel, &self.tools, &self.programs)?;
        Ok(Self { kernel, initrd, ..self.clone() })
    }

    /// The programs.
    #[must_use]
    pub const fn tools(&self) -> &Tools {
        &self.tools
    }

    /// The guests' kernel.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The bootable image of the guests' kernel.
    #[must_use]
    pub fn vmlinuz(&self) -> PathBuf {
        self.kernel.vmlinuz(&self.cache)
    }

    /// The guests' first file system.
    #[must_use]
    pub fn initrd(&self) -> &Path {
        &self.initrd
    }

    /// The lab's cache.
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The guests' accelerator.
    #[must_use]
    pub const fn accel(&self) -> Accel {
        self.accel
    }
}

/// A run of some guests: the lab and a directory for this run.
#[derive(Clone, Debug)]
pub struct Run {
    lab: Arc<Lab>,
    dir: Arc<RunDir>,
    path: PathBuf,
}

impl Run {
    /// A new run with the name `name`.
    ///
    /// # Errors
    /// If its directory cannot be created.
    pub fn create(lab: &Lab, name: &str) -> Result<Self, LabError> {
        let dir = RunDir::create(name)?;
        let path = dir.path().to_owned();
        Ok(Self { lab: Arc::new(lab.clone()), dir: Arc::new(dir), path })
    }

    /// A part of this run, with its own subdirectory.
    ///
    /// # Errors
    /// If its directory cannot be created.
    pub fn part(&self, name: &str) -> Result<Self, LabError> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).map_err(LabError::file(&path))?;
        Ok(Self { path, ..self.clone() })
    }

    /// The lab of this run.
    #[must_use]
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The directory for sockets, consoles and logs.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory. Otherwise it is removed with the last clone of the run, unless a thread panics.
    pub fn keep(&self) {
        self.dir.keep();
    }
}
