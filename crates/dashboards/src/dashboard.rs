//! The dashboard for Grafana.
//!
//! Rows from the question that matters most: was the promise kept, where is the host's memory, what of the guests, what of the daemon.

use anyhow::Result;
use memtide_metrics::METRICS;
use memtide_model::HostPart;
use serde_json::{Value, json};

use crate::parts::{Part, Parts};
use crate::{query, rules};

/// How a panel draws.
#[derive(Clone, Copy)]
enum Draws {
    /// One number, red above zero.
    Failure,
    /// One number.
    Number,
    /// Areas that add up, one for each part of memory, with the names and the colours that memtide uses everywhere. Its only query has
    /// [`PART`] in the place of the part.
    Parts(Parts),
    /// Areas that add up.
    Stack,
    /// Lines.
    Lines,
    /// Which state held when.
    States,
}

/// A panel: title, unit as Grafana calls it, kind, and its queries with their legends.
struct Panel {
    title: &'static str,
    about: &'static str,
    unit: &'static str,
    draws: Draws,
    queries: Queries,
}

/// What stands for the name of a part in a query.
const PART: &str = "PART";

/// States that have the same colour in all panels: how bad they are.
const STATES: [(&str, &str); 7] = [
    ("high", "green"),
    ("soft", "yellow"),
    ("hard", "orange"),
    ("low", "red"),
    ("waits", "red"),
    ("stuck", "orange"),
    ("silent", "text"),
];

