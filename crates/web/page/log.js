// What happened, in sentences, the newest first.

import { KINDS } from "./names.js";
import { time } from "./words.js";
import { byId, element } from "./dom.js";

const KEPT = 1000, SHOWN = 200;

/** Steps of one move follow each other within this time, in milliseconds. */
const NEXT_STEP = 5000;

/** What an event says besides its quantities. */
const shape = event => event.says.split(" ").filter(word => !/\d|^\(?[KMGT]?i?B[),:;]*$/.test(word)).join(" ");

/** The lines of these events, the oldest first: a move that took many steps is one line, in the place of its last step. */
function lines(events) {
  const lines = [];
  for (const event of events) {
    const line = { event, shape: shape(event), steps: 1, since: event.wall };
    const isChange = event.guest && (event.kind === "grant" || event.kind === "change");
    for (let nth = lines.length - 1; isChange && nth >= 0 && event.at - lines[nth].event.at <= NEXT_STEP; nth -= 1) {
      const before = lines[nth];
      if (before.event.guest !== event.guest) continue;
      if (before.shape === line.shape) {
        lines.splice(nth, 1);
        Object.assign(line, { steps: before.steps + 1, since: before.since });
      }
      break;
    }
    lines.push(line);
  }
  return lines;
}

/** What a line says after its guest's name. */
function words({ event, steps, since }) {
  if (steps === 1) return event.says;
  const colon = event.says.indexOf(": ");
  return `${event.says.slice(0, colon)}, in ${steps} steps since ${time(since)}${event.says.slice(colon)}`;
}

export class Log {
  #events = [];
  #changed = true;

  constructor() {
    byId("log-kind").append(...KINDS.map(kind => element("option", { value: kind }, kind)));
    for (const id of ["log-kind", "log-words"]) byId(id).addEventListener("input", () => { this.#changed = true; this.draw(); });
  }

  /** Takes over what the daemon remembers, up to the moment `now`. */
  begin(events, now) {
    this.#events = [...events, ...this.#events.filter(event => event.at > now)];
    this.#changed = true;
  }

  push(event) {
    this.#events.push(event);
    if (this.#events.length > KEPT) this.#events.shift();
    this.#changed = true;
  }

  draw() {
    if (!this.#changed) return;
    this.#changed = false;
    const kind = byId("log-kind").value, filter = byId("log-words").value.toLowerCase();
    const says = event => (event.guest ? `${event.guest} ${event.says}` : event.says);
    const wanted = this.#events.filter(event => (!kind || event.kind === kind) && says(event).toLowerCase().includes(filter));
    const item = line => {
      const { event } = line;
      const text = element("span", { class: `k-${event.kind}` });
      if (event.guest) text.append(element("strong", {}, event.guest), " ");
      text.append(words(line));
      return element("li", {}, element("time", { datetime: new Date(event.wall).toISOString() }, time(event.wall)), " ", text);
    };
    const items = lines(wanted).slice(-SHOWN).reverse().map(item);
    byId("log").replaceChildren(...(items.length ? items : [element("li", { class: "soft" }, "nothing yet")]));
  }
}
