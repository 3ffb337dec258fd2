// The menu that chooses the columns of the list: those of every run, and any setting.

import { ask } from "./api.js";
import { clear, el, setText } from "./dom.js";
import { COLUMN_NAMES, columnOf, settingColumn } from "./columns.js";

export class ColumnMenu {
  // `onChange` is called after the state has changed.
  constructor(state, onChange) {
    this.state = state;
    this.onChange = onChange;
    this.settings = null;
    this.button = el("button", {
      type: "button", "aria-expanded": "false", "aria-controls": "columns", click: () => this.toggle(),
    }, "Columns");
    this.find = el("input", { type: "search", placeholder: "find a column or setting", "aria-label": "Find a column or setting", input: () => this.fill() });
    this.lists = el("div", { class: "menu-lists" });
    this.note = el("p", { class: "note", role: "status" });
    this.reset = el("button", { type: "button", click: () => this.restore() }, "Default columns");
    this.panel = el("div", { class: "menu", id: "columns", role: "group", "aria-label": "Columns", hidden: true },
      el("div", { class: "menu-head" }, this.find, this.reset), this.lists, this.note);
    this.node = el("div", { class: "menu-box", keydown: (event) => this.key(event) }, this.button, this.panel);
    document.addEventListener("pointerdown", (event) => { if (!this.node.contains(event.target)) this.close(); });
    this.node.addEventListener("focusout", (event) => {
      if (event.relatedTarget && !this.node.contains(event.relatedTarget)) this.close();
    });
  }

  toggle() {
    if (this.panel.hidden) this.open();
    else this.close();
  }

  async open() {
    this.panel.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.fill();
    this.find.focus();
    try {
      this.settings = (await ask("/api/settings")).settings;
      setText(this.note, "");
    } catch (error) {
      setText(this.note, error.message);
    }
    this.fill();
  }

  close() {
    this.panel.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
  }

  key(event) {
    if (event.key === "Escape" && !this.panel.hidden) {
      event.preventDefault();
      this.close();
      this.button.focus();
    }
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target !== this.button && !this.panel.hidden) {
      event.preventDefault();
      this.step(event.key === "ArrowDown" ? 1 : -1);
    }
  }

  step(by) {
    const stops = [this.find, ...this.lists.querySelectorAll("input")];
    const at = stops.indexOf(document.activeElement);
    stops[Math.min(stops.length - 1, Math.max(0, at + by))].focus();
  }

  restore() {
    this.state.restoreColumns();
    this.onChange();
    this.fill();
  }

  fill() {
    const text = this.find.value.trim().toLowerCase();
    const settings = (this.settings ?? []).map((one) => ({ ...one, column: settingColumn(one.name) }));
    const known = new Set(settings.map((one) => one.column));
    const groups = [
      ["Every run", COLUMN_NAMES.map((name) => ({ column: name, label: columnOf(name).label, note: "" }))],
      ["Settings that differ", settings.filter((one) => one.values > 1).map(settingChoice)],
      ["Settings with one value", settings.filter((one) => one.values < 2).map(settingChoice)],
      ["Chosen, of no run here", this.settings === null ? [] : this.state.columns
        .filter((name) => columnOf(name).isSetting && !known.has(name)).map((name) => ({ column: name, label: columnOf(name).label, note: "" }))],
    ];
    const shown = groups.map(([title, choices]) => [title, choices.filter((one) => one.label.toLowerCase().includes(text))])
      .filter(([, choices]) => choices.length);
    const focused = document.activeElement?.value;
    clear(this.lists).append(...shown.map(([title, choices]) => el("fieldset", {}, el("legend", {}, title), ...choices.map((one) => this.choice(one)))));
    if (!shown.length) this.lists.append(el("p", { class: "empty" }, "Nothing of that name."));
    if (document.activeElement === document.body && focused) this.lists.querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
  }

  choice({ column, label, note }) {
    const box = el("input", {
      type: "checkbox", value: column, checked: this.state.columns.includes(column),
      change: () => { this.state.toggleColumn(column); this.onChange(); },
    });
    return el("label", { class: "pick" }, box, el("span", {}, label), note ? el("span", { class: "note" }, note) : null);
  }
}

function settingChoice({ column, name, runs, values }) {
  return { column, label: name, note: `${runs} ${runs === 1 ? "run" : "runs"}${values > 1 ? `, ${values} values` : ""}` };
}