const ROWS: &[(&str, &[Panel])] = &[
    (
        "The promise",
        &[
            failure(
                "Read back from swap",
                "bytes",
                &[(
                    "increase(memtide_host_swapped_in_bytes_total{instance=~\"$instance\"}[$__range])",
                    "{{instance}}",
                )],
            ),
            failure(
                "Guests killed",
                "none",
                &[(
                    "increase(memtide_guests_killed_total{instance=~\"$instance\"}[$__range])",
                    "{{instance}}",
                )],
            ),
            failure(
                "Programs killed in guests",
                "none",
                &[(
                    "sum by (instance) (increase(memtide_guest_oom_kills_total{instance=~\"$instance\"}[$__range]))",
                    "{{instance}}",
                )],
            ),
            failure(
                "Commitment missed by",
                "bytes",
                &[("memtide_host_breach_bytes{instance=~\"$instance\"}", "{{instance}}")],
            ),
            failure(
                "Guests that wait now",
                "none",
                &[("instance:memtide_guests_waiting:sum{instance=~\"$instance\"}", "{{instance}}")],
            ),
            Panel {
                title: "Overcommitment",
                about: "The full sizes of all guests in relation to the memory of the host.",
                unit: "percentunit",
                draws: Draws::Number,
                queries: &[("instance:memtide_overcommit:ratio{instance=~\"$instance\"}", "{{instance}}")],
            },
        ],
    ),
    (
        "The host",
        &[
            Panel {
                title: "Memory of the host",
                about: "The ledger: all parts add up to the capacity while the reserve is kept.",
                unit: "bytes",
                draws: Draws::Parts(Parts::Host),
                queries: &[("sum(memtide_host_memory_bytes{instance=~\"$instance\",part=\"PART\"})", PART)],
            },
            Panel {
                title: "Shortage of the host",
                about: "high: enough is free. low: emergency.",
                unit: "none",
                draws: Draws::States,
                queries: &[("memtide_host_state{instance=~\"$instance\"} == 1", "{{instance}} {{state}}")],
            },
            Panel {
                title: "Memory that moves",
                about: "What balloons give to the host, and what guests get from it.",
                unit: "binBps",
                draws: Draws::Lines,
                queries: &[(
                    "sum by (direction) (rate(memtide_moved_bytes_total{instance=~\"$instance\"}[$__rate_interval]))",
                    "{{direction}}",
                )],
            },
            Panel {
                title: "Host: stalls and swap",
                about: "The part of the time in which tasks of the host waited for memory, and what the host read back from swap.",
                unit: "percentunit",
                draws: Draws::Lines,
                queries: &[
                    (
                        "rate(memtide_host_pressure_waiting_seconds_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} some tasks waited",
                    ),
                    (
                        "rate(memtide_host_pressure_stalled_seconds_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} all tasks waited",
                    ),
                    (
                        "rate(memtide_host_swapped_in_bytes_total{instance=~\"$instance\"}[$__rate_interval]) / on (job, instance) memtide_host_capacity_bytes",
                        "{{instance}} read from swap, part of the host's memory each second",
                    ),
                ],
            },
        ],
    ),
    (
        "The guests",
        &[
            Panel {
                title: "Sizes of the guests, by part",
                about: "What the memory of the chosen guests is, from inside. The parts add up to their full size.",
                unit: "bytes",
                draws: Draws::Parts(Parts::Size),
                queries: &[(
                    "sum(memtide_guest_size_bytes{instance=~\"$instance\",guest=~\"$guest\",part=\"PART\"})",
                    PART,
                )],
            },
            Panel {
                title: "Costs of the guests, by part",
                about: "What the chosen guests cost the host, without what KSM merged.",
                unit: "bytes",
                draws: Draws::Parts(Parts::Cost),
                queries: &[(
                    "sum(memtide_guest_cost_bytes{instance=~\"$instance\",guest=~\"$guest\",part=\"PART\"})",
                    PART,
                )],
            },
            Panel {
                title: "What memtide does about the guests",
                about: "The number of guests in each state.",
                unit: "none",
                draws: Draws::Stack,
                queries: &[(
                    "sum by (state) (memtide_guest_state{instance=~\"$instance\",guest=~\"$guest\"}) > 0",
                    "{{state}}",
                )],
            },
            Panel {
                title: "Memory that guests wait for",
                about: "Guests that wait for nothing are not shown.",
                unit: "bytes",
                draws: Draws::Lines,
                queries: &[(
                    "memtide_guest_awaited_bytes{instance=~\"$instance\",guest=~\"$guest\"} > 0",
                    "{{guest}}",
                )],
            },
            Panel {
                title: "How long guests waited",
                about: "Half of the waits for memory, and 19 of 20, were at most this long.",
                unit: "s",
                draws: Draws::Lines,
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(memtide_guest_wait_seconds_bucket{instance=~\"$instance\"}[$__range])))",
                        "half",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(memtide_guest_wait_seconds_bucket{instance=~\"$instance\"}[$__range])))",
                        "19 of 20",
                    ),
                ],
            },
            Panel {
                title: "Stalls in guests",
                about: "Allocations that had to wait, each second. Guests whose kernels do not tell are not shown.",
                unit: "ops",
                draws: Draws::Lines,
                queries: &[(
                    "rate(memtide_guest_allocation_stalls_total{instance=~\"$instance\",guest=~\"$guest\"}[$__rate_interval]) > 0",
                    "{{guest}}",
                )],
            },
            Panel {
                title: "Sizes: kept and asked for",
                about: "What each chosen guest keeps, and what it is asked to keep.",
                unit: "bytes",
                draws: Draws::Lines,
                queries: &[
                    (
                        "memtide_guest_actual_bytes{instance=~\"$instance\",guest=~\"$guest\"}",
                        "{{guest}} keeps",
                    ),
                    (
                        "memtide_guest_target_bytes{instance=~\"$instance\",guest=~\"$guest\"}",
                        "{{guest}} is asked to keep",
                    ),
                ],
            },
            Panel {
                title: "Saved by KSM",
                about: "Memory that merging equal pages saves, with zero pages.",
                unit: "bytes",
                draws: Draws::Stack,
                queries: &[
                    ("memtide_ksm_saved_bytes{instance=~\"$instance\"}", "{{instance}} merged"),
                    ("memtide_ksm_zeros_bytes{instance=~\"$instance\"}", "{{instance}} zeros"),
                ],
            },
        ],
    ),
    (
        "The daemon",
        &[
            Panel {
                title: "Age of the last decision",
                about: "Decisions are at most 2 s apart.",
                unit: "s",
                draws: Draws::Lines,
                queries: &[
                    ("memtide_decision_age_seconds{instance=~\"$instance\"}", "{{instance}} age"),
                    (
                        "instance:memtide_decision_seconds:mean5m{instance=~\"$instance\"}",
                        "{{instance}} time of a decision",
                    ),
                    (
                        "memtide_journal_behind_seconds{instance=~\"$instance\"}",
                        "{{instance}} journal behind",
                    ),
                ],
            },
            Panel {
                title: "Actions",
                about: "Each second, by result. A refused action would have broken a promise.",
                unit: "ops",
                draws: Draws::Lines,
                queries: &[(
                    "sum by (result) (rate(memtide_actions_total{instance=~\"$instance\"}[$__rate_interval]))",
                    "{{result}}",
                )],
            },
        ],
    ),
];

const VARIABLES: [(&str, &str); 2] = [
    ("instance", "label_values(memtide_build_info, instance)"),
    ("guest", "label_values(memtide_guest_info{instance=~\"$instance\"}, guest)"),
];

/// The queries of a panel, each with its legend.
type Queries = &'static [(&'static str, &'static str)];

const fn failure(title: &'static str, unit: &'static str, queries: Queries) -> Panel {
    Panel { title, about: "Should be zero.", unit, draws: Draws::Failure, queries }
}

/// All queries of the panels.
#[cfg(test)]
pub(crate) fn queries() -> Vec<String> {
    let panels = ROWS.iter().flat_map(|(_, panels)| panels.iter());
    panels.flat_map(Panel::drawn).map(|(query, _)| query).collect()
}

/// The dashboard as a file for Grafana 10 and newer.
pub(crate) fn json() -> Result<String> {
    let mut panels = Vec::new();
    let mut y = 0;
    for (title, row) in ROWS {
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 },
        }));
        y += 1;
        let mut x = 0;
        let mut height = 0;
        for panel in *row {
            let (w, h) = size(panel.draws);
            if x + w > 24 {
                (x, y) = (0, y + height);
            }
            panels.push(panel.json(panels.len() + 1, [x, y, w, h])?);
            (x, height) = (x + w, h);
        }
        y += height;
    }
    let mut variables = vec![
        json!({ "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus" }),
    ];
    for (name, query) in VARIABLES {
        query::check(query, &rules::recorded())?;
        variables.push(json!({
            "name": name, "type": "query", "datasource": datasource(), "query": { "query": query, "refId": name },
            "multi": true, "includeAll": true, "allValue": ".*", "current": { "text": "All", "value": "$__all" }, "refresh": 2, "sort": 5,
        }));
    }
    let dashboard = json!({
        "uid": "memtide", "title": "memtide", "tags": ["memtide"], "schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1,
        "description": "Written by cargo xtask dashboards. Needs memtide.rules.yml.", "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" }, "timezone": "browser",
        "templating": { "list": variables }, "annotations": { "list": [] }, "links": [], "panels": panels,
    });
    Ok(serde_json::to_string_pretty(&dashboard)? + "\n")
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// The width and the height of a panel.
const fn size(draws: Draws) -> (u32, u32) {
    match draws {
        Draws::Failure | Draws::Number => (4, 4),
        Draws::Parts(_) | Draws::Stack | Draws::Lines | Draws::States => (12, 8),
    }
}

