// The host's memory over ten minutes: a stack of its parts, and how long its programs waited for memory.

import { HOST } from "./names.js";
import { bytes, share, time } from "./words.js";
import { byId, svg, element } from "./dom.js";

const KEPT = 600000, POINT = 900, GAP = 5000, ROWS = 13;

/** How long the host's programs waited between two points, in words. */
const waited = (last, before) => {
  const within = `of the last ${Math.round((last.at - before.at) / 1000)} s (PSI)`;
  const part = share(last.some_us - before.some_us, last.at - before.at);
  return part === "0" ? `The host’s programs waited for memory for less than 0.1 % ${within}.` : `The host’s programs waited for memory for ${part} ${within}.`;
};

export class Host {
  #points = [];
  #wall = 0;
  #chosen = null;
  #layers;
  #cursor = svg("line", { class: "cursor", y1: 0, y2: 300, visibility: "hidden" });
  #psi = svg("path", { class: "psi" });
  #drawn = -Infinity;

  constructor() {
    this.#layers = HOST.map(part => svg("path", { class: part.class }));
    byId("stack").append(...this.#layers, this.#cursor);
    byId("psi").append(this.#psi);
    const legend = HOST.map(part => {
      const value = element("span");
      const item = element("li", {}, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { class: part.class, width: 12, height: 12 })), element("span", {}, `${part.name} `), value);
      return { item, value };
    });
    byId("legend").append(...legend.map(entry => entry.item));
    this.values = legend.map(entry => entry.value);
    byId("moments-head").append(...["time", ...HOST.map(part => part.name)].map((name, nth) => element("th", { scope: "col", class: nth ? "n" : "" }, name)));
    byId("moments").addEventListener("toggle", () => this.#table());
    const plot = byId("stack");
    plot.addEventListener("pointermove", event => {
      const box = plot.getBoundingClientRect();
      this.#choose(this.#end - KEPT * (1 - (event.clientX - box.left) / box.width));
    });
    plot.addEventListener("pointerleave", () => this.#forget());
    plot.addEventListener("blur", () => this.#forget());
    plot.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60, Home: -Infinity, End: Infinity }[event.key];
      if (!step || !this.#points.length) return;
      event.preventDefault();
      const last = this.#points.length - 1;
      const now = this.#chosen === null ? last : this.#points.findIndex(point => point.at >= this.#chosen);
      this.#choose(this.#points[Math.max(0, Math.min(last, (now < 0 ? last : now) + step))].at);
    });
  }

  get #end() { return this.#points.at(-1)?.at ?? 0; }

  /** The time of day at a moment of the host's clock. */
  #time(at) { return time(at + this.#wall); }

  /** Takes over what the daemon remembers, and the difference between the wall clock and the host's clock. */
  begin(points, wall) {
    this.#wall = wall;
    const newest = points.at(-1)?.at ?? 0;
    this.#points = [...points, ...this.#points.filter(point => point.at > newest)];
    this.#drawn = -Infinity;
  }

  /** Takes over the present. */
  push(status) {
    const point = { at: status.decided_at, ...status.host, some_us: status.pressure?.some_us };
    if (this.#wall === 0) this.#wall = Date.now() - point.at;
    const last = this.#points.at(-1);
    // A host that was started anew has another clock.
    if (last && last.at > point.at) this.#points = [];
    if (!last || last.at > point.at || point.at - last.at >= POINT) this.#points.push(point);
    while (this.#points.length && this.#points[0].at < point.at - KEPT) this.#points.shift();
    HOST.forEach((part, nth) => { this.values[nth].textContent = bytes(point[part.key]); });
  }

  /** The points in runs without a gap. */
  #runs() {
    const runs = [];
    for (const point of this.#points) {
      const run = runs.at(-1);
      if (run && point.at - run.at(-1).at <= GAP) run.push(point);
      else runs.push([point]);
    }
    return runs;
  }

  draw(now) {
    if (!this.#points.length || now - this.#drawn < POINT) return;
    this.#drawn = now;
    const end = this.#end, most = Math.max(1, ...this.#points.map(point => point.capacity));
    const x = at => ((600 * (at - end + KEPT)) / KEPT).toFixed(1);
    const runs = this.#runs();
    const sums = new Map(this.#points.map(point => [point, [0]]));
    HOST.forEach((part, nth) => {
      for (const [point, sum] of sums) sum.push(sum[nth] + point[part.key]);
      const y = (point, of) => (300 - (300 * Math.min(most, sums.get(point)[of])) / most).toFixed(1);
      const path = runs.map(run => {
        const above = run.map(point => `${x(point.at)} ${y(point, nth + 1)}`);
        const below = run.map(point => `${x(point.at)} ${y(point, nth)}`).reverse();
        return `M${above.join("L")}L${below.join("L")}Z`;
      });
      this.#layers[nth].setAttribute("d", path.join(""));
    });
    byId("most").textContent = bytes(most);
    byId("half").textContent = bytes(most / 2);
    for (const [id, ago] of [["from", KEPT], ["middle", KEPT / 2], ["until", 0]]) byId(id).textContent = this.#time(end - ago).slice(0, 5);
    this.#pressure(runs, x);
    if (this.#chosen !== null) this.#choose(this.#chosen);
    this.#table();
  }

  #pressure(runs, x) {
    const told = runs.map(run => run.filter(point => point.some_us !== undefined && point.some_us !== null));
    const lines = told.map(run => run.slice(1).map((point, nth) => [point.at, (point.some_us - run[nth].some_us) / (point.at - run[nth].at) / 10]));
    const most = Math.max(10, ...lines.flat().map(([, percent]) => percent));
    const path = lines.filter(line => line.length).map(line => `M${x(line[0][0])} 60L${line.map(([at, percent]) => `${x(at)} ${(60 - (60 * percent) / most).toFixed(1)}`).join("L")}L${x(line.at(-1)[0])} 60Z`);
    this.#psi.setAttribute("d", path.join(""));
    byId("psi-most").textContent = lines.length && lines.flat().length ? `${Math.ceil(most)} %` : "";
    const run = told.at(-1) ?? [], last = run.at(-1), before = run.findLast(point => point.at <= (last?.at ?? 0) - 10000) ?? run[0];
    byId("psi-now").textContent = last && before && last !== before ? waited(last, before) : "How long the host’s programs waited for memory (PSI) is not known yet.";
  }

  #choose(at) {
    if (!this.#points.length) return;
    const nearest = this.#points.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best));
    this.#chosen = nearest.at;
    const x = (600 * (nearest.at - this.#end + KEPT)) / KEPT;
    this.#cursor.setAttribute("x1", x);
    this.#cursor.setAttribute("x2", x);
    this.#cursor.removeAttribute("visibility");
    byId("moment").textContent = `${this.#time(nearest.at)}: ${HOST.map(part => `${part.name} ${bytes(nearest[part.key])}`).join(", ")}; the host is ${nearest.state}`;
  }

  #forget() {
    this.#chosen = null;
    this.#cursor.setAttribute("visibility", "hidden");
    byId("moment").textContent = "";
  }

  #table() {
    if (!byId("moments").open || !this.#points.length) return;
    const every = Math.max(1, Math.ceil(this.#points.length / ROWS));
    const rows = this.#points.filter((_, nth) => (this.#points.length - 1 - nth) % every === 0);
    byId("moments-rows").replaceChildren(...rows.map(point => element("tr", {}, element("th", { scope: "row" }, this.#time(point.at)), ...HOST.map(part => element("td", { class: "n" }, bytes(point[part.key]))))));
  }
}
