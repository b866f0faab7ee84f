//! Reporting of pieces: as long as the host asks for it, free page reporting returns smaller blocks than the kernel chose.
//!
//! The kernel reports blocks of a page block or more: 2 MiB with pages of 4 KiB. Since Linux 5.14 that is a parameter of the module, which can
//! be written while the guest runs (`mm/page_reporting.c`). Nothing looks at the new value before the next block that is at least as large
//! becomes free, so a few MiB are taken and freed. A pass of the kernel returns a sixteenth of what there is, every two seconds.
//!
//! **Property.** The guest has its own value again when the host asks no longer, when the connection ends, and when the agent ends; if it was
//! killed, when it starts again: until then, the value stands in a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memtide_host::Root;
use memtide_model::{Bytes, PageSize};

use super::drain::drain;
use super::{Refused, Tools, done};
use crate::Bounds;
use crate::blocks::zones;
use crate::facts::Reported;
use crate::wire::Done;

/// The parameter, below `/sys`.
const PARAMETER: &str = "module/page_reporting/parameters/page_reporting_order";
/// The file that keeps the guest's own value while another one is set.
const KEPT: &str = "page_reporting_order";
/// What is taken and freed so that the kernel begins.
const KICK: usize = 4 << 20;
/// The number of orders where the kernel does not list them (`MAX_PAGE_ORDER` + 1 on x86).
const ORDERS: usize = 11;

/// The smallest block that free page reporting returns.
#[derive(Debug)]
pub struct Reporting {
    root: Root,
    parameter: PathBuf,
    kept: Option<PathBuf>,
    page: PageSize,
    /// The guest's own order; why not, if its kernel does not tell one.
    own: Result<u32, String>,
    is_lowered: bool,
}

impl Reporting {
    /// Reads the parameter. What an agent that was killed has left is put back first.
    #[must_use]
    pub fn open(root: &Root, folder: Option<&Path>, page: PageSize) -> Self {
        let parameter = root.sys(PARAMETER);
        let kept = folder.map(|folder| folder.join(KEPT));
        if let Some(own) = kept.as_ref().and_then(|kept| fs::read_to_string(kept).ok())
            && let Err(why) = put_back(&parameter, own.trim(), kept.as_deref())
        {
            eprintln!("memtide-agent: {why}");
        }
        let own = own_order(root, &parameter);
        Self { root: root.clone(), parameter, kept, page, own, is_lowered: false }
    }

    /// Reads the guest's own value again: the driver may have come later, or the administrator may have changed it.
    pub fn read_again(&mut self) {
        if !self.is_lowered {
            self.own = own_order(&self.root, &self.parameter);
        }
    }

    /// The smallest blocks that the kernel returns.
    #[must_use]
    pub fn reported(&self, bounds: &Bounds) -> Reported {
        let own = self.own.as_ref().ok().map(|order| block(self.page, *order));
        let piece = self.order(bounds).ok().map(|order| block(self.page, order));
        Reported { block: own.unwrap_or(Reported::default().block), piece }
    }

    /// The order of the smallest pieces that the kernel returns if the host asks for it; at most its own.
    ///
    /// # Errors
    /// If the administrator does not allow it, or the kernel cannot.
    pub fn order(&self, bounds: &Bounds) -> Result<u32, Refused> {
        if !bounds.report_pieces {
            return Err(Refused::Forbidden("reporting of small pieces"));
        }
        let unsupported = |why: &str| Refused::Unsupported(format!("{}: {why}", self.parameter.display()));
        let own = *self.own.as_ref().map_err(|why| unsupported(why))?;
        let order = (0..own).find(|order| block(self.page, *order) >= bounds.least_piece);
        Ok(order.unwrap_or(own))
    }

    /// Makes the kernel return pieces, too.
    ///
    /// # Errors
    /// As [`Reporting::order`].
    pub fn lower(&mut self, bounds: &Bounds) -> Result<(), Refused> {
        self.read_again();
        let order = self.order(bounds)?;
        if let (Some(kept), Ok(own), false) = (&self.kept, &self.own, self.is_lowered) {
            fs::write(kept, own.to_string())?;
        }
        fs::write(&self.parameter, order.to_string())
            .map_err(|error| Refused::Unsupported(format!("{}: {error}", self.parameter.display())))?;
        self.is_lowered = true;
        Ok(())
    }

    /// Puts the guest's own value back. Returns whether there was another one.
    ///
    /// # Errors
    /// If it cannot be written: it is tried again at the next occasion.
    pub fn put_back(&mut self) -> Result<bool, String> {
        let (true, Ok(own)) = (self.is_lowered, &self.own) else { return Ok(false) };
        put_back(&self.parameter, &own.to_string(), self.kept.as_deref())?;
        self.is_lowered = false;
        Ok(true)
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        if let Err(why) = self.put_back() {
            eprintln!("memtide-agent: {why}");
        }
    }
}

