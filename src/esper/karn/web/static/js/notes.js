// What is said about a search beside its plots: its cost, how to use it, its data, its settings.

import { el } from "./dom.js";

const LONG_CODE = 20; // lines

export class Notes {
  constructor() {
    this.node = el("div", { class: "figures" });
    this.shown = null;
  }

  update({ notes, problems }) {
    if (notes === this.shown) return;
    this.shown = notes;
    this.node.replaceChildren(...notes.map(section));
    if (problems.notes) this.node.append(el("p", { class: "problem" }, `Cannot be read: ${problems.notes}`));
  }
}

function section({ title, lines, rows, code }, i) {
  const parts = lines.map((line) => el("p", { class: "line" }, line));
  if (rows.length) parts.push(el("table", {}, el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value))))));
  if (code) {
    const shown = el("pre", { tabindex: 0 }, el("code", {}, code));
    parts.push(code.split("\n").length > LONG_CODE ? el("details", {}, el("summary", {}, "Show it"), shown) : shown);
  }
  return el("section", { class: rows.length > 6 ? "figure wide" : "figure", "aria-labelledby": `note-${i}` }, el("h2", { id: `note-${i}` }, title), ...parts);
}
