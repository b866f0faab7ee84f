// The page: it listens to the daemon, and draws what it hears at most once for each picture that the screen shows.

import { daemon } from "./daemon.js";
import { byId, element } from "./dom.js";
import { HOST } from "./names.js";
import { Guests } from "./guests.js";
import { Host } from "./host.js";
import { Log } from "./log.js";
import { Orders } from "./orders.js";
import { headline, ledger, span } from "./words.js";

// A daemon decides at least every two seconds.
const AGAIN = 1000, LATE = 10000, QUIET = 15000;

let host, guests, log, orders, status = null, heard = 0, isDrawn = true;

const link = (says, kind) => {
  const node = byId("link");
  if (node.textContent !== says) node.textContent = says;
  node.className = `link ${kind}`;
};

const draw = now => {
  isDrawn = true;
  if (!status) return;
  byId("headline").textContent = headline(status);
  byId("sentence").textContent = status.sentence ? `${status.sentence}.` : status.guests.length ? "The last decision is old." : "No guests.";
  byId("ledger").textContent = ledger(status.host, HOST);
  const warnings = byId("warnings"), said = status.warnings.join("\n");
  if (warnings.dataset.said !== said) {
    warnings.dataset.said = said;
    warnings.replaceChildren(...status.warnings.map(warning => element("p", { class: "warn" }, warning)));
  }
  host.draw(now);
  guests.draw();
  log.draw();
  orders.draw(now);
};

const wish = () => {
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(draw);
};

const hear = (name, data) => {
  if (name === "tick") {
    if (data.decided_at === null) return;
    status = data;
    heard = performance.now();
    host.push(status);
    guests.push(status);
    orders.push(status);
    link("live", "good");
  } else if (name === "log") log.push(data);
  else return;
  wish();
};

/** Adds what the daemon remembers to what was heard meanwhile: nothing is missed, and nothing comes twice. */
const remember = async () => {
  const past = await daemon.get("v1/history");
  host.begin(past.points, past.wall - past.now);
  log.begin(past.events, past.now);
  wish();
};

/** Waits for the end of a stream, or for a silence: not every connection tells that its other end is gone. */
const unlessQuiet = async ({ ended, stop }) => {
  let timer;
  const quiet = new Promise((_, reject) => {
    timer = setInterval(() => { if (performance.now() - heard > QUIET) reject(new Error("the daemon is silent")); }, AGAIN);
  });
  try { await Promise.race([ended, quiet]); } finally { clearInterval(timer); stop(); }
};

const listen = async () => {
  for (;;) {
    try {
      let begins = true;
      heard = performance.now();
      await unlessQuiet(daemon.listen("v1/events", (name, data) => {
        hear(name, data);
        // A daemon without a past still shows the present.
        if (begins) remember().catch(() => {});
        begins = false;
      }));
      link("the daemon has ended; asking again", "bad");
    } catch (error) {
      link(error.stops ? error.message : `${error.message}; asking again`, "bad");
      if (error.stops) return;
    }
    await new Promise(resolve => setTimeout(resolve, AGAIN));
  }
};

const begin = () => {
  // Cockpit lets its user choose a style; elsewhere the browser's counts.
  const style = window.cockpit && localStorage.getItem("shell:style");
  if (style === "dark" || style === "light") document.documentElement.dataset.theme = style;
  guests = new Guests(name => orders.show(name));
  host = new Host();
  log = new Log();
  orders = new Orders(guests);
  setInterval(() => {
    const age = performance.now() - heard;
    if (status && age > LATE && byId("link").textContent === "live") link(`the last decision is ${span(Math.round(age))} old`, "bad");
  }, AGAIN);
  listen();
};

begin();
