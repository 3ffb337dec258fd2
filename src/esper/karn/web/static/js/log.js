// What was said about a run, newest first: the events of training.

import { el } from "./dom.js";
import { clock, number, words } from "./format.js";

export class LogFigure {
  constructor() {
    this.body = el("tbody", {});
    this.box = el("div", { class: "table-box events", tabindex: "0", role: "region", "aria-label": "Last events" },
      el("table", {}, el("thead", {}, el("tr", {}, ...["time (UTC)", "round", "step", "event", "what"]
        .map((text) => el("th", { scope: "col" }, text)))), this.body));
    this.node = el("section", { class: "figure wide", id: "events" }, el("h2", {}, "Last events"),
      el("p", { class: "note" }, "Newest first."), this.box);
  }

  update(data) {
    this.node.hidden = !data.events.length;
    this.body.replaceChildren(...data.events.slice().reverse().map((event) => el("tr", {},
      el("td", { class: "num" }, clock(event.time)), el("td", { class: "num" }, number(event.round === null ? null : event.round + 1)),
      el("td", { class: "num" }, number(event.step)), el("th", { scope: "row" }, words(event.type)), el("td", {}, event.text))));
  }
}
