//! The kind of a QEMU's machine, and the memory that it has without `-m`.

use std::path::Path;

use memtide_model::Bytes;

use super::arguments::Arguments;
use super::launcher::Launcher;

/// The default of machines that have none of their own (QEMU: `hw/core/machine.c`). Those of PCs, `microvm`, `s390-ccw-virtio` and
/// `virt` of Arm and RISC-V have none.
pub(crate) const DEFAULT_MEMORY: Bytes = Bytes::from_mib(128);
/// That of `pseries` (`hw/ppc/spapr.c`).
const PSERIES: Bytes = Bytes::from_mib(512);

/// The type of the machine, if given.
pub(super) fn kind(arguments: &Arguments) -> Option<String> {
    arguments.named("machine").filter_map(|machine| machine.properties("type").get("type")).last()
}

/// The memory of a machine without `-m`; `None` for boards with sizes of their own, and if the kind of machine is not known.
pub(super) fn default_ram(arguments: &Arguments) -> Option<Bytes> {
    // It chooses the size by the device that it plays.
    if Launcher::of_arguments(arguments) == Launcher::AndroidEmulator {
        return None;
    }
    let kind = kind(arguments);
    let kind = kind.as_deref();
    let is = |names: &[&str]| kind.is_some_and(|kind| names.iter().any(|name| kind.starts_with(name)));
    match architecture(&arguments.program) {
        _ if kind == Some("none") => None,
        Some("x86_64" | "amd64" | "i386" | "s390x") => Some(DEFAULT_MEMORY),
        Some("aarch64" | "arm" | "riscv64" | "riscv32") => is(&["virt"]).then_some(DEFAULT_MEMORY),
        Some("ppc64" | "ppc64le") => (kind.is_none() || is(&["pseries"])).then_some(PSERIES),
        Some(_) => None,
        None if is(&["pseries"]) => Some(PSERIES),
        None => is(&["pc", "q35", "microvm", "s390-ccw-virtio"]).then_some(DEFAULT_MEMORY),
    }
}

/// The architecture in the name of a program: `/usr/bin/qemu-system-x86_64`.
fn architecture(program: &str) -> Option<&str> {
    let name = Path::new(program).file_name()?.to_str()?;
    let (_, rest) = name.split_once("qemu-system-")?;
    rest.split(['-', '.']).next()
}