/// Makes the kernel look for free pieces now. Returns the bytes that it can return from now on.
///
/// # Errors
/// If the kernel's numbers cannot be read.
pub fn report_pieces(tools: &mut Tools<'_>) -> Result<Done, Refused> {
    let begun = Instant::now();
    // Zeros would not be touched.
    drop(std::hint::black_box(vec![1_u8; KICK]));
    drain(tools);
    Ok(done(tools.facts.memory()?.pieces, "page_reporting_order", begun))
}

fn block(page: PageSize, order: u32) -> Bytes {
    Bytes::new(page.bytes().get().checked_shl(order).unwrap_or(u64::MAX))
}

/// The present order. While nobody has registered to be reported to, it is none that the kernel has: -1, and before Linux 6.2 one more than its largest.
fn own_order(root: &Root, parameter: &Path) -> Result<u32, String> {
    let text = fs::read_to_string(parameter).map_err(|error| error.to_string())?;
    let buddyinfo = fs::read_to_string(root.proc("buddyinfo")).unwrap_or_default();
    let orders = zones(&buddyinfo).next().map_or(ORDERS, Iterator::count);
    let is_one = |order: &u32| usize::try_from(*order).is_ok_and(|order| order < orders);
    text.trim().parse().ok().filter(is_one).ok_or_else(|| "free page reporting is off".to_owned())
}

/// A value that cannot be put back stays in its file for the next start.
fn put_back(parameter: &Path, own: &str, kept: Option<&Path>) -> Result<(), String> {
    fs::write(parameter, own)
        .map_err(|error| format!("cannot put {own} back into {}: {error}", parameter.display()))?;
    // A file that stays puts the same value back once more.
    if let Some(kept) = kept {
        let _ = fs::remove_file(kept);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memtide_model::PAGE_4K;

    use super::*;

    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn with(order: &str) -> Self {
            let kernel = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(kernel.parameter().parent().unwrap()).unwrap();
            fs::write(kernel.parameter(), order).unwrap();
            kernel
        }

        fn parameter(&self) -> PathBuf {
            Root::at(self.0.path()).sys(PARAMETER)
        }

        fn open(&self) -> Reporting {
            Reporting::open(&Root::at(self.0.path()), Some(self.0.path()), PAGE_4K)
        }

        fn order(&self) -> String {
            fs::read_to_string(self.parameter()).unwrap().trim().to_owned()
        }
    }

    #[test]
    fn the_guests_own_value_comes_back() {
        let kernel = Kernel::with("9\n");
        let mut reporting = kernel.open();
        assert_eq!(reporting.reported(&Bounds::default()).block, Bytes::from_mib(2));
        reporting.lower(&Bounds::default()).unwrap();
        assert_eq!(kernel.order(), "4");
        reporting.lower(&Bounds::default()).unwrap();
        assert_eq!((reporting.put_back(), reporting.put_back()), (Ok(true), Ok(false)));
        assert_eq!(kernel.order(), "9");
        reporting.lower(&Bounds::default()).unwrap();
        drop(reporting);
        assert_eq!(kernel.order(), "9");
        assert!(!kernel.0.path().join(KEPT).exists());
    }

    #[test]
    fn what_a_killed_agent_left_is_put_back() {
        let kernel = Kernel::with("7\n");
        let mut killed = kernel.open();
        killed.lower(&Bounds::default()).unwrap();
        std::mem::forget(killed);
        assert_eq!(kernel.order(), "4");
        let next = kernel.open();
        let reported = next.reported(&Bounds::default());
        let expected = Reported { block: Bytes::from_kib(512), piece: Some(Bytes::from_kib(64)) };
        assert_eq!((kernel.order().as_str(), reported), ("7", expected));
    }

    #[test]
    fn the_administrators_least_piece_is_kept() {
        let kernel = Kernel::with("9\n");
        let order = |bounds: &Bounds| kernel.open().order(bounds).map_err(|why| why.to_string());
        let of = |kib| Bounds { least_piece: Bytes::from_kib(kib), ..Bounds::default() };
        assert_eq!(order(&of(0)), Ok(0));
        assert_eq!(order(&of(65)), Ok(5));
        assert_eq!(order(&of(4096)), Ok(9), "the kernel's own choice is no larger");
        let forbidden = Bounds { report_pieces: false, ..Bounds::default() };
        assert!(order(&forbidden).unwrap_err().contains("administrator"));
    }

    #[test]
    fn what_the_administrator_changed_meanwhile_comes_back() {
        let kernel = Kernel::with("9\n");
        let mut reporting = kernel.open();
        for own in ["7", "2"] {
            fs::write(kernel.parameter(), own).unwrap();
            reporting.lower(&Bounds::default()).unwrap();
            assert_eq!(kernel.order(), if own == "7" { "4" } else { "2" }, "it is never raised");
            reporting.put_back().unwrap();
            assert_eq!(kernel.order(), own);
        }
    }

    #[test]
    fn a_kernel_that_reports_nothing_cannot() {
        for (order, said) in [("-1\n", "off"), ("11\n", "off"), ("", "off")] {
            let error = Kernel::with(order).open().order(&Bounds::default()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let none = Root::at("/nowhere/at/all");
        let reported = Reporting::open(&none, None, PAGE_4K).reported(&Bounds::default());
        assert_eq!(reported, Reported::default());
    }
}
