// Differences of runs to a baseline: for each measure a table with its 95 % intervals drawn in it.

import { clear, el, setText, svg } from "./dom.js";
import { interval, number, signed } from "./format.js";
import { linear, linearTicks } from "./axes.js";
import { seriesColour } from "./theme.js";

const LEVEL = "no clear difference";
const MARKS = { better: "▲", worse: "▼", equal: "=", [LEVEL]: "≈", "not known": "?" };
const WIDTH = 260;
const HEIGHT = 26;
const PAD = 8;

// A difference in a word: only an interval that leaves zero out says more than chance.
export function outcome({ difference, higher_is_better: isHigher }) {
  const { low, high } = difference;
  if (low === null || high === null) return "not known";
  if (low === 0 && high === 0) return "equal";
  if (low <= 0 && high >= 0) return LEVEL;
  return (low > 0) === isHigher ? "better" : "worse";
}

export class Differences {
  constructor() {
    this.body = el("div", { class: "differences" });
    this.heading = el("h2", { id: "differences-title" }, "Differences to the baseline");
    this.note = el("p", { class: "note" });
    this.node = el("section", { class: "figure wide", id: "differences", "aria-labelledby": "differences-title" }, this.heading, this.note, this.body);
  }

  // runs: [{name, place, differences}] without the baseline, which is {name, place}.
  show(baseline, runs) {
    const key = JSON.stringify([baseline, runs, seriesColour(0)]);
    if (key === this.key) return;
    this.key = key;
    setText(this.heading, `Differences to ${baseline.name}`);
    const none = runs.filter((run) => !run.differences.length).map((run) => run.name);
    setText(this.note, [
      "Run minus baseline, with 95 % intervals.",
      runs.some((run) => run.differences.some((one) => one.how.startsWith("paired"))) ? "Paired: on the same hosts or samples, so that luck cancels out." : "",
      none.length ? `Nothing was measured in both yet: ${none.join(", ")}.` : "",
    ].join(" "));
    clear(this.body).append(...grouped(runs).map((group) => measureTable(group, baseline)));
  }
}

function grouped(runs) {
  const groups = new Map();
  for (const { name, place, differences } of runs) {
    for (const one of differences) {
      const title = `${one.label}: ${one.measure}`;
      if (!groups.has(title)) groups.set(title, { title, rows: [] });
      groups.get(title).rows.push({ name, place, one });
    }
  }
  return [...groups.values()];
}

function measureTable({ title, rows }, baseline) {
  const first = rows[0].one;
  const ends = rows.flatMap(({ one: { difference: { value, low, high } } }) => [value, low, high]).filter((end) => end !== null);
  const range = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const scale = linear(range[0] === range[1] ? [-1, 1] : range, [PAD, WIDTH - PAD]);
  const columns = ["run", first.measure, "difference", "", "", "how"];
  const head = el("tr", {}, ...columns.map((label, i) => (label ? el("th", { scope: "col" }, label) : el("td", {}, i === 3 ? axis(scale, range) : null))));
  const caption = first.higher_is_better ? title : `${title} (lower is better)`;
  return el("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "difference" }, el("caption", {}, caption), el("thead", {}, head), el("tbody", {},
      el("tr", {}, nameCell(baseline), el("td", { "data-label": first.measure }, interval(first.theirs)), el("td", { colspan: 4, class: "note" }, "baseline")),
      ...rows.map(({ name, place, one }) => el("tr", {}, nameCell({ name, place }),
        el("td", { "data-label": one.measure }, interval(one.ours)), el("td", { "data-label": "difference" }, change(one.difference)),
        el("td", { class: "drawn" }, drawn(one.difference, scale, place)), el("td", {}, verdict(one)), el("td", { class: "how" }, one.how))))));
}

function nameCell({ name, place }) {
  const dot = svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("circle", { cx: 6, cy: 6, r: 5, fill: seriesColour(place) }));
  return el("th", { scope: "row" }, el("span", { class: "series-name" }, dot, name));
}

function axis(scale, [from, to]) {
  const kept = [0];
  for (const tick of linearTicks(from, to, 6)) {
    const isInside = scale(tick) > 20 && scale(tick) < WIDTH - 20;
    if (isInside && kept.every((one) => Math.abs(scale(tick) - scale(one)) > 44)) kept.push(tick);
  }
  return svg("svg", { width: WIDTH, height: 16, "aria-hidden": "true" },
    ...kept.map((tick) => svg("text", { x: Math.min(WIDTH - 16, Math.max(16, scale(tick))), y: 12, "text-anchor": "middle" }, number(tick, 3))));
}

function drawn({ value, low, high }, scale, place) {
  const y = HEIGHT / 2;
  const picture = svg("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    svg("line", { class: "reference", x1: scale(0), x2: scale(0), y1: 0, y2: HEIGHT }));
  if (value === null) return picture;
  const ink = seriesColour(place);
  if (low !== null && high !== null) {
    picture.append(svg("line", { x1: scale(low), x2: scale(high), y1: y, y2: y, stroke: ink, "stroke-width": 2.5 }));
    for (const end of [low, high]) picture.append(svg("line", { x1: scale(end), x2: scale(end), y1: y - 4, y2: y + 4, stroke: ink, "stroke-width": 2 }));
  }
  picture.append(svg("circle", { cx: scale(value), cy: y, r: 5, fill: ink }));
  return picture;
}

function change({ value, low, high }) {
  if (value === null) return "-";
  const range = low === null || high === null ? "" : ` [${signed(low)}, ${signed(high)}]`;
  return `${signed(value)}${range}`;
}

function verdict(one) {
  const word = outcome(one);
  return el("span", { class: "verdict", "data-outcome": word }, el("span", { "aria-hidden": "true" }, MARKS[word]), ` ${word}`);
}
