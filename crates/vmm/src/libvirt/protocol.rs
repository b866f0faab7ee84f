//! What memtide says to libvirt's daemons and hears from them: frames, procedures, arguments and answers.
//!
//! Source of the numbers: `src/remote/remote_protocol.x`, `src/remote/qemu_protocol.x`, `src/rpc/virnetprotocol.x` and
//! `include/libvirt/libvirt-domain.h` of libvirt. A frame is a header of 28 bytes, and a body in [`xdr`](super::xdr).

use std::fmt;

use memtide_model::{Bytes, DiskReads, printable};

use super::xdr::{Malformed, Reader, Writer};

/// The program of almost all procedures, and the one of QEMU's monitor.
const REMOTE: u32 = 0x2000_8086;
const QEMU: u32 = 0x2000_8087;
const VERSION: u32 = 1;
/// The header, with the length before it.
pub(super) const HEADER: usize = 28;
/// The longest frame that is read, in bytes. A domain's description has about 10 KiB.
pub(super) const LONGEST_FRAME: usize = 1 << 20;
/// The longest event that is read, in bytes.
pub(super) const LONGEST_EVENT: usize = 64 << 10;
/// The longest part of a refusal that is kept, in characters.
const LONGEST_REFUSAL: usize = 200;
/// `VIR_DOMAIN_AFFECT_LIVE`, `VIR_DOMAIN_AFFECT_CONFIG`.
const LIVE: u32 = 1;
const CONFIG: u32 = 2;
/// `VIR_CONNECT_RO`.
const READ_ONLY: u32 = 1;
/// `VIR_DOMAIN_METADATA_ELEMENT`.
const ELEMENT: i32 = 2;
/// The most statistics of a domain: more than libvirt has tags for.
const MOST_STATS: u32 = 64;
/// The most statistics of disks: more than libvirt has names for, and as many as it lets a client ask for.
const MOST_DISK_STATS: i32 = 16;
/// The most parameters in an answer.
const MOST_PARAMETERS: usize = 256;

/// What a daemon can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Procedure {
    ConnectOpen,
    DomainGetXmlDesc,
    DomainLookupByName,
    DomainLookupByUuid,
    AuthList,
    AuthPolkit,
    DomainMemoryStats,
    DomainAttachDeviceFlags,
    DomainDetachDeviceFlags,
    DomainGetState,
    DomainBlockStatsFlags,
    DomainSetMemoryFlags,
    DomainSetMetadata,
    DomainGetJobStats,
    DomainSetMemoryStatsPeriod,
    RegisterEvent,
    MonitorCommand,
}

impl Procedure {
    /// Its program and its number.
    pub(super) const fn number(self) -> (u32, i32) {
        match self {
            Self::ConnectOpen => (REMOTE, 1),
            Self::DomainGetXmlDesc => (REMOTE, 14),
            Self::DomainLookupByName => (REMOTE, 23),
            Self::DomainLookupByUuid => (REMOTE, 24),
            Self::AuthList => (REMOTE, 66),
            Self::AuthPolkit => (REMOTE, 70),
            Self::DomainMemoryStats => (REMOTE, 159),
            Self::DomainAttachDeviceFlags => (REMOTE, 160),
            Self::DomainDetachDeviceFlags => (REMOTE, 161),
            Self::DomainSetMemoryFlags => (REMOTE, 204),
            Self::DomainGetState => (REMOTE, 212),
            Self::DomainBlockStatsFlags => (REMOTE, 243),
            Self::DomainSetMetadata => (REMOTE, 264),
            Self::DomainGetJobStats => (REMOTE, 298),
            Self::DomainSetMemoryStatsPeriod => (REMOTE, 308),
            Self::RegisterEvent => (REMOTE, 316),
            Self::MonitorCommand => (QEMU, 1),
        }
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An answer that worked or failed.
    Reply { failed: bool },
    /// An event.
    Message,
    /// Anything else: memtide asks for no streams.
    Other,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    program: u32,
    procedure: i32,
    pub(super) kind: Kind,
    pub(super) serial: u32,
}

impl Header {
    /// Reads a header without the length before it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (program, version, procedure) = (reader.unsigned()?, reader.unsigned()?, reader.signed()?);
        let (kind, serial, status) = (reader.signed()?, reader.unsigned()?, reader.unsigned()?);
        if version != VERSION {
            return Err(Malformed);
        }
        let kind = match kind {
            1 => Kind::Reply { failed: status != 0 },
            2 if program == REMOTE => Kind::Message,
            _ => Kind::Other,
        };
        Ok(Self { program, procedure, kind, serial })
    }

