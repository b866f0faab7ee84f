// The guests as a table. Rows stay, move and change; only what differs is touched, so a thousand guests cost little.

import { COST, MATTERS, SIZE } from "./names.js";
import { bytes, counted, inWords, share, span } from "./words.js";
import { byId, svg, element } from "./dom.js";

/** Rows are added in portions of this many. */
const PORTION = 100;
/** Stalls are told over this time. */
const LOOKS_BACK = 10000;
const names = new Intl.Collator("en", { numeric: true });

/** Writes a text only if it differs: a browser lays out again what was written. */
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

/** A bar of parts, each with an exact width. */
class Bar {
  #parts;
  #rects = [];
  #told = "";
  constructor(parts) {
    this.#parts = parts;
    this.node = svg("svg", { class: "bar", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": "unknown" });
    this.#rects = parts.map(part => svg("rect", { class: part.class, y: 0, height: 16, x: 0, width: 0 }));
    this.node.append(...this.#rects);
  }
  show(values, most, merged = 0) {
    const told = values ? `${most}:${this.#parts.map(part => values[part.key]).join()}:${merged}` : "";
    if (told === this.#told) return;
    this.#told = told;
    const own = { ...values };
    // What KSM merged costs nothing: it is a part of the RAM.
    if (values && merged) own.ram -= Math.min(merged, own.ram);
    let before = 0;
    this.#parts.forEach((part, nth) => {
      const x = (1000 * before) / most, width = (1000 * (own[part.key] ?? 0)) / most;
      before += own[part.key] ?? 0;
      this.#rects[nth].setAttribute("x", x.toFixed(2));
      this.#rects[nth].setAttribute("width", width.toFixed(2));
    });
    this.node.setAttribute("aria-label", values ? inWords(own, this.#parts) : "unknown");
  }
}

class Row {
  constructor(name, choose) {
    this.button = element("button", { type: "button", class: "name" }, name);
    this.button.addEventListener("click", () => choose(name));
    this.size = new Bar(SIZE);
    this.cost = new Bar(COST);
    const [costs, keeps, full, stalls, state, last] = ["n", "n", "n wide", "n", "state", "wide soft"].map(kind => element("td", { class: kind }));
    Object.assign(this, { costs, keeps, full, stalls, state, last });
    this.node = element("tr", {}, element("th", { scope: "row" }, this.button), element("td", { class: "bars" }, this.size.node, this.cost.node), costs, keeps, full, stalls, state, last);
  }
  show(guest, most, stalls) {
    this.size.show(guest.parts?.size, most);
    this.cost.show(guest.parts?.cost, most, guest.parts?.cost?.merged);
    set(this.costs, guest.parts?.cost ? bytes(costOf(guest)) : "–");
    set(this.keeps, bytes(guest.actual));
    set(this.full, bytes(guest.full));
    set(this.stalls, stalls);
    set(this.state, guest.state);
    const kind = `state m-${guest.matter}`;
    if (this.state.className !== kind) this.state.className = kind;
    set(this.last, guest.last_reason ? `${span(guest.last_change)} ago: ${guest.last_reason}` : "");
  }
}

const sum = values => Object.values(values).reduce((all, value) => all + value, 0);
const costOf = guest => {
  const cost = guest.parts?.cost;
  return cost ? Math.max(0, sum(cost) - 2 * cost.merged) : -1;
};

export class Guests {
  #rows = new Map();
  #stalls = new Map();
  /** The place of each name in their order: comparing names is what costs most. */
  #ranks = new Map();
  #status = null;
  #portions = 1;
  #choose;

  constructor(choose) {
    this.#choose = choose;
    const legend = part => element("li", {}, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { class: part.class, width: 12, height: 12 })), part.name);
    const costs = COST.filter(part => !SIZE.some(size => size.class === part.class));
    byId("parts").append(...SIZE.map(legend), element("li", { class: "break" }, "cost:"), ...costs.map(legend));
    for (const id of ["words", "order"]) byId(id).addEventListener("input", () => { this.#portions = 1; this.draw(); });
    byId("more").addEventListener("click", () => { this.#portions += 1; this.draw(); });
    byId("rows").addEventListener("keydown", event => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const row = event.target.closest("tr");
      if (!step || !row) return;
      event.preventDefault();
      const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
      next?.querySelector("button").focus();
    });
  }

  /** The guest with this name, as it is now. */
  guest(name) { return this.#status?.guests.find(guest => guest.name === name); }

  push(status) {
    this.#status = status;
    const at = status.decided_at;
    for (const guest of status.guests) {
      const past = this.#stalls.get(guest.name) ?? [];
      if (!past.length || at - past.at(-1).at >= 900) past.push({ at, ...guest.stalled });
      while (past.length > 1 && past[1].at <= at - LOOKS_BACK) past.shift();
      this.#stalls.set(guest.name, past);
    }
    if (this.#ranks.size !== status.guests.length || status.guests.some(guest => !this.#ranks.has(guest.name))) {
      const sorted = status.guests.map(guest => guest.name).sort(names.compare);
      this.#ranks = new Map(sorted.map((name, place) => [name, place]));
    }
    if (this.#stalls.size > status.guests.length) {
      const there = new Set(status.guests.map(guest => guest.name));
      for (const name of this.#stalls.keys()) if (!there.has(name)) this.#stalls.delete(name);
    }
  }

  /** How much a guest's programs waited in the last seconds: as a number to sort by, and as text. */
  #stalled(guest) {
    const before = this.#stalls.get(guest.name)?.[0], now = guest.stalled ?? {};
    const more = key => (typeof now[key] === "number" && typeof before?.[key] === "number" ? Math.max(0, now[key] - before[key]) : null);
    const micros = more("some_us"), times = more("count"), ms = this.#status.decided_at - (before?.at ?? 0);
    if (micros !== null && ms > 0) return [micros, share(micros, ms)];
    return times === null ? [-1, "–"] : [times * 1000, times ? `${times}×` : "0"];
  }

  #sorted() {
    const words = byId("words").value.toLowerCase();
    const all = this.#status.guests.filter(guest => guest.name.toLowerCase().includes(words));
    const byName = (a, b) => this.#ranks.get(a.name) - this.#ranks.get(b.name);
    const keys = {
      matter: guest => MATTERS.indexOf(guest.matter),
      name: () => 0,
      cost: guest => -costOf(guest),
      used: guest => -(guest.used ?? -1),
      stalls: guest => -this.#stalled(guest)[0],
    };
    const key = keys[byId("order").value], keyed = all.map(guest => [key(guest), guest]);
    return keyed.sort(([a, x], [b, y]) => a - b || byName(x, y)).map(([, guest]) => guest);
  }

  draw() {
    if (!this.#status) return;
    const sorted = this.#sorted(), shown = sorted.slice(0, this.#portions * PORTION);
    const most = this.#status.guests.reduce((most, guest) => Math.max(most, guest.full, costOf(guest)), 1);
    const there = new Set(shown.map(guest => guest.name));
    for (const [name, row] of this.#rows) {
      if (there.has(name)) continue;
      row.node.remove();
      this.#rows.delete(name);
    }
    const body = byId("rows");
    shown.forEach((guest, place) => {
      let row = this.#rows.get(guest.name);
      if (!row) {
        row = new Row(guest.name, this.#choose);
        this.#rows.set(guest.name, row);
      }
      row.show(guest, most, this.#stalled(guest)[1]);
      if (body.children[place] !== row.node) this.#move(body, row.node, place);
    });
    byId("none").hidden = this.#status.guests.length > 0;
    const left = sorted.length - shown.length;
    byId("more").hidden = left <= 0;
    byId("more").textContent = `Show ${Math.min(left, PORTION)} more of ${counted(sorted.length, "guest")}`;
    set(byId("shown"), sorted.length === this.#status.guests.length ? counted(sorted.length, "guest") : `${sorted.length} of ${counted(this.#status.guests.length, "guest")}`);
  }

  /** Moving a row takes its focus away, so it is given back. */
  #move(body, node, place) {
    const focused = node.contains(document.activeElement) ? document.activeElement : null;
    body.insertBefore(node, body.children[place] ?? null);
    focused?.focus({ preventScroll: true });
  }
}
