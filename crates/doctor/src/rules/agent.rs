//! The agent in a guest, and the port that leads to it.

use memtide_model::Absence;

use super::of_guest;
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};
use crate::quote::{domain, file_name};

/// The consequence of a guest without an agent.
const BLIND: &str =
    "memtide does not see which page cache it reads again, and its balloon takes hot cache as well as cold";

/// There is no port for an agent. The balloon and its statistics come first.
pub(super) fn port(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let works = guest.managed && guest.told.stats.fresh().is_some();
    if !works || guest.agent.is_some() || guest.equipment.is_none() {
        return None;
    }
    let finding = of_guest(guest, "agent.none", Severity::Hint, "no port for memtide-agent").costs(BLIND);
    let finding = match guest.is_of_libvirt() {
        true => finding.fix(
            format!("virsh edit {} (from the next start)", domain(&guest.name)),
            ["<channel type='unix'><target type='virtio' name='org.memtide.agent.0'/></channel>".to_owned()],
        ),
        false => finding.fix(
            "QEMU's command line (from the next start; the directory must exist)",
            [
                "-device virtio-serial-pci".to_owned(),
                format!(
                    "-chardev socket,id=agent,path=/run/vm/{}-agent.sock,server=on,wait=off",
                    file_name(&guest.name)
                ),
                "-device virtserialport,chardev=agent,name=org.memtide.agent.0".to_owned(),
            ],
        ),
    };
    Some(finding.fix(
        "in the guest",
        ["apt install ./memtide-agent_*.deb   # made by `make deb-agent`; docs/agent.md has other ways"],
    ))
}

/// There is a port, and nobody answers at its other end.
pub(super) fn silent(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    guest.agent.as_ref().filter(|_| guest.managed)?;
    let why = guest.told.agent.why_not()?;
    // Nobody asked: only the daemon that manages connects to the port.
    if matches!(why, Absence::Unsupported | Absence::NotYet) {
        return None;
    }
    let fact = format!("the agent does not answer: {why}");
    let finding = of_guest(guest, "agent.silent", Severity::Warning, &fact).costs(BLIND);
    Some(finding.fix("in the guest", ["systemctl enable --now memtide-agent", "memtide-agent status"]))
}
