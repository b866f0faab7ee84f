// What happened, in sentences, the newest first.

import { KINDS } from "./names.js";
import { time } from "./words.js";
import { byId, element } from "./dom.js";

const KEPT = 1000, SHOWN = 200;

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
    const kind = byId("log-kind").value, words = byId("log-words").value.toLowerCase();
    const says = event => (event.guest ? `${event.guest} ${event.says}` : event.says);
    const wanted = this.#events.filter(event => (!kind || event.kind === kind) && says(event).toLowerCase().includes(words));
    const item = event => {
      const text = element("span", { class: `k-${event.kind}` });
      if (event.guest) text.append(element("strong", {}, event.guest), " ");
      text.append(event.says);
      return element("li", {}, element("time", { datetime: new Date(event.wall).toISOString() }, time(event.wall)), " ", text);
    };
    const items = wanted.slice(-SHOWN).reverse().map(item);
    byId("log").replaceChildren(...(items.length ? items : [element("li", { class: "soft" }, "nothing yet")]));
  }
}
