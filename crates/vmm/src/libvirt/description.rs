//! A domain's description: the parts of its XML that memtide needs (libvirt's `docs/formatdomain.rst`).
//!
//! Anyone who may define domains writes this text. What cannot be read in it counts as not given.

use std::collections::BTreeMap;
use std::path::PathBuf;

use memtide_agent::wire::PORT;
use memtide_model::{Bytes, Hotplug, TermError, Terms};
use roxmltree::{Document, Node, ParsingOptions};

use super::xdr::Malformed;

/// The namespace of memtide's own metadata.
pub const NAMESPACE: &str = "urn:memtide:libvirt:1";
/// A description has no more bytes and nodes.
const LONGEST: usize = 256 << 10;
const MOST_NODES: u32 = 20_000;
/// No tag has more attributes, and no description more namespaces: the reader's work grows with the square of both.
const MOST_ATTRIBUTES: usize = 256;
/// No guest has this much memory, in KiB (1 PiB).
const MOST_KIB: u64 = 1 << 40;

/// A running domain as libvirt describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Description {
    /// Memory that the guest keeps with an empty balloon: all RAM, with what virtio-mem has plugged.
    pub(super) full: Bytes,
    /// Its balloon device; `None`: it has none.
    pub(super) balloon: Option<BalloonDevice>,
    /// All virtio-mem devices together.
    pub(super) hotplug: Option<Hotplug>,
    /// It also reads from disks that another process serves, or from shared directories: QEMU does not count that.
    pub(super) disks_elsewhere: bool,
    /// The socket of the port for memtide's agent.
    pub(super) agent: Option<PathBuf>,
    /// What memtide's metadata asks for.
    pub(super) terms: Terms,
    /// What is wrong there.
    pub(super) mistakes: Vec<TermError>,
}

/// A domain's balloon device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BalloonDevice {
    pub(super) deflate_on_oom: bool,
    pub(super) free_page_reporting: bool,
    /// Seconds between two polls of the statistics; 0: off.
    pub(super) period: u32,
    /// The name of the device in QEMU.
    pub(super) alias: Option<String>,
}

impl Description {
    /// Reads a domain's XML.
    pub(super) fn read(xml: &str) -> Result<Self, Malformed> {
        let document = parse(xml)?;
        let domain = document.root_element();
        let total = size(child(domain, "memory").ok_or(Malformed)?).ok_or(Malformed)?;
        let devices = child(domain, "devices");
        let memory = || children(devices, "memory");
        let mut full = total;
        let mut hotplug = None;
        for device in memory() {
            let target = child(device, "target");
            let of = |name: &str| target.and_then(|target| child(target, name)).and_then(size);
            match device.attribute("model") {
                Some("virtio-mem") => {
                    let (most, plugged) = (of("size").unwrap_or_default(), of("current").unwrap_or_default());
                    full = full.saturating_sub(most).saturating_add(plugged);
                    let all = hotplug.get_or_insert(Hotplug {
                        requested: Bytes::ZERO,
                        plugged: Bytes::ZERO,
                        most: Bytes::ZERO,
                    });
                    all.requested = all.requested.saturating_add(of("requested").unwrap_or_default());
                    all.plugged = all.plugged.saturating_add(plugged);
                    all.most = all.most.saturating_add(most);
                }
                Some("dimm") => {}
                // NVDIMM, virtio-pmem, SGX memory: no RAM.
                _ => full = full.saturating_sub(of("size").unwrap_or_default()),
            }
        }
        let (terms, mistakes) = Terms::read(&texts(domain));
        Ok(Self {
            full,
            balloon: children(devices, "memballoon").next().and_then(balloon),
            hotplug,
            disks_elsewhere: children(devices, "filesystem").next().is_some()
                || children(devices, "disk").any(|disk| disk.attribute("type") == Some("vhostuser"))
                || children(devices, "hostdev").any(|device| device.attribute("type") != Some("usb")),
            agent: children(devices, "channel").find_map(agent),
            terms,
            mistakes,
        })
    }
}

fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn children<'a>(node: Option<Node<'a, 'a>>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.into_iter().flat_map(|node| node.children()).filter(move |child| child.has_tag_name(name))
}

/// A size in the unit that its element names. libvirt writes KiB.
fn size(node: Node<'_, '_>) -> Option<Bytes> {
    let number: u64 = node.text()?.trim().parse().ok()?;
    let kib = match node.attribute("unit").unwrap_or("KiB") {
        "b" | "bytes" => return Some(Bytes::new(number)).filter(|size| size.get() >> 10 <= MOST_KIB),
        "KiB" | "k" => number,
        "MiB" | "M" => number.checked_mul(1 << 10)?,
        "GiB" | "G" => number.checked_mul(1 << 20)?,
        _ => return None,
    };
    (kib <= MOST_KIB).then(|| Bytes::from_kib(kib))
}

fn balloon(node: Node<'_, '_>) -> Option<BalloonDevice> {
    let is_on = |name| node.attribute(name) == Some("on");
    let of_virtio = node.attribute("model").is_some_and(|model| model.starts_with("virtio"));
    of_virtio.then(|| BalloonDevice {
        deflate_on_oom: is_on("autodeflate"),
        free_page_reporting: is_on("freePageReporting"),
        period: child(node, "stats")
            .and_then(|stats| stats.attribute("period")?.parse().ok())
            .unwrap_or_default(),
        alias: child(node, "alias").and_then(|alias| alias.attribute("name")).map(str::to_owned),
    })
}

