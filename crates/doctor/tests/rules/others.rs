//! VMMs and guests that do not count.

use super::*;

#[test]
fn guests_of_another_user_are_counted_as_they_are() {
    let outside = |count: u32| {
        found(|facts| {
            let all = (0..count).map(|n| Outsider::new("web", n, Some(1001)));
            facts.outsiders = Outsiders::of(all.collect());
        })
    };
    assert!(
        text(&outside(1)[0]).contains("counts its memory with the host's other use, and does not manage it")
    );
    let two = text(&outside(2)[0]);
    assert!(two.contains("belong to a user") && two.contains("does not manage them\n"), "{two}");
    let nine = text(&outside(9)[0]);
    assert!(nine.contains("; 1 more such guest is not listed"), "{nine}");
}

#[test]
fn what_runs_guests_and_is_not_counted_is_named() {
    let with = |kind, name: &'static str, pids: &'static [u32]| {
        move |facts: &mut Facts| facts.others = pids.iter().map(|&pid| other(pid, name, kind)).collect()
    };
    gives(
        WARNING,
        "vmm.not-counted",
        "Firecracker (processes 51, 52) runs guests",
        with(OtherKind::Known, "Firecracker", &[51, 52]),
    );
    gives(
        WARNING,
        "vmm.not-counted",
        "its growth is in no promise",
        with(OtherKind::Known, "VirtualBox", &[51]),
    );
    gives(WARNING, "vmm.not-counted", "name = \"vm-run\"", with(OtherKind::HoldsKvm, "vm-run", &[51]));
    gives(
        HINT,
        "vmm.device-model",
        "QEMU (process 51) is a device model of Xen",
        with(OtherKind::XenDeviceModel, "QEMU", &[51]),
    );
}

fn other(pid: u32, name: &str, kind: OtherKind) -> OtherVmm {
    OtherVmm { pid, name: name.to_owned(), kind, parent: None }
}