    /// What an event is about.
    pub(super) fn event(&self) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.number() == self.procedure)
    }

    /// Whether it can be the answer to a call of `procedure`.
    pub(super) fn answers(&self, procedure: Procedure) -> bool {
        (self.program, self.procedure) == procedure.number()
    }
}

/// The frame of a call.
pub(super) fn call(procedure: Procedure, serial: u32, body: &[u8]) -> Vec<u8> {
    let (program, number) = procedure.number();
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    Writer::default()
        .unsigned(length)
        .unsigned(program)
        .unsigned(VERSION)
        .signed(number)
        .signed(0)
        .unsigned(serial)
        .unsigned(0)
        .fixed(body)
        .done()
}

/// The events that memtide hears, of all domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A domain was started, suspended, resumed, stopped, …
    Lifecycle,
    /// The guest started again.
    Reboot,
    /// Its balloon moved.
    BalloonChange,
    /// A device was added or removed, perhaps memory or the balloon.
    DeviceAdded,
    DeviceRemoved,
    /// A job (a migration, a save, a backup) has ended.
    JobCompleted,
    /// Somebody wrote its metadata.
    MetadataChange,
    /// The guest plugged or unplugged memory of a virtio-mem device.
    MemoryDeviceSizeChange,
}

impl Event {
    pub(super) const ALL: [Self; 8] = [
        Self::Lifecycle,
        Self::Reboot,
        Self::BalloonChange,
        Self::DeviceAdded,
        Self::DeviceRemoved,
        Self::JobCompleted,
        Self::MetadataChange,
        Self::MemoryDeviceSizeChange,
    ];

    /// `VIR_DOMAIN_EVENT_ID_…`.
    const fn id(self) -> i32 {
        match self {
            Self::Lifecycle => 0,
            Self::Reboot => 1,
            Self::BalloonChange => 13,
            Self::DeviceRemoved => 15,
            Self::DeviceAdded => 19,
            Self::JobCompleted => 21,
            Self::MetadataChange => 23,
            Self::MemoryDeviceSizeChange => 26,
        }
    }

    /// `REMOTE_PROC_DOMAIN_EVENT_CALLBACK_…`.
    const fn number(self) -> i32 {
        match self {
            Self::Lifecycle => 318,
            Self::Reboot => 319,
            Self::BalloonChange => 331,
            Self::DeviceRemoved => 333,
            Self::DeviceAdded => 354,
            Self::JobCompleted => 363,
            Self::MetadataChange => 379,
            Self::MemoryDeviceSizeChange => 438,
        }
    }

    /// The arguments that register it for all domains.
    pub(super) fn registration(self) -> Vec<u8> {
        Writer::default().signed(self.id()).unsigned(0).done()
    }

    /// The domain that an event is about: each one has it after the number of its registration.
    pub(super) fn domain(body: &[u8]) -> Result<Uuid, Malformed> {
        let mut reader = Reader::new(body);
        reader.signed()?;
        reader.skip_text()?;
        Ok(Uuid(reader.fixed()?))
    }
}

/// The identity of a domain, as libvirt gives it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// Reads the usual form, in hexadecimal digits; dashes do not matter.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        if digits.len() == 32 { bytes.try_into().ok().map(Self) } else { None }
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A domain in a daemon's words. Calls about it carry all of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Its number since its start; −1 if it does not run.
    pub id: i32,
}

