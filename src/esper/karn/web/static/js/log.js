// What happened in a run, newest first: the events of training, the runs of a search, policies.

import { el, setText } from "./dom.js";
import { clock, duration, number } from "./format.js";

const time = ["time (UTC)", (line) => clock(line.time)];
const FORMS = {
  train: { title: "Last events", columns: [time, ["round", (line) => number(line.round === null ? null : line.round + 1)]] },
  grow: { title: "Log", columns: [["time", (line) => duration(line.elapsed)], ["rung", (line) => number(line.round)]] },
  compare: { title: "Log", columns: [time] },
  audit: { title: "Log", columns: [time] },
};

export class LogFigure {
  constructor(kind) {
    const { title, columns } = FORMS[kind];
    this.kind = kind;
    this.columns = columns;
    this.shown = null;
    this.body = el("tbody", {});
    this.box = el("div", { class: "table-box events", tabindex: "0", role: "region", "aria-label": `${title}, table` },
      el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([name]) => el("th", { scope: "col", class: "num" }, name)),
        el("th", { scope: "col" }, "what happened"))), this.body));
    this.note = el("p", { class: "note" });
    this.node = el("section", { class: "figure wide", id: "log", "aria-labelledby": "log-title" }, el("h2", { id: "log-title" }, title), this.note, this.box);
  }

  update({ events, log, log_total: total, problems }) {
    const lines = this.kind === "train" ? events : log;
    const problem = problems.log ?? problems.events;
    const newest = total > lines.length ? `The newest ${lines.length} of ${total}, the last one first.` : "Newest first.";
    this.node.hidden = !lines.length && !problem;
    setText(this.note, problem ? `Cannot be read: ${problem}` : newest);
    this.note.className = problem ? "problem" : "note";
    if (lines === this.shown) return; // nothing moves for those who read
    this.shown = lines;
    this.body.replaceChildren(...lines.slice().reverse().map((line) => el("tr", { class: line.unusual ? "unusual" : null },
      ...this.columns.map(([, value]) => el("td", { class: "num" }, value(line))), el("th", { scope: "row" }, line.text))));
  }
}