/// The socket of a channel for memtide's agent.
fn agent(channel: Node<'_, '_>) -> Option<PathBuf> {
    let is_ours = child(channel, "target").and_then(|target| target.attribute("name")) == Some(PORT);
    let source = child(channel, "source").filter(|source| source.attribute("mode") == Some("bind"));
    source.filter(|_| is_ours)?.attribute("path").map(PathBuf::from)
}

/// The terms in the description of a domain that runs or does not, as texts.
pub(super) fn terms_in(xml: &str) -> Result<BTreeMap<String, String>, Malformed> {
    Ok(texts(parse(xml)?.root_element()))
}

fn parse(xml: &str) -> Result<Document<'_>, Malformed> {
    let is_crowded = |tag: &str| tag.bytes().filter(|&byte| byte == b'=').count() > MOST_ATTRIBUTES;
    let namespaces = xml.match_indices("xmlns").take(MOST_ATTRIBUTES + 1).count();
    if xml.len() > LONGEST || xml.split('<').any(is_crowded) || namespaces > MOST_ATTRIBUTES {
        return Err(Malformed);
    }
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).map_err(|_| Malformed)
}

/// The attributes of memtide's element in a domain's metadata.
fn texts(domain: Node<'_, '_>) -> BTreeMap<String, String> {
    let is_ours = |node: &Node<'_, '_>| node.has_tag_name((NAMESPACE, "memtide"));
    let ours = child(domain, "metadata").and_then(|metadata| metadata.children().find(is_ours));
    let attributes = ours.into_iter().flat_map(|node| node.attributes());
    attributes.map(|attribute| (attribute.name().to_owned(), attribute.value().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = r"<domain type='kvm' id='3'><name>web-1</name>
        <metadata><other:x xmlns:other='urn:x'/><m:memtide xmlns:m='urn:memtide:libvirt:1' shares='2000' class='batch'/></metadata>
        <maxMemory slots='16' unit='KiB'>4194304</maxMemory><memory unit='KiB'>1572864</memory><currentMemory unit='KiB'>400000</currentMemory>
        <devices>
          <channel type='unix'><source mode='bind' path='/run/libvirt/qemu/channel/3-web-1/org.memtide.agent.0'/>
            <target type='virtio' name='org.memtide.agent.0' state='disconnected'/></channel>
          <memballoon model='virtio' autodeflate='on' freePageReporting='on'><stats period='10'/><alias name='balloon0'/></memballoon>
          <memory model='virtio-mem'><target><size unit='KiB'>1048576</size><node>0</node><block unit='KiB'>2048</block>
            <requested unit='KiB'>262144</requested><current unit='KiB'>131072</current></target></memory>
        </devices></domain>";

    #[test]
    fn a_running_domain_is_read() {
        let read = Description::read(DOMAIN).unwrap();
        assert_eq!(read.full, Bytes::from_mib(512 + 128));
        let balloon = read.balloon.unwrap();
        assert_eq!((balloon.deflate_on_oom, balloon.free_page_reporting, balloon.period), (true, true, 10));
        assert_eq!(balloon.alias.as_deref(), Some("balloon0"));
        let hotplug = read.hotplug.unwrap();
        assert_eq!(
            (hotplug.requested, hotplug.plugged, hotplug.most),
            (Bytes::from_mib(256), Bytes::from_mib(128), Bytes::from_mib(1024))
        );
        let socket = "/run/libvirt/qemu/channel/3-web-1/org.memtide.agent.0";
        assert_eq!(read.agent, Some(PathBuf::from(socket)));
        assert_eq!((read.terms.class.as_deref(), read.terms.shares), (Some("batch"), Some(2000)));
        assert_eq!(read.mistakes, []);
    }

    #[test]
    fn a_description_that_takes_long_to_read_is_not_read() {
        let of = |inner: &str| format!("<domain><memory>1024</memory>{inner}</domain>");
        let many: String = (0..5_000).map(|number| format!(" a{number}=''")).collect();
        let nested = "<a xmlns:b='c'>".repeat(5_000) + &"</a>".repeat(5_000);
        for heavy in [format!("<x{many}/>"), nested, "<x/>".repeat(100_000)] {
            assert_eq!(Description::read(&of(&heavy)), Err(Malformed));
        }
    }

    #[test]
    fn what_is_missing_or_absurd_is_not_given() {
        let bare = Description::read("<domain><memory>1024</memory></domain>").unwrap();
        assert_eq!(bare, Description { full: Bytes::from_mib(1), ..Description::default() });
        let none = "<domain><memory>1024</memory><devices><memballoon model='none'/></devices></domain>";
        assert_eq!(Description::read(none).unwrap().balloon, None);
        for absurd in [
            "",
            "<domain/>",
            "<domain><memory>-1</memory></domain>",
            "<domain><memory unit='GiB'>99999999999999</memory></domain>",
            "<domain><memory unit='yards'>1</memory></domain>",
            "<!DOCTYPE d [<!ENTITY a 'b'>]><domain><memory>&a;</memory></domain>",
        ] {
            assert_eq!(Description::read(absurd), Err(Malformed), "{absurd}");
        }
    }
}
