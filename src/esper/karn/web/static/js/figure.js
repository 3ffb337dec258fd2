// A figure: a title, a plot, the same numbers as a table behind a button, and a menu that saves it.

import { clear, el, setText } from "./dom.js";
import { SaveMenu } from "./save.js";

const MAX_ROWS = 500;

// `draw(node)` is called when the plot is visible, `table()` when the table is.
export class Figure {
  constructor(id, title, { note = "", controls = [], wide = false } = {}) {
    this.plot = el("div", { class: "plot" });
    this.table = el("div", { class: "table-box", hidden: true, tabindex: "0" });
    this.table.setAttribute("role", "region");
    this.table.setAttribute("aria-label", `${title}, table`);
    this.problem = el("p", { class: "problem", hidden: true });
    this.note = el("p", { class: "note" }, note);
    this.note.hidden = !note;
    this.button = el("button", {
      type: "button", class: "toggle", "aria-pressed": "false", click: () => this.toggle(),
    }, "Table");
    this.heading = el("h2", { id: `${id}-title` }, title);
    this.save = new SaveMenu(this);
    this.node = el("section", {
      class: wide ? "figure wide" : "figure", id, "aria-labelledby": `${id}-title`,
    }, el("div", { class: "figure-head" }, this.heading, this.save.node, ...controls, this.button),
    this.note, this.problem, this.plot, this.table);
    this.showsTable = false;
    this.source = null;
  }

  toggle() {
    this.showsTable = !this.showsTable;
    this.button.setAttribute("aria-pressed", String(this.showsTable));
    this.plot.hidden = this.showsTable;
    this.table.hidden = !this.showsTable;
    this.refresh();
  }

  // `source`: { draw(node), table() -> {columns, rows}, csv?() -> the same in full }.
  show(source, { problem = "", note = null } = {}) {
    this.source = source;
    setText(this.problem, problem ? `Cannot be read: ${problem}` : "");
    this.problem.hidden = !problem;
    if (note !== null) {
      setText(this.note, note);
      this.note.hidden = !note;
    }
    this.refresh();
  }

  // The numbers of the figure in full.
  csv() {
    return this.source.csv ? this.source.csv() : this.source.table();
  }

  refresh() {
    if (!this.source) return;
    if (this.showsTable) fillTable(this.table, this.source.table(), this.heading.textContent);
    else this.source.draw(this.plot);
  }
}

// Rows hold texts or nodes; columns {label, number}.
export function fillTable(box, { columns, rows }, title) {
  const left = box.scrollLeft;
  const top = box.scrollTop;
  const shown = rows.slice(-MAX_ROWS);
  const head = el("tr", {}, ...columns.map((column) =>
    el("th", { scope: "col", class: column.number ? "num" : null }, column.label)));
  const body = shown.map((row) => el("tr", {}, ...row.map((cell, i) =>
    el(i === 0 ? "th" : "td", {
      scope: i === 0 ? "row" : null, class: columns[i].number ? "num" : null,
    }, cell))));
  const rest = rows.length - shown.length;
  const caption = rest > 0 ? `${title} (the last ${shown.length} of ${rows.length})` : title;
  clear(box).append(el("table", {}, el("caption", {}, caption),
    el("thead", {}, head), el("tbody", {}, ...body)));
  box.scrollLeft = left;
  box.scrollTop = top;
}

export function select(label, options, onChange) {
  const control = el("select", { change: () => onChange(control.value) },
    ...options.map(([value, text]) => el("option", { value }, text)));
  return { node: el("label", { class: "control" }, `${label} `, control), control };
}

export function emptyPlot(node, text) {
  clear(node).append(el("p", { class: "empty" }, text));
}