impl Domain {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let name = reader.text()?;
        let uuid = Uuid(reader.fixed()?);
        Ok(Self { name, uuid, id: reader.signed()? })
    }

    fn write(&self) -> Writer {
        Writer::default().text(&self.name).fixed(&self.uuid.0).signed(self.id)
    }

    /// Reads the answer to a look for one domain.
    pub(super) fn found(body: &[u8]) -> Result<Self, Malformed> {
        Self::read(&mut Reader::new(body))
    }

    /// The arguments of [`Procedure::DomainMemoryStats`].
    pub(super) fn memory_stats(&self) -> Vec<u8> {
        self.write().unsigned(MOST_STATS).unsigned(0).done()
    }

    /// The arguments of [`Procedure::DomainBlockStatsFlags`]: of all disks together.
    pub(super) fn disk_stats(&self) -> Vec<u8> {
        self.write().text("").signed(MOST_DISK_STATS).unsigned(0).done()
    }

    /// The arguments of [`Procedure::DomainGetXmlDesc`] (without secrets), [`Procedure::DomainGetState`] and [`Procedure::DomainGetJobStats`].
    pub(super) fn with_no_flags(&self) -> Vec<u8> {
        self.write().unsigned(0).done()
    }

    /// The arguments of [`Procedure::DomainSetMemoryFlags`]: the balloon's target now, in whole KiB.
    pub(super) fn set_memory(&self, size: Bytes) -> Vec<u8> {
        self.write().hyper(size.get() >> 10).unsigned(LIVE).done()
    }

    /// The arguments of [`Procedure::DomainSetMemoryStatsPeriod`], in seconds, until the domain ends.
    pub(super) fn set_period(&self, seconds: u32) -> Vec<u8> {
        self.write().signed(i32::try_from(seconds).unwrap_or(i32::MAX)).unsigned(LIVE).done()
    }

    /// The arguments of [`Procedure::DomainAttachDeviceFlags`] and [`Procedure::DomainDetachDeviceFlags`]: a device, until the domain ends.
    pub(super) fn device(&self, xml: &str) -> Vec<u8> {
        self.write().text(xml).unsigned(LIVE).done()
    }

    /// The arguments of [`Procedure::MonitorCommand`].
    pub(super) fn monitor_command(&self, command: &str) -> Vec<u8> {
        self.write().text(command).unsigned(0).done()
    }

    /// The arguments of [`Procedure::DomainSetMetadata`]: an element in a namespace, now and from the next start on; `None` removes it.
    pub(super) fn set_metadata(
        &self,
        element: Option<&str>,
        key: &str,
        namespace: &str,
        kept: bool,
    ) -> Vec<u8> {
        let running = if self.id >= 0 { LIVE } else { 0 };
        let flags = running | if kept { CONFIG } else { 0 };
        self.write()
            .signed(ELEMENT)
            .optional_text(element)
            .optional_text(Some(key))
            .optional_text(Some(namespace))
            .unsigned(flags)
            .done()
    }
}

/// The arguments of [`Procedure::ConnectOpen`].
pub(super) fn open(uri: &str, read_only: bool) -> Vec<u8> {
    Writer::default().optional_text(Some(uri)).unsigned(if read_only { READ_ONLY } else { 0 }).done()
}

/// The arguments of [`Procedure::DomainLookupByUuid`].
pub(super) fn by_uuid(uuid: Uuid) -> Vec<u8> {
    Writer::default().fixed(&uuid.0).done()
}

/// The arguments of [`Procedure::DomainLookupByName`].
pub(super) fn by_name(name: &str) -> Vec<u8> {
    Writer::default().text(name).done()
}

/// How a daemon lets a client prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Auth {
    /// It need not.
    None,
    /// By the kernel's word, which polkit judges.
    Polkit,
    /// Otherwise: memtide knows no passwords.
    Other,
}

impl Auth {
    /// Reads the answer to [`Procedure::AuthList`]: the first of the ways that memtide knows.
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let count = reader.count(4)?;
        let mut ways = Vec::with_capacity(count);
        for _ in 0..count {
            ways.push(reader.signed()?);
        }
        Ok(match ways {
            ways if ways.contains(&0) => Self::None,
            ways if ways.contains(&2) => Self::Polkit,
            _ => Self::Other,
        })
    }
}

/// The balloon's statistics as libvirt gives them: tags and values (`VIR_DOMAIN_MEMORY_STAT_…`).
pub(super) fn read_memory_stats(body: &[u8]) -> Result<Vec<(i32, u64)>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.count(12)?;
    (0..count).map(|_| Ok((reader.signed()?, reader.hyper()?))).collect()
}

/// The state of a domain, and why it is in it (`VIR_DOMAIN_…`).
pub(super) fn read_state(body: &[u8]) -> Result<(i32, i32), Malformed> {
    let mut reader = Reader::new(body);
    Ok((reader.signed()?, reader.signed()?))
}

