// Why a guest has its memory, and the operator's orders. No order is given before it was confirmed.

import { daemon } from "./daemon.js";
import { COST, ORDERS, SIZE } from "./names.js";
import { bytes, fill, inWords, span } from "./words.js";
import { byId, element } from "./dom.js";

/** An explanation on the screen is asked for again after this time. */
const AGAIN = 2000;
const VERBS = { hold: "Hold", release: "Release", resume: "Resume", reclaim: "Reclaim from" };

const path = name => `v1/guests/${encodeURIComponent(name)}/explanation`;
const paragraph = text => element("p", {}, text);

export class Orders {
  #guests;
  #name = null;
  #asked = 0;
  #mode = "observe";

  constructor(guests) {
    this.#guests = guests;
    byId("why-close").addEventListener("click", () => byId("why").close());
    byId("why").addEventListener("close", () => { this.#name = null; });
    byId("ask-no").addEventListener("click", () => byId("ask").close());
    for (const button of document.querySelectorAll("#why [data-order]")) {
      button.addEventListener("click", () => this.#ask(button.dataset.order, this.#name));
    }
  }

  /** Shows why a guest has its memory. */
  show(name) {
    this.#name = name;
    byId("why-title").textContent = name;
    byId("why-parts").textContent = "";
    byId("why-text").replaceChildren(paragraph("asking the daemon …"));
    byId("why").showModal();
    this.#asked = 0;
    this.draw(performance.now());
  }

  push(status) { this.#mode = status.mode; }

  /** Keeps an explanation on the screen up to date. */
  draw(now) {
    const guest = this.#name === null ? null : this.#guests.guest(this.#name);
    if (this.#name === null || now - this.#asked < AGAIN) return;
    this.#asked = now;
    if (guest?.parts) {
      const cost = guest.parts.cost ? `Its cost: ${inWords(guest.parts.cost, COST)}${guest.parts.cost.merged ? `, less ${bytes(guest.parts.cost.merged)} merged` : ""}.` : "";
      byId("why-parts").textContent = `Its size of ${bytes(guest.full)}: ${inWords(guest.parts.size, SIZE)}. ${cost}`;
    }
    const name = this.#name;
    daemon.get(path(name)).then(answer => { if (this.#name === name) this.#explain(answer); }, error => {
      if (this.#name === name) byId("why-text").replaceChildren(paragraph(error.message));
    });
  }

  #explain({ sections }) {
    // The first title is the guest's name with its state.
    byId("why-title").textContent = sections[0].title;
    const shown = sections.flatMap((section, place) => {
      const pairs = section.rows.filter(row => row.name).flatMap(({ name, says }) => [element("dt", {}, name), element("dd", {}, says)]);
      const sentences = section.rows.filter(row => !row.name).map(({ says }) => element("li", {}, says));
      const title = place === 0 ? [] : [element("h3", {}, section.title)];
      const list = (name, items) => (items.length ? [element(name, {}, ...items)] : []);
      return [...title, ...list("dl", pairs), ...list("ul", sentences)];
    });
    byId("why-text").replaceChildren(...shown);
  }

  #ask(order, name) {
    const guest = this.#guests.guest(name);
    const yes = byId("ask-yes");
    byId("ask-title").textContent = `${VERBS[order]} ${name}?`;
    byId("ask-answer").textContent = "";
    yes.textContent = VERBS[order].split(" ")[0];
    byId("ask-no").textContent = "Cancel";
    const text = byId("ask-text");
    text.replaceChildren(...this.#meaning(order, name, guest).map(paragraph));
    yes.hidden = false;
    yes.disabled = !guest;
    yes.onclick = () => this.#give(order, name);
    if (order === "reclaim" && guest) this.#preview(name, text);
    byId("ask").showModal();
  }

  /** What will happen, in sentences. */
  #meaning(order, name, guest) {
    if (!guest) return ["This guest is gone."];
    const needs = guest.used === null || guest.used === undefined ? "" : `, needs ${bytes(guest.demand)}`;
    const values = { name, actual: bytes(guest.actual), full: bytes(guest.full), needs, share: bytes(guest.entitlement) };
    const observes = this.#mode === "observe" ? [order === "reclaim" ? ORDERS.refuses : ORDERS.remembers] : [];
    return [fill(ORDERS[order], values), ...observes];
  }

  async #preview(name, text) {
    const told = paragraph("asking what it can give …");
    text.append(told);
    try {
      const { cost, offer, no_agent } = await daemon.post("v1/reclaims", { guest: name, dry_run: true });
      const cache = no_agent ? `No agent answers in the guest (${no_agent}), so its page cache stays.` : `Its agent can drop ${bytes(offer.cache)} of page cache.`;
      told.textContent = `${name} costs the host ${bytes(cost)}. ${cache} Its balloon can take ${bytes(offer.free)} of free memory.`;
    } catch (error) { told.textContent = error.message; }
  }

  async #give(order, name) {
    const said = byId("ask-answer"), notice = byId("notice"), yes = byId("ask-yes"), title = byId("ask-title").textContent;
    yes.disabled = true;
    said.textContent = "waiting for the daemon …";
    byId("ask-no").textContent = "Close";
    const told = await this.#order(order, name).catch(error => `${name}: ${error.message}`);
    notice.textContent = told;
    // Another question may be on the screen by now.
    if (byId("ask-title").textContent !== title) return;
    said.textContent = told;
    yes.hidden = true;
    byId("ask-no").focus();
  }

  async #order(order, name) {
    if (order === "reclaim") {
      const { done } = await daemon.post("v1/reclaims", { guest: name });
      const failed = done.failed ? ` ${done.failed}.` : "";
      return `${name}: the host has ${bytes(done.back)} back after ${span(done.took)}; the guest costs it ${bytes(done.cost)}.${failed}`;
    }
    const answer = await daemon.post("v1/holds", { guest: name, hold: order });
    const guest = answer.guests[0];
    if (!guest || !answer.decided) return `${name}: the daemon has not decided on this yet.`;
    const notes = [answer.mode === "observe" ? " This memtide only observes." : "", answer.written ? "" : " The order is active, but not yet in the journal."];
    return `${name}: ${guest.state}, keeps ${bytes(guest.actual)} of ${bytes(guest.full)}.${notes.join("")}`;
  }
}
