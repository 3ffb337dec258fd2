// What was said about a run, newest first: the events of training.

import { el } from "./dom.js";
import { clock, number } from "./format.js";

export class LogFigure {
  constructor() {
    this.body = el("tbody", {});
    this.box = el("div", { class: "table-box events", tabindex: "0", role: "region", "aria-label": "Last events" },
      el("table", {}, el("thead", {}, el("tr", {}, ...["time (UTC)", "round", "what happened"]
        .map((text) => el("th", { scope: "col" }, text)))), this.body));
    this.note = el("p", { class: "note" });
    this.node = el("section", { class: "figure wide", id: "events" }, el("h2", {}, "Last events"), this.note, this.box);
  }

  update(data) {
    const problem = data.problems.events;
    this.node.hidden = !data.events.length && !problem;
    this.note.textContent = problem ? `Cannot be read: ${problem}` : "Newest first.";
    this.note.className = problem ? "problem" : "note";
    this.body.replaceChildren(...data.events.slice().reverse().map((event) => el("tr", { class: event.unusual ? "unusual" : null },
      el("td", { class: "num" }, clock(event.time)), el("td", { class: "num" }, number(event.round === null ? null : event.round + 1)),
      el("th", { scope: "row" }, event.text))));
  }
}