/// Reads the answer to [`Procedure::DomainBlockStatsFlags`]; `None` if nothing was read: then the domain does not read from disks that QEMU counts.
pub(super) fn read_disk_stats(body: &[u8]) -> Result<Option<DiskReads>, Malformed> {
    let (mut bytes, mut took_us) = (0, None);
    for (name, value) in read_parameters(&mut Reader::new(body))? {
        match name.as_str() {
            "rd_bytes" => bytes = value,
            "rd_total_times" => took_us = Some(value / 1_000),
            _ => {}
        }
    }
    Ok((bytes > 0).then_some(DiskReads { bytes: Bytes::new(bytes), took_us }))
}

/// Reads typed parameters (`VIR_TYPED_PARAM_…`): the whole numbers among them that are not negative.
fn read_parameters(reader: &mut Reader<'_>) -> Result<Vec<(String, u64)>, Malformed> {
    let count = reader.count(12)?;
    if count > MOST_PARAMETERS {
        return Err(Malformed);
    }
    let mut parameters = Vec::with_capacity(count);
    for _ in 0..count {
        let name = reader.text()?;
        // int, unsigned, long, unsigned long, double, boolean, string.
        let value = match reader.signed()? {
            1 => u64::try_from(reader.signed()?).ok(),
            2 => Some(reader.unsigned()?.into()),
            // A long that is negative is larger than any count.
            3 | 4 => Some(reader.hyper()?).filter(|value| i64::try_from(*value).is_ok()),
            5 => Some(reader.hyper()?).and(None),
            6 => Some(reader.unsigned()?).and(None),
            7 => Some(reader.text()?).and(None),
            _ => return Err(Malformed),
        };
        parameters.extend(value.map(|value| (name, value)));
    }
    Ok(parameters)
}

/// A job of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// Whether it is under way.
    pub(super) is_active: bool,
    /// What it does (`VIR_DOMAIN_JOB_OPERATION_…`); 0 if the daemon does not say it.
    pub(super) operation: i32,
}

impl Job {
    /// A migration to this host.
    pub(super) const INCOMING: Self = Self { is_active: true, operation: 4 };

    /// Reads the answer to [`Procedure::DomainGetJobStats`].
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let kind = reader.signed()?;
        // `VIR_DOMAIN_JOB_BOUNDED`, `VIR_DOMAIN_JOB_UNBOUNDED`.
        let is_active = matches!(kind, 1 | 2);
        let mut operation = 0;
        for (name, value) in read_parameters(&mut reader)? {
            if name == "operation" {
                operation = i32::try_from(value).unwrap_or_default();
            }
        }
        Ok(Self { is_active, operation })
    }
}

/// Why a daemon refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// `VIR_ERR_…`.
    pub(super) code: i32,
    /// Its words: printable, and of limited length.
    message: String,
}

impl Refusal {
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let (code, _domain) = (reader.signed()?, reader.signed()?);
        let message = reader.optional_text()?.unwrap_or_default();
        let message = printable(&message).chars().take(LONGEST_REFUSAL).collect();
        Ok(Self { code, message })
    }

    /// Whether there is no such domain, or it does not run.
    pub(super) const fn is_about_a_missing_domain(&self) -> bool {
        // VIR_ERR_NO_DOMAIN, VIR_ERR_OPERATION_INVALID
        matches!(self.code, 42 | 55)
    }

    /// Whether the daemon cannot do this for this domain now.
    pub(super) const fn is_unsupported(&self) -> bool {
        // VIR_ERR_OPERATION_UNSUPPORTED
        self.code == 84
    }

    /// Whether the daemon does not let memtide do this.
    pub(super) const fn is_a_lack_of_rights(&self) -> bool {
        // VIR_ERR_OPERATION_DENIED, VIR_ERR_AUTH_FAILED, VIR_ERR_AUTH_CANCELLED, VIR_ERR_ACCESS_DENIED, VIR_ERR_AUTH_UNAVAILABLE
        matches!(self.code, 29 | 45 | 79 | 88 | 94)
    }
}

/// Reads an answer that is one text.
pub(super) fn read_text(body: &[u8]) -> Result<String, Malformed> {
    Reader::new(body).text()
}
