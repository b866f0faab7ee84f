// What happened, in sentences, the newest first.

import { KINDS } from "./names.js";
import { time } from "./words.js";
import { byId, element } from "./dom.js";

const KEPT = 1000, SHOWN = 200;

/** Steps of one move follow each other within this time, in milliseconds. */
const NEXT_STEP = 5000;

/** The beginning of a new size. */
const KEEPS = "is to keep ";

/** What happened, and why. */
function parts({ says }) {
  const colon = says.indexOf(": ");
  return colon < 0 ? [says, ""] : [says.slice(0, colon), says.slice(colon + 2)];
}

/** A text besides its quantities. */
const shape = text => text.split(" ").filter(word => !/\d|^\(?[KMGT]?i?B[),:;]*$/.test(word)).join(" ");

/** The lines of these events, the oldest first: a move that took many steps is one line, in the place of its last step. */
function lines(events) {
  const lines = [];
  for (const event of events) {
    const [what, why] = parts(event);
    const line = { event, what, why, deed: shape(what), reason: shape(why), first: event, steps: 1 };
    const isChange = event.guest && (event.kind === "grant" || event.kind === "change");
    for (let nth = lines.length - 1; isChange && nth >= 0; nth -= 1) {
      const before = lines[nth], passed = event.at - before.event.at;
      if (passed < 0 || passed > NEXT_STEP) break;
      if (before.event.guest !== event.guest || before.deed !== line.deed) continue;
      if ((before.what === what || what.startsWith(KEEPS)) && before.reason === line.reason) {
        lines.splice(nth, 1);
        Object.assign(line, { steps: before.steps + 1, first: before.first });
      }
      break;
    }
    lines.push(line);
  }
  return lines;
}

/** What a line says after its guest's name. */
function words({ event, what, why, first, steps }) {
  if (steps === 1) return event.says;
  const since = time(first.wall), [begun] = parts(first);
  const how = begun === what ? `${steps} times since ${since}` : `in ${steps} steps from ${begun.slice(KEEPS.length)} since ${since}`;
  return `${what}, ${how}: ${why}`;
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
    const says = ({ event }) => (event.guest ? `${event.guest} ${event.says}` : event.says);
    const wanted = lines(this.#events).filter(line => (!kind || line.event.kind === kind) && says(line).toLowerCase().includes(filter));
    const item = line => {
      const { event } = line;
      const text = element("span", { class: `k-${event.kind}` });
      if (event.guest) text.append(element("strong", {}, event.guest), " ");
      text.append(words(line));
      return element("li", {}, element("time", { datetime: new Date(event.wall).toISOString() }, time(event.wall)), " ", text);
    };
    const items = wanted.slice(-SHOWN).reverse().map(item);
    byId("log").replaceChildren(...(items.length ? items : [element("li", { class: "soft" }, "nothing yet")]));
  }
}
