//! Everything that guests need, prepared once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LabError;
use crate::guest::image;
use crate::guest::image::Program;
use crate::machine::accel::Accel;
use crate::machine::kernel;
use crate::machine::kernel::{Kernel, Which};
use crate::machine::libvirtd::Libvirtd;
use crate::machine::old_qemu;
use crate::machine::packages;
use crate::machine::packages::Qemu;
use crate::machine::places;
use crate::machine::places::RunDir;

/// Everything that guests need, for the VMMs that were asked for.
#[derive(Clone, Debug)]
pub struct Lab {
    cache: PathBuf,
    busybox: PathBuf,
    programs: Vec<Program>,
    qemu: Option<ForQemu>,
}

/// What QEMU's guests need.
#[derive(Clone, Debug)]
pub struct ForQemu {
    /// QEMU.
    pub program: Qemu,
    /// The guests' kernel.
    pub kernel: Kernel,
    /// Their first file system.
    pub initrd: PathBuf,
    /// Their accelerator.
    pub accel: Accel,
    /// The daemon that starts them, if it is not the lab.
    pub libvirtd: Option<Arc<Libvirtd>>,
}

impl Lab {
    /// Finds, fetches and builds missing parts for UML instances. UML itself is installed with the first instance. `say` is called for
    /// everything that takes time or changes the machine.
    ///
    /// # Errors
    /// If a part is not available.
    pub fn for_uml(say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let cache = places::cache()?;
        let busybox = packages::ensure_busybox(say)?;
        Ok(Self { cache, busybox, programs: image::build_programs(say)?, qemu: None })
    }

    /// The same for QEMU's guests, too. They run under TCG.
    ///
    /// # Errors
    /// If a part is not available.
    pub fn gather(say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let program = packages::ensure_qemu(say)?;
        let lab = Self::for_uml(say)?;
        let kernel = kernel::ensure(&lab.cache, Which::Newest, say)?;
        let initrd = image::ensure(&lab.cache, &kernel, &lab.busybox, &lab.programs)?;
        Ok(Self { qemu: Some(ForQemu { program, kernel, initrd, accel: Accel::Tcg, libvirtd: None }), ..lab })
    }

    /// The same lab with other parts for QEMU.
    fn with(&self, qemu: ForQemu) -> Self {
        Self { qemu: Some(qemu), ..self.clone() }
    }

    /// The same lab with another accelerator.
    ///
    /// # Errors
    /// If it was prepared without QEMU.
    pub fn with_accel(&self, accel: Accel) -> Result<Self, LabError> {
        Ok(self.with(ForQemu { accel, ..self.qemu()?.clone() }))
    }

    /// The same lab with guests that a libvirtd of its own starts.
    ///
    /// # Errors
    /// If it cannot be installed or started.
    pub fn with_libvirt(&self, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let qemu = self.qemu()?.clone();
        let libvirtd = Some(Arc::new(Libvirtd::start(&qemu.program.path, say)?));
        Ok(self.with(ForQemu { libvirtd, ..qemu }))
    }

    /// The daemon that starts its guests, if it is not the lab.
    #[must_use]
    pub fn libvirtd(&self) -> Option<&Arc<Libvirtd>> {
        self.qemu.as_ref()?.libvirtd.as_ref()
    }

    /// The same lab with Debian 12's own QEMU.
    ///
    /// # Errors
    /// If it is not available.
    pub fn with_old_qemu(&self, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let program = old_qemu::ensure(&self.cache, say)?;
        Ok(self.with(ForQemu { program, ..self.qemu()?.clone() }))
    }

    /// The same lab with another kernel in its guests.
    ///
    /// # Errors
    /// If it is not available.
    pub fn with_kernel(&self, which: Which, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let kernel = kernel::ensure(&self.cache, which, say)?;
        let initrd = image::ensure(&self.cache, &kernel, &self.busybox, &self.programs)?;
        Ok(self.with(ForQemu { kernel, initrd, ..self.qemu()?.clone() }))
    }

    /// What QEMU's guests need.
    ///
    /// # Errors
    /// If the lab was prepared without it.
    pub fn qemu(&self) -> Result<&ForQemu, LabError> {
        let missing = || LabError::Missing("this lab was prepared without QEMU".to_owned());
        self.qemu.as_ref().ok_or_else(missing)
    }

    /// The first file system of UML instances; built if it is missing.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn uml_initrd(&self) -> Result<PathBuf, LabError> {
        image::ensure_without_modules(&self.cache, &self.busybox, &self.programs)
    }

    /// The file of one of our programs for guests. It runs on the host, too.
    ///
    /// # Errors
    /// If there is no such program.
    pub fn program(&self, name: &str) -> Result<PathBuf, LabError> {
        let found = self.programs.iter().find(|program| program.name == name);
        found
            .map(|program| program.file.clone())
            .ok_or_else(|| LabError::Missing(format!("no program `{name}`")))
    }

    /// The lab's cache.
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
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
