//! The stand-in's answers to commands.

use std::time::Instant;

use serde_json::{Value, json};

use super::Machine;

const DEVICE: &str = "/machine/peripheral/balloon0";

/// The answer to a command, without its identifier, and the events that come with it.
pub(super) fn answer(
    machine: &mut Machine,
    command: &str,
    arguments: &Value,
) -> (Value, Vec<(&'static str, Value)>) {
    let mut events = Vec::new();
    machine.advance();
    let value = match command {
        "query-status" => Ok(json!({"status": machine.status, "running": machine.status == "running"})),
        "query-migrate" => Ok(match &machine.migration {
            Some(status) => json!({"status": status}),
            None => json!({}),
        }),
        "query-balloon" => query_balloon(machine, &mut events),
        "balloon" => balloon(machine, arguments),
        "query-memory-size-summary" => Ok(json!({
            "base-memory": machine.boot,
            "plugged-memory": machine.virtio_mem.map_or(0, |(_, plugged)| plugged),
        })),
        "query-memory-devices" => Ok(machine.virtio_mem.map_or(json!([]), |(requested, plugged)| {
            json!([{"type": "virtio-mem", "data": {"id": "vm0", "requested-size": requested, "size": plugged}}])
        })),
        "query-memdev" => Ok(json!([{"id": "pc.ram", "size": machine.boot, "merge": machine.merge, "share": false}])),
        "query-blockstats" => Ok(json!([
            {"device": "cd0", "stats": {"rd_bytes": 0, "rd_total_time_ns": 0}},
            {"device": "", "qdev": "/machine/peripheral/d0/virtio-backend",
             "stats": {"rd_bytes": machine.disk_reads, "rd_total_time_ns": machine.disk_reads / 100},
             "backing": "x".repeat(machine.disk_layers << 11)},
        ])),
        "qom-list" => Ok(qom_list(machine, arguments)),
        "qom-get" => qom_get(machine, arguments),
        "qom-set" => qom_set(machine, arguments),
        "x-query-virtio-status" if machine.virtio_status => Ok(virtio_status(machine)),
        other => Err(refusal("CommandNotFound", &format!("The command {other} has not been found"))),
    };
    (value.map_or_else(|refusal| refusal, |value| json!({"return": value})), events)
}

pub(super) fn refusal(class: &str, desc: &str) -> Value {
    json!({"error": {"class": class, "desc": desc}})
}

fn no_balloon() -> Value {
    refusal("DeviceNotActive", "No balloon device has been activated")
}

fn query_balloon(machine: &mut Machine, events: &mut Vec<(&'static str, Value)>) -> Result<Value, Value> {
    if !machine.balloon {
        return Err(no_balloon());
    }
    if machine.work.is_some() {
        return Ok(json!({"actual": machine.actual}));
    }
    let goal = machine.target.max(machine.stops_at.min(machine.actual));
    let distance = machine.actual.abs_diff(goal).min(machine.step);
    if machine.driver && machine.status == "running" && distance > 0 {
        let grows = goal > machine.actual;
        machine.actual = if grows { machine.actual + distance } else { machine.actual - distance };
        events.push(("BALLOON_CHANGE", json!({"actual": machine.actual})));
    }
    Ok(json!({"actual": machine.actual}))
}

fn balloon(machine: &mut Machine, arguments: &Value) -> Result<Value, Value> {
    if !machine.balloon {
        return Err(no_balloon());
    }
    let value = arguments["value"].as_u64().filter(|&value| value > 0);
    let value = value.ok_or_else(|| refusal("GenericError", "Parameter 'value' expects a size"))?;
    machine.target = value.min(machine.boot);
    if let Some(work) = &mut machine.work {
        work.asked(machine.target, Instant::now());
    }
    Ok(json!({}))
}

fn qom_list(machine: &Machine, arguments: &Value) -> Value {
    let mut properties = vec![json!({"name": "type", "type": "string"})];
    if arguments["path"] == "/machine/peripheral" && machine.balloon {
        properties.push(json!({"name": "balloon0", "type": "child<virtio-balloon-pci>"}));
    }
    Value::Array(properties)
}

fn qom_get(machine: &mut Machine, arguments: &Value) -> Result<Value, Value> {
    let property = arguments["property"].as_str().unwrap_or_default();
    if arguments["path"] != DEVICE || !machine.balloon {
        return Err(refusal("DeviceNotFound", "no such device"));
    }
    match property {
        "deflate-on-oom" => Ok(json!(machine.deflate_on_oom)),
        "free-page-reporting" => Ok(json!(machine.free_page_reporting)),
        "guest-stats-polling-interval" => Ok(json!(machine.interval)),
        "guest-stats" => Ok(json!({"stats": machine.stats, "last-update": machine.last_update})),
        other => Err(refusal("GenericError", &format!("Property '{other}' not found"))),
    }
}

fn qom_set(machine: &mut Machine, arguments: &Value) -> Result<Value, Value> {
    if arguments["property"] == "merge" {
        let merge = arguments["value"].as_bool();
        machine.merge = merge.ok_or_else(|| refusal("GenericError", "not a truth value"))?;
        return Ok(json!({}));
    }
    if arguments["property"] != "guest-stats-polling-interval" {
        return Err(refusal("GenericError", "Property not found"));
    }
    let seconds = arguments["value"].as_u64().ok_or_else(|| refusal("GenericError", "not a number"))?;
    let starts = machine.interval == 0 && seconds > 0;
    let before = std::mem::replace(&mut machine.interval, seconds);
    if let Some(work) = &mut machine.work {
        work.polled(before, seconds, Instant::now());
        return Ok(json!({}));
    }
    // QEMU asks at once when polling starts. This guest answers at once.
    if starts && machine.driver && machine.sends_statistics {
        machine.update_stats(machine.minor_faults() + 1);
    }
    Ok(json!({}))
}

fn virtio_status(machine: &Machine) -> Value {
    let statuses =
        if machine.driver { vec!["VIRTIO_CONFIG_S_DRIVER_OK: Driver setup and ready"] } else { vec![] };
    let features: Vec<&str> = [
        ("VIRTIO_BALLOON_F_REPORTING: Page reporting VQ enabled", machine.free_page_reporting),
        ("VIRTIO_BALLOON_F_STATS_VQ: Guest memory stats VQ available", machine.sends_statistics),
    ]
    .into_iter()
    .filter_map(|(feature, has)| (machine.driver && has).then_some(feature))
    .collect();
    json!({"name": "virtio-balloon", "status": {"statuses": statuses}, "guest-features": {"dev-features": features}})
}
