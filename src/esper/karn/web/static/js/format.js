// Numbers, times and states as people read them.

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export function interval(estimate) {
  if (!estimate || estimate.value === null) return "-";
  if (estimate.low === null || estimate.high === null) return number(estimate.value);
  return `${number(estimate.value)} [${number(estimate.low, 3)}, ${number(estimate.high, 3)}]`;
}

export function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(3))}${letter}`;
  }
  return String(Number(value.toPrecision(3)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
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

export function progressText(run) {
  const done = `${number(run.done, 3)}`;
  return run.total ? `${done} of ${number(run.total, 3)} ${run.unit}` : `${done} ${run.unit}`;
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

export function signed(value) {
  return `${value > 0 ? "+" : value < 0 ? "−" : "±"}${number(Math.abs(value), 3)}`;
}

export function size(bytes) {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${number(bytes / 1e3, 3)} kB` : `${number(bytes / 1e6, 3)} MB`;
}
