//! A guest that libvirt starts: its machine, kernel, balloon and agent's port are libvirt's, as for any of its users. What the lab alone uses is added as arguments of QEMU.

use std::path::Path;

use memtide_model::Bytes;

use super::GuestBuilder;
use super::qemu::{APPEND, Files};
use crate::error::LabError;
use crate::machine::accel::Accel;
use crate::machine::lab::Run;

/// The namespace of further arguments (libvirt's `docs/kbase/qemu-passthrough-security.rst`).
const OF_QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// More ports than the lab's guests have devices.
const PORTS: usize = 8;

impl GuestBuilder {
    /// The XML of its domain, with QEMU started by `emulator`.
    ///
    /// # Errors
    /// If the lab was prepared without QEMU.
    pub(super) fn domain(&self, run: &Run, files: &Files, emulator: &Path) -> Result<String, LabError> {
        let lab = run.lab().qemu()?;
        let on = |yes| if yes { "on" } else { "off" };
        let (kind, cpu, features) = match self.accel.unwrap_or(lab.accel) {
            Accel::Kvm => ("kvm", "host-passthrough", String::new()),
            Accel::Tcg => {
                // As [`Accel::argument`] bounds it.
                let cache = "<tcg><tb-cache unit='MiB'>32</tb-cache></tcg>".to_owned();
                ("qemu", "maximum", cache)
            }
        };
        let agent = match self.agent {
            true => format!(
                "<channel type='unix'><source mode='bind' path='{}'/><target type='virtio' name='{}'/></channel>",
                escaped(&files.agent.to_string_lossy()),
                memtide_agent::wire::PORT
            ),
            false => String::new(),
        };
        let disk = self.disk.as_ref().map_or_else(String::new, |disk| {
            let cache = if disk.direct() { "directsync" } else { "writethrough" };
            let file = escaped(&disk.path.to_string_lossy());
            format!(
                "<disk type='file' device='disk'><driver name='qemu' type='raw' cache='{cache}' io='threads'/>\
                 <source file='{file}'/><target dev='vda' bus='virtio'/><readonly/></disk>"
            )
        });
        // libvirt gives each device a port, and makes as many ports as there are devices.
        let port = "<controller type='pci' model='pcie-root-port'/>";
        let ports = match self.hotplug {
            true => format!("<controller type='pci' index='0' model='pcie-root'/>{}", port.repeat(PORTS)),
            false => String::new(),
        };
        let arguments: String = self
            .of_the_lab(files)
            .iter()
            .map(|arg| format!("<qemu:arg value='{}'/>", escaped(arg)))
            .collect();
        Ok(format!(
            "<domain type='{kind}' xmlns:qemu='{OF_QEMU}'><name>{name}</name><memory unit='KiB'>{memory}</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{kernel}</kernel><initrd>{initrd}</initrd><cmdline>{APPEND}</cmdline></os>\
             <features><acpi/>{features}</features><cpu mode='{cpu}'/><on_reboot>restart</on_reboot>\
             <devices><emulator>{emulator}</emulator><controller type='usb' model='none'/><controller type='virtio-serial' index='0'/>{ports}{agent}{disk}\
             <memballoon model='virtio' autodeflate='{deflate}' freePageReporting='{reporting}'/></devices>\
             <qemu:commandline>{arguments}</qemu:commandline></domain>",
            name = self.name,
            memory = in_kib(self.memory),
            kernel = escaped(&lab.kernel.vmlinuz(run.lab().cache()).to_string_lossy()),
            initrd = escaped(&lab.initrd.to_string_lossy()),
            emulator = escaped(&emulator.to_string_lossy()),
            deflate = on(self.deflate_on_oom),
            reporting = on(self.free_page_reporting),
        ))
    }
}

const fn in_kib(memory: Bytes) -> u64 {
    memory.get() >> 10
}

/// A text inside XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}
