// Differences of runs to a baseline: a plot with 95 % intervals for each measure, and a table.

import { IntervalPlot } from "./contenders.js";
import { clear, el } from "./dom.js";
import { fillTable } from "./figure.js";
import { interval, number, signed } from "./format.js";

const LEVEL = "no clear difference";

// A difference in a word: only an interval that leaves zero out says more than chance.
export function outcome({ difference, higher_is_better: isHigher }) {
  const { low, high } = difference;
  if (low === null || high === null) return "not known";
  if (low === 0 && high === 0) return "equal";
  if (low <= 0 && high >= 0) return LEVEL;
  return (low > 0) === isHigher ? "better" : "worse";
}

const MARKS = { better: "▲", worse: "▼", equal: "=", [LEVEL]: "≈", "not known": "?" };

export class Differences {
  constructor() {
    this.plots = new Map();
    this.body = el("div", { class: "differences" });
    this.heading = el("h2", { id: "differences-title" }, "Differences to the baseline");
    this.note = el("p", { class: "note" });
    this.node = el("section", { class: "figure wide", id: "differences", "aria-labelledby": "differences-title" }, this.heading, this.note, this.body);
  }

  // runs: [{name, place, differences}] without the baseline.
  show(baseline, runs) {
    const groups = grouped(runs);
    const key = JSON.stringify([baseline, groups]);
    if (key === this.key) return;
    this.key = key;
    this.heading.textContent = `Differences to ${baseline}`;
    const none = runs.filter((run) => !run.differences.length).map((run) => run.name);
    this.note.textContent = [
      "Run minus baseline, with 95 % intervals. Paired: both had the same hosts, so that luck with a host cancels out.",
      none.length ? `Nothing measured in both yet: ${none.join(", ")}.` : "",
    ].join(" ");
    const kept = new Map(groups.map((group) => [group.title, this.plots.get(group.title) ?? new Group(group.title)]));
    this.plots = kept;
    clear(this.body).append(...groups.map((group) => kept.get(group.title).node));
    groups.forEach((group) => kept.get(group.title).show(group));
  }
}

class Group {
  constructor(title) {
    this.plot = new IntervalPlot("difference to the baseline", { zero: true });
    this.picture = el("div", { class: "plot" });
    this.table = el("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": `${title}, table` });
    this.node = el("section", { class: "difference" }, el("h3", {}, title), this.picture, this.table);
  }

  show({ title, rows }) {
    const plotted = rows.map(({ name, place, one }) => ({ label: name, estimate: one.difference, n: one.n, place }));
    this.plot.source(plotted, null).draw(this.picture);
    fillTable(this.table, {
      columns: [{ label: "run" }, { label: "baseline", number: true }, { label: "run", number: true }, { label: "difference", number: true }, { label: "" }, { label: "how" }],
      rows: rows.map(({ name, one }) => [name, interval(one.theirs), interval(one.ours), change(one.difference), verdict(one), one.how]),
    }, `${title}${rows[0].one.higher_is_better ? "" : "; lower is better"}`);
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

function change({ value, low, high }) {
  if (value === null) return "-";
  const range = low === null || high === null ? "" : ` [${number(low, 3)}, ${number(high, 3)}]`;
  return `${signed(value)}${range}`;
}

function verdict(one) {
  const word = outcome(one);
  return el("span", { class: "verdict", "data-outcome": word }, el("span", { "aria-hidden": "true" }, MARKS[word]), ` ${word}`);
}
