// Sizes, times and sentences, as memtide's commands write them.

const UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"]];

/** A quantity of memory, as in `2.05 GiB`. */
export const bytes = quantity => {
  for (const [size, unit] of UNITS) {
    if (quantity < size) continue;
    const hundredths = Math.floor((quantity * 100 + size / 2) / size);
    const whole = Math.floor(hundredths / 100), rest = hundredths % 100;
    if (rest === 0) return `${whole} ${unit}`;
    if (whole >= 100) return `${Math.floor((hundredths + 50) / 100)} ${unit}`;
    if (whole >= 10) {
      const tenth = Math.floor((rest + 5) / 10);
      return tenth === 10 ? `${whole + 1} ${unit}` : `${whole}.${tenth} ${unit}`;
    }
    return `${whole}.${String(rest).padStart(2, "0")} ${unit}`;
  }
  if (quantity === 0) return "0";
  return quantity < 1024 ? `${quantity} B` : `${Math.floor(quantity / 1024)} KiB`;
};

/** A span of time in milliseconds, as in `4.2 s`. */
export const span = ms => {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 120000) return `${Math.floor(ms / 1000)}.${Math.floor((ms % 1000) / 100)} s`;
  if (ms < 7200000) return `${Math.floor((ms + 30000) / 60000)} min`;
  const tenths = Math.floor((ms + 180000) / 360000);
  return `${Math.floor(tenths / 10)}.${tenths % 10} h`;
};

/** A part of a span, in percent: `micros` of `ms` milliseconds. */
export const share = (micros, ms) => {
  if (ms <= 0) return "–";
  const tenths = Math.min(1000, Math.floor(micros / ms));
  if (tenths === 0) return "0";
  return tenths < 100 ? `${Math.floor(tenths / 10)}.${tenths % 10} %` : `${Math.floor(tenths / 10)} %`;
};

/** A time of day, as in `14:32:07`. */
export const time = wall => new Date(wall).toLocaleTimeString("en-GB", { hour12: false });

/** `1 guest`, `2 guests`. */
export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** The text with the value of each `{name}` in it. */
export const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

/** The first line of `memtide status`. */
export const headline = status =>
  `${status.version}, ${status.mode === "manage" ? "managing" : "only observing"}, ${status.commitment}, host ${status.host.state}`;

/** The ledger in words: where the host's memory is. */
export const ledger = (host, parts) => {
  const named = parts.filter(part => host[part.key] > 0 || part.key !== "torn");
  return `${bytes(host.capacity)} = ${named.map(part => `${bytes(host[part.key])} ${part.name}`).join(" + ")}`;
};

/** The parts of a sum in words, as in `300 MiB in use, 724 MiB free`. */
export const inWords = (values, parts) =>
  parts.filter(part => values[part.key] > 0).map(part => `${bytes(values[part.key])} ${part.name}`).join(", ");
