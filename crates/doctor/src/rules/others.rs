//! Processes that run guests and that memtide does not count as guests.

use std::collections::BTreeMap;

use memtide_model::{Outsider, printable};

use crate::advice;
use crate::facts::{Facts, NoSocket, OtherKind};
use crate::finding::{Finding, Severity};
use crate::quote::{file_name, string};

/// At most this many processes are listed.
const MOST: usize = 8;

/// The cost of a VMM that does not count as a guest.
const NOT_COUNTED: &str = "memtide counts its memory with the host's other use; its growth is in no promise: leave room for it with `reserve`";

/// One finding for each kind of program.
pub(super) fn not_counted(facts: &Facts) -> Vec<Finding> {
    let mut programs: BTreeMap<(OtherKind, &str), Vec<u32>> = BTreeMap::new();
    for other in &facts.others {
        programs.entry((other.kind, &other.name)).or_default().push(other.pid);
    }
    programs.into_iter().map(|((kind, name), pids)| of_program(facts, kind, name, &pids)).collect()
}

/// Guests that only their users leave out, one finding for each of these users that is listed.
pub(super) fn outsiders(facts: &Facts) -> Vec<Finding> {
    let mut by_line: BTreeMap<&str, Vec<&Outsider>> = BTreeMap::new();
    for outsider in &facts.outsiders.listed {
        by_line.entry(outsider.line.as_deref().unwrap_or_default()).or_default().push(outsider);
    }
    let more = facts.outsiders.more();
    let of_user = |(line, guests): (&str, Vec<&Outsider>)| {
        let listed = guests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let more = match more {
            0 => String::new(),
            1 => "; 1 more such guest is not listed".to_owned(),
            more => format!("; {more} more such guests are not listed"),
        };
        let [belong, its, it] = match guests.len() {
            1 => ["belongs", "its", "it"],
            _ => ["belong", "their", "them"],
        };
        let fact = format!("{listed} {belong} to a user outside `users`");
        Finding::of_host("users.outside", Severity::Hint, fact)
            .costs(format!(
                "memtide counts {its} memory with the host's other use, and does not manage {it}{more}"
            ))
            .fix(
                format!("{}, to let memtide manage {it}", facts.configuration.path.display()),
                [printable(line)],
            )
    };
    by_line.into_iter().map(of_user).collect()
}

fn of_program(facts: &Facts, kind: OtherKind, name: &str, pids: &[u32]) -> Finding {
    let listed = pids.iter().take(MOST).map(u32::to_string).collect::<Vec<_>>().join(", ");
    let more = if pids.len() > MOST { ", …" } else { "" };
    let plural = if pids.len() == 1 { "" } else { "es" };
    let name = printable(name);
    let process = format!("{name} (process{plural} {listed}{more})");
    match kind {
        OtherKind::XenDeviceModel => Finding::of_host(
            "vmm.device-model",
            Severity::Hint,
            format!("{process} is a device model of Xen: the memory of its domain is not in the process"),
        )
        .costs("memtide counts the process with the host's other use, and manages no domain of Xen"),
        OtherKind::UnknownQemu(why) => unknown_qemu(facts, why, &name, &process),
        OtherKind::Known | OtherKind::HoldsKvm => {
            let what = match kind {
                OtherKind::HoldsKvm => {
                    format!("{process} runs a virtual machine of KVM, and is not known as a VMM")
                }
                _ => format!(
                    "{process} runs guests, and memtide manages only guests of QEMU and of User Mode Linux"
                ),
            };
            let finding = Finding::of_host("vmm.not-counted", Severity::Warning, what).costs(NOT_COUNTED);
            if kind == OtherKind::Known {
                return finding;
            }
            let place = format!(
                "if it is a QEMU with a QMP socket of its own at PATH: {}",
                facts.configuration.path.display()
            );
            let lines =
                ["[[guest]]".to_owned(), format!("name = {}", string(&name)), "qmp = \"PATH\"".to_owned()];
            finding.fix(place, lines)
        }
    }
}

/// A program of another name with QEMU's arguments.
fn unknown_qemu(facts: &Facts, why: NoSocket, name: &str, process: &str) -> Finding {
    let seen = match why {
        NoSocket::Unseen => format!("user {} lacks permission to check", facts.user),
        NoSocket::Tcp => {
            "it does not use KVM, and its QMP monitor is on TCP: memtide uses only Unix sockets".to_owned()
        }
        NoSocket::Hmp => "it does not use KVM, and its monitor is for people (HMP), not QMP".to_owned(),
        NoSocket::NoMonitor => "it does not use KVM, and has no QMP socket".to_owned(),
        NoSocket::Unheard => "it does not use KVM, and does not listen at its QMP socket".to_owned(),
    };
    let fact = format!("{process} has the arguments of a QEMU, but another name: {seen}");
    let finding = Finding::of_host("vmm.not-counted", Severity::Warning, fact).costs(NOT_COUNTED);
    if why == NoSocket::Unseen {
        return finding.fix("a shell", [facts.as_root("doctor")]);
    }
    let socket = advice::monitor(&format!("/run/vm/{}.qmp", file_name(name)));
    finding.fix("its command line, if it is a QEMU (from the next start; the directory must exist)", [socket])
}
