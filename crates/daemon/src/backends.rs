//! The kinds of VMMs that the daemon looks for. A new backend is added here.

use memtide_config::Settings;
use memtide_host::Root;
use memtide_vmm::Backend;
use memtide_vmm::libvirt::ConfiguredDaemon;
use memtide_vmm::qemu::{ConfiguredGuest, Qemu};
use memtide_vmm::uml::Uml;

use crate::helpers::knocks::Listener;

/// The backends of this host.
#[must_use]
pub fn of_this_host(settings: &Settings) -> Vec<Box<dyn Backend>> {
    let configured = settings.guests.iter();
    let configured =
        configured.map(|guest| ConfiguredGuest { name: guest.name.clone(), qmp: guest.qmp.clone() });
    let proc = Root::system().proc("");
    // Beside the API's socket: there memtide may create files.
    let replies = settings.socket.with_file_name("mconsole");
    let qemu = Qemu::new(&proc, configured).asking(Listener::default());
    let qemu = qemu.with_libvirt(libvirt_daemons(settings));
    vec![Box::new(qemu), Box::new(Uml::new(&proc, replies))]
}

/// The daemons of libvirt that the settings name.
#[must_use]
pub fn libvirt_daemons(settings: &Settings) -> Vec<ConfiguredDaemon> {
    let daemons = settings.libvirt.iter().map(|daemon| ConfiguredDaemon {
        socket: daemon.socket.clone(),
        monitor_commands: daemon.monitor_commands,
    });
    daemons.collect()
}
