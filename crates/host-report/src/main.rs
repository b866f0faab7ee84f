//! Prints everything that the readers of `memtide-host` see, as JSON: `host-report [--root DIR] [--pid PID]...`. Or reclaims memory:
//! `host-report reclaim PID MIB`.
//!
//! Unreadable values appear as objects with an `error`. Processes given with `--pid` are treated as guests: the report subtracts their
//! footprints, and their common cgroup plays the host. `--ram MIB` gives the size of the guests' RAM.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use memtide_host::{
    Cgroup, CgroupReader, CgroupSeen, Footprint, GuestCost, HostError, HostSensor, KsmPages, KsmReader,
    Mappings, Meminfo, ProcessReader, RamBlock, Root, Scratch, SharedRam, Trigger, Vmstat, page_size,
    pressure, reclaim, start_time,
};
use memtide_model::{Budget, Bytes, Limit};
use serde_json::{Value, json};

struct Arguments {
    root: Root,
    pids: Vec<u32>,
    ram: Vec<RamBlock>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("reclaim") {
        return reclaimed();
    }
    match arguments() {
        Ok(arguments) => {
            println!("{:#}", report(&arguments));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("host-report: {error}\nusage: host-report [--root DIR] [--pid PID]... [--ram MIB]...");
            ExitCode::from(2)
        }
    }
}

/// `host-report reclaim PID MIB`: reclaims from the cgroup of a process, and prints the bytes that came back.
fn reclaimed() -> ExitCode {
    let mut words = std::env::args().skip(2);
    let (Some(pid), Some(mib)) = (next(&mut words), next(&mut words)) else { return ExitCode::from(2) };
    let root = Root::system();
    let pid = u32::try_from(pid).unwrap_or(u32::MAX);
    let done = start_time(&root, pid)
        .map_err(Into::into)
        .and_then(|start| reclaim(&root, pid, start, Bytes::from_mib(mib)));
    match done {
        Ok(bytes) => println!("{}", bytes.get()),
        Err(error) => println!("{error}"),
    }
    ExitCode::SUCCESS
}

fn next(words: &mut impl Iterator<Item = String>) -> Option<u64> {
    words.next()?.parse().ok()
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let mut parsed = Arguments { root: Root::system(), pids: Vec::new(), ram: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--root" => parsed.root = Root::at(value),
            "--pid" => parsed.pids.push(value.parse()?),
            "--ram" => parsed.ram.push(RamBlock::Size(Bytes::from_mib(value.parse()?))),
            _ => return Err(format!("unknown option {word}").into()),
        }
    }
    Ok(parsed)
}

fn report(arguments: &Arguments) -> Value {
    let Arguments { root, pids, .. } = arguments;
    let mut scratch = Scratch::default();
    let ksm = KsmReader::open(root).and_then(|reader| reader.read(&mut scratch)).unwrap_or_default();
    json!({
        "meminfo": or_error(Meminfo::read(root), meminfo),
        "swap": or_error(Vmstat::read(root), |vmstat| json!(vmstat.swap(page_size()))),
        "pressure": or_error(pressure::read(root), |pressure| json!(pressure)),
        "trigger": or_error(trigger(root), |()| json!("accepted")),
        "ksm": { "pages_shared": ksm.shared, "pages_sharing": ksm.sharing },
        "host": or_error(host(root, pids, ksm), |host| host),
        "processes": pids.iter().map(|&pid| (pid.to_string(), process(arguments, pid, ksm))).collect::<serde_json::Map<_, _>>(),
        "own_cgroup": or_error(cgroup_of(root, std::process::id()), |cgroup| cgroup),
    })
}

fn or_error<T>(result: Result<T, HostError>, show: impl FnOnce(T) -> Value) -> Value {
    match result {
        Ok(value) => show(value),
        Err(error) => {
            let cause = error.source().map(ToString::to_string);
            json!({ "error": error.to_string(), "cause": cause, "absence": error.absence() })
        }
    }
}

