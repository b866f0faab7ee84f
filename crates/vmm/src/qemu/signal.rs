//! The events that matter: after one of these, a guest is worth a look before its turn.

/// An event of a held monitor. QEMU's names in capitals are theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `BALLOON_CHANGE`: the guest keeps more or less memory than before; at most one a second.
    BalloonChange,
    /// `RESET`: the guest starts anew; its balloon's numbers are those of its former life.
    Reset,
    /// `STOP`: the vCPUs stand still.
    Stop,
    /// `RESUME`: the vCPUs run again.
    Resume,
    /// `SHUTDOWN`: the guest is ending.
    Shutdown,
    /// `MEMORY_DEVICE_SIZE_CHANGE`: the guest plugged or unplugged memory of a virtio-mem device.
    MemoryDeviceSizeChange,
    /// `DEVICE_DELETED`: a device, perhaps memory or the balloon, is gone.
    DeviceDeleted,
    /// `MIGRATION`: a migration began, ended or failed.
    Migration,
}

impl Signal {
    /// The signal of the event `name`; `None` for the many others.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "BALLOON_CHANGE" => Self::BalloonChange,
            "RESET" => Self::Reset,
            "STOP" => Self::Stop,
            "RESUME" => Self::Resume,
            "SHUTDOWN" => Self::Shutdown,
            "MEMORY_DEVICE_SIZE_CHANGE" => Self::MemoryDeviceSizeChange,
            "DEVICE_DELETED" => Self::DeviceDeleted,
            "MIGRATION" => Self::Migration,
            _ => return None,
        })
    }
}