impl Panel {
    fn json(&self, id: usize, [x, y, w, h]: [u32; 4]) -> Result<Value> {
        let mut targets = Vec::new();
        for ((query, legend), name) in self.drawn().into_iter().zip('A'..) {
            query::check(&query, &rules::recorded())?;
            let now = matches!(self.draws, Draws::Failure | Draws::Number);
            targets.push(json!({
                "refId": name.to_string(), "expr": query, "legendFormat": legend, "datasource": datasource(), "instant": now, "range": !now,
            }));
        }
        Ok(json!({
            "id": id, "type": self.kind(), "title": self.title, "description": self.about, "datasource": datasource(),
            "gridPos": { "x": x, "y": y, "w": w, "h": h }, "targets": targets, "options": self.options(),
            "fieldConfig": { "defaults": self.defaults(), "overrides": self.colours() },
        }))
    }

    /// The queries that are drawn, each with its legend.
    fn drawn(&self) -> Vec<(String, String)> {
        let Draws::Parts(parts) = self.draws else {
            return self
                .queries
                .iter()
                .map(|(query, legend)| ((*query).to_owned(), (*legend).to_owned()))
                .collect();
        };
        let each = |(query, legend): &(&str, &str)| {
            parts
                .list()
                .into_iter()
                .map(|part| (query.replace(PART, part.key), legend.replace(PART, part.name)))
                .collect::<Vec<_>>()
        };
        self.queries.iter().flat_map(each).collect()
    }