fn meminfo(seen: Meminfo) -> Value {
    json!({
        "total": seen.total, "free": seen.free, "available": seen.available, "buffers": seen.buffers,
        "cached": seen.cached, "shmem": seen.shmem, "anon": seen.anon, "dirty": seen.dirty,
        "swap_total": seen.swap_total, "swap_free": seen.swap_free,
    })
}

fn trigger(root: &Root) -> Result<(), HostError> {
    Trigger::open(&root.proc("pressure/memory"), Duration::from_millis(200), Trigger::WINDOW).map(drop)
}

fn host(root: &Root, pids: &[u32], ksm: KsmPages) -> Result<Value, HostError> {
    let small_host = Cgroup::small_host(root, pids, Meminfo::read(root)?.total)?;
    let mut sensor = HostSensor::open(root, Budget::Host)?;
    sensor.set_small_host(small_host)?;
    let mut guests = GuestCost::default();
    for &pid in pids {
        let cost = footprint(root, pid, ksm)?.total();
        guests.all = guests.all.saturating_add(cost);
        guests.in_small_host = guests.in_small_host.saturating_add(cost);
    }
    let small_host = sensor.small_host().map(|cgroup| cgroup.dir().display().to_string());
    Ok(json!({ "small_host": small_host, "seen": sensor.observe(guests)? }))
}

fn footprint(root: &Root, pid: u32, ksm: KsmPages) -> Result<Footprint, HostError> {
    let mut reader = ProcessReader::open(root, pid)?;
    if let Ok(ram) = SharedRam::find(root, pid, &[]) {
        reader.set_shared_ram(ram);
    }
    reader.footprint(ksm, &mut Scratch::default())
}

fn process(Arguments { root, ram, .. }: &Arguments, pid: u32, ksm: KsmPages) -> Value {
    json!({
        "start_time": or_error(memtide_host::start_time(root, pid), |ticks| json!(ticks)),
        "footprint": or_error(footprint(root, pid, ksm), |seen| json!({
            "resident": seen.statm.resident, "shared": seen.statm.shared, "merged": seen.merged,
            "blocks": seen.blocks, "total": seen.total(),
        })),
        "mappings": or_error(Mappings::read(root, pid, ram), |seen| json!({
            "ram_resident": seen.ram_resident, "ram_missing": seen.ram_missing,
            "other_resident": seen.other_resident, "other_swapped": seen.other_swapped,
            "guest_visible": seen.guest_visible,
            "code_buffer": { "size": seen.code_buffer.size, "resident": seen.code_buffer.resident },
        })),
        "cgroup": or_error(cgroup_of(root, pid), |cgroup| cgroup),
    })
}

fn cgroup_of(root: &Root, pid: u32) -> Result<Value, HostError> {
    let Some(cgroup) = Cgroup::of(root, pid)? else { return Ok(Value::Null) };
    let (dir, version) = (cgroup.dir().display().to_string(), format!("{:?}", cgroup.version()));
    let own_limit = cgroup.own_limit()?;
    let seen = CgroupReader::open(cgroup).and_then(|reader| reader.read(&mut Scratch::default()));
    Ok(
        json!({ "dir": dir, "version": version, "own_limit": limit(own_limit), "seen": or_error(seen, cgroup_seen) }),
    )
}

fn limit(limit: Limit) -> Value {
    match limit {
        Limit::Max => json!("max"),
        Limit::At(bytes) => json!(bytes),
    }
}

fn cgroup_seen(seen: CgroupSeen) -> Value {
    json!({
        "limit": limit(seen.limit), "usage": seen.usage, "reclaimable": seen.reclaimable, "anon": seen.anon,
        "shmem": seen.shmem, "pressure": seen.pressure, "may_swap": seen.may_swap, "swap": seen.swap,
        "events": {
            "oom_kills": seen.events.oom_kills, "limit_hits": seen.events.limit_hits, "ooms": seen.events.ooms,
        },
    })
}
