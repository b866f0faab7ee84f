//! What is known of a guest's memory and its VMM, for people, with the place that tells it. No decision reads it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// One fact about a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The subject.
    pub about: About,
    /// The fact, as printable text.
    pub says: String,
    /// The place that tells it.
    pub source: FactSource,
    /// The size that it tells, if it tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

/// What a fact is about. Facts are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Its size.
    Size,
    /// A piece of its RAM.
    Ram,
    /// Memory of another device, which is no RAM.
    Device,
    /// What its process has mapped.
    Mapped,
    /// Two facts that contradict each other, and which one counts.
    Contradiction,
    /// Whether the host gains what it gives.
    Gives,
    /// The NUMA node that its memory is bound to.
    Node,
    /// The monitor that memtide uses.
    Monitor,
    /// The program that started it.
    Launcher,
    /// Who else sets its balloon.
    Balloon,
    /// Who polls its statistics besides memtide.
    Polling,
    /// What its own description asks for.
    Terms,
    /// The user whose process it is.
    User,
}

/// The place that tells a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactSource {
    /// The VMM's command line.
    CommandLine,
    /// A file of options that the command line names.
    OptionFile,
    /// A default of the VMM.
    Default,
    /// The VMM, asked now.
    Vmm,
    /// libvirt's daemon.
    Libvirt,
    /// The kernel.
    Kernel,
    /// memtide's configuration.
    Configuration,
}

impl Fact {
    /// A fact.
    #[must_use]
    pub fn new(about: About, says: impl Into<String>, source: FactSource) -> Self {
        Self { about, says: says.into(), source, bytes: None }
    }

    /// The guest's size.
    #[must_use]
    pub fn size(bytes: Bytes, source: FactSource) -> Self {
        Self { bytes: Some(bytes), ..Self::new(About::Size, bytes.to_string(), source) }
    }
}

/// A heading of one or two words.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Size => "size",
            Self::Ram => "RAM",
            Self::Device => "beside RAM",
            Self::Mapped => "mapped",
            Self::Contradiction => "contradiction",
            Self::Gives => "gives back",
            Self::Node => "node",
            Self::Monitor => "monitor",
            Self::Launcher => "started by",
            Self::Balloon => "its balloon",
            Self::Polling => "its statistics",
            Self::Terms => "its terms",
            Self::User => "user",
        })
    }
}

impl fmt::Display for FactSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CommandLine => "the command line",
            Self::OptionFile => "the file of -readconfig",
            Self::Default => "a default of its VMM",
            Self::Vmm => "its VMM",
            Self::Libvirt => "libvirt",
            Self::Kernel => "the kernel",
            Self::Configuration => "memtide's configuration",
        })
    }
}