    /// The colours of the parts, or of the states that the queries show by their names at the end of a legend.
    fn colours(&self) -> Vec<Value> {
        if let Draws::Parts(parts) = self.draws {
            let colour = |part: Part| fixed("byName", part.name, &part.colour.to_string());
            return parts.list().into_iter().map(colour).collect();
        }
        let is_asked = |name: &str| self.queries.iter().any(|(query, _)| query.contains(name));
        let asked = METRICS.iter().filter(|metric| is_asked(metric.name));
        let shown: Vec<&str> =
            asked.flat_map(|metric| metric.labels).flat_map(|label| label.values).copied().collect();
        let states = STATES.into_iter().filter(|(name, _)| shown.contains(name));
        states.map(|(name, colour)| fixed("byRegexp", &format!("/(^| ){name}$/"), colour)).collect()
    }

    const fn kind(&self) -> &'static str {
        match self.draws {
            Draws::Failure | Draws::Number => "stat",
            Draws::Parts(_) | Draws::Stack | Draws::Lines => "timeseries",
            Draws::States => "state-timeline",
        }
    }

    fn options(&self) -> Value {
        match self.draws {
            Draws::Failure | Draws::Number => json!({
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "colorMode": "background", "graphMode": "none", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
            }),
            Draws::Parts(_) | Draws::Stack | Draws::Lines => json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true }, "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Draws::States => json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false }, "showValue": "never", "mergeValues": true,
            }),
        }
    }

    fn defaults(&self) -> Value {
        let red_above_zero =
            json!([{ "color": "green", "value": null }, { "color": "red", "value": 0.000_001 }]);
        let steps = match self.draws {
            Draws::Failure => red_above_zero,
            _ => json!([{ "color": HostPart::Guests.colour().to_string(), "value": null }]),
        };
        let custom = match self.draws {
            Draws::Parts(_) | Draws::Stack => {
                json!({ "drawStyle": "line", "fillOpacity": 60, "lineWidth": 0, "stacking": { "mode": "normal", "group": "A" } })
            }
            Draws::Lines => {
                json!({ "drawStyle": "line", "fillOpacity": 0, "lineWidth": 1, "spanNulls": false })
            }
            _ => json!({}),
        };
        json!({ "unit": self.unit, "min": 0, "thresholds": { "mode": "absolute", "steps": steps }, "custom": custom })
    }
}

/// The rule that what matches has this colour.
fn fixed(matcher: &str, matched: &str, colour: &str) -> Value {
    json!({
        "matcher": { "id": matcher, "options": matched },
        "properties": [{ "id": "color", "value": { "mode": "fixed", "fixedColor": colour } }],
    })
}
