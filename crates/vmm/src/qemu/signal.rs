//! The relevant events. After one of them, a guest is worth an early look.

/// An event of a dedicated monitor. QEMU's names are in capitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `BALLOON_CHANGE`: the guest's actual changed; at most one event a second.
    BalloonChange,
    /// `RESET`: the guest starts again. Its balloon's numbers are from before the reset.
    Reset,
    /// `STOP`: the vCPUs have stopped.
    Stop,
    /// `RESUME`: the vCPUs run again.
    Resume,
    /// `SHUTDOWN`: the guest is ending.
    Shutdown,
    /// `MEMORY_DEVICE_SIZE_CHANGE`: the guest plugged or unplugged memory of a virtio-mem device.
    MemoryDeviceSizeChange,
    /// `DEVICE_DELETED`: a device was removed, perhaps memory or the balloon.
    DeviceDeleted,
    /// `MIGRATION`: a migration began, ended or failed.
    Migration,
}

impl Signal {
    /// The signal of the event `name`; `None` for all other events.
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
