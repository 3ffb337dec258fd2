// Numbers, times and states as people read them; numbers and times as esper.plotting writes them.

const HUGE = 1e15; // from here on, and below TINY, powers of ten are written
const TINY = 1e-3;
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const MAX_TICK_DIGITS = 8;

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
const grouped = (value) => (value + 0).toLocaleString("en", { maximumFractionDigits: 20 });

export function number(value, digits = 4) {
  if (!isKnown(value)) return "-";
  const size = Math.abs(value);
  if (size >= HUGE || (size !== 0 && size < TINY)) return power(value, 3);
  if (size >= 10 ** digits) return grouped(Math.sign(value) * Math.round(size));
  return grouped(Number(value.toPrecision(digits)));
}

// As 1.5e-4.
function power(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${Number(exponent)}`;
}

export function signed(value, digits = 3) {
  if (!isKnown(value)) return "-";
  return `${value > 0 ? "+" : value < 0 ? "-" : "±"}${number(Math.abs(value), digits)}`;
}

export function interval(estimate, digits = 4) {
  if (!estimate) return "-";
  const { value, low, high } = estimate;
  if (![value, low, high].every(isKnown)) return number(value, digits);
  return `${number(value, digits)} [${number(low, 3)}, ${number(high, 3)}]`;
}

export function short(value, digits = 3) {
  const rounded = Number(value.toPrecision(digits)) + 0;
  const size = Math.abs(rounded);
  if ((size !== 0 && size < TINY) || size >= HUGE) return power(value, digits);
  const [unit, letter] = UNITS.find(([least]) => size >= least) ?? [1, ""];
  return `${Number((rounded / unit).toPrecision(digits))}${letter}`;
}

// Numbers of an axis, with the digits that distinguish them.
export function tickTexts(ticks) {
  const distinct = new Set(ticks).size;
  for (let digits = 3; digits < MAX_TICK_DIGITS; digits += 1) {
    const texts = ticks.map((tick) => short(tick, digits));
    if (new Set(texts).size === distinct) return texts;
  }
  return ticks.map((tick) => short(tick, MAX_TICK_DIGITS));
}

export function duration(seconds) {
  if (!isKnown(seconds)) return "-";
  const rest = Math.max(0, seconds);
  if (rest >= 0.05 && rest < 0.95) return `0.${Math.floor(rest * 10 + 0.5)} s`;
  const whole = Math.floor(rest + 0.5);
  for (const [unit, name, part, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole >= unit) return `${Math.floor(whole / unit)} ${name} ${Math.floor((whole % unit) / part)} ${small}`;
  }
  return `${whole} s`;
}

export function clock(seconds) {
  return seconds === null ? "-" : new Date(seconds * 1000).toISOString().slice(11, 19);
}

export function words(name) {
  return name.replaceAll("_", " ").toLowerCase();
}

export const STATE_MARKS = {
  running: "●", finished: "✓", interrupted: "‖", failed: "✕", killed: "○", broken: "!",
};

const LAST_WORK = {
  train: "Trained; judged on fresh hosts now.", grow: "Searched; judging what was found.",
  compare: "All policies are done; the report is written now.", audit: "All contexts are done; the report is written now.",
};

// One calm sentence on the state of a run.
export function stateSentence(run) {
  switch (run.state) {
    case "running": return run.progress === 1 ? LAST_WORK[run.kind] : "Running; the page follows it.";
    case "finished": return run.problem ? `Finished. Cannot be read: ${run.problem}` : "Finished.";
    case "interrupted":
      return "Stopped by a signal, with everything saved; it can be resumed.";
    case "failed": return `Ended by an error: ${run.problem}`;
    case "killed":
      return "The process that wrote this run is gone: killed, or the machine went down. " +
        "What it had written is shown; it can be resumed.";
    default: return `This folder, or a part of it, cannot be read: ${run.problem}`;
  }
}

export function topologyText(point) {
  const slots = point.topology || [];
  const noSeeds = point.origin === "given" ? "your model" : point.variant ? "" : "host";
  const seeds = slots.some(Boolean) ? slots.map((name) => name || "-").join(" ") : noSeeds;
  return [`#${point.label}`, point.variant, seeds].filter(Boolean).join(" ");
}

// A network of a search in words: width and depth, then seeds by place.
export function networkText(point) {
  const size = point.variant.split(" ").filter(Boolean)
    .map((part) => (part[0] === "x" ? `width ${part}` : `depth x${part.slice(1)}`));
  return [...size, ...point.topology.filter(Boolean)].join(", ") || "your model";
}

export function size(bytes) {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${number(bytes / 1e3, 3)} kB` : `${number(bytes / 1e6, 3)} MB`;
}

export function shorten(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
