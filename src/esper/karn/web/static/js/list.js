// The list of runs, read again every few seconds while the page is visible.

import { ask } from "./api.js";
import { ColumnMenu } from "./columnmenu.js";
import { cellContent, columnOf, comparator, keyOf, settingOf } from "./columns.js";
import { breakable, clear, el, main, setText } from "./dom.js";
import { select } from "./figure.js";
import { KINDS, ListState, STATES } from "./liststate.js";

const PERIOD = 3000;
const PAGE = 500;
const MAX_COMPARED = 8;
const NAME = { name: "name", label: "run", value: (run) => run.name };

class Row {
  constructor(run, { onSelect, onTag, isSelected }) {
    this.actions = { onTag };
    this.check = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: isSelected, change: () => onSelect(run.id, this.check.checked) });
    this.report = el("a", { class: "row-report", href: `/runs/${run.id}/report`, "aria-label": `Report of ${run.name}` }, "report");
    this.node = el("tr", {}, el("td", { class: "check" }, this.check),
      el("th", { scope: "row", class: "name" }, el("a", { href: `/runs/${run.id}` }, ...breakable(run.name)), this.report));
    this.cells = [];
    this.columns = null;
  }

  // Cells that hold what they should are not touched, so that the focus stays.
  update(run, columns) {
    this.run = run;
    this.report.hidden = !run.report;
    if (this.columns !== columns) {
      this.columns = columns;
      for (const cell of this.cells) cell.node.remove();
      this.cells = columns.map((column) => ({ key: null, node: el("td", { class: cellClass(column), "data-label": column.label }) }));
      this.node.append(...this.cells.map((cell) => cell.node));
    }
    columns.forEach((column, i) => {
      const key = keyOf(column, run);
      if (this.cells[i].key === key) return;
      this.cells[i].key = key;
      if (column.name === "result") this.cells[i].node.dataset.judged = String(run.judged);
      this.cells[i].node.replaceChildren(...cellContent(column, run, this.actions));
    });
  }
}

class List {
  constructor() {
    this.state = new ListState(location.search);
    this.rows = new Map();
    this.runs = [];
    this.most = PAGE;
    this.makeTools();
    this.makeTable();
    this.makeBar();
    main().append(el("h1", {}, "Runs"), this.where, this.tools, this.count, this.empty, this.box, this.more, this.problems, this.bar);
    this.columnsChanged();
    this.showSelection();
  }

  makeTools() {
    this.filter = el("input", { type: "search", id: "filter", placeholder: "name, task, policy, tag", value: this.state.text, input: () => this.filterBy({ text: this.filter.value.trim() }) });
    this.kind = choice("Kind", "all kinds", KINDS, this.state.kind, (kind) => this.filterBy({ kind }));
    this.status = choice("State", "all states", STATES, this.state.state, (state) => this.filterBy({ state }));
    this.tag = select("Tag", [["", "any tag"]], (tag) => tag && this.addTag(tag));
    this.menu = new ColumnMenu(this.state, () => { this.columnsChanged(); this.refresh(); });
    this.order = select("Sort by", [], (name) => this.sortBy(name));
    this.turn = el("button", { type: "button", class: "turn", click: () => this.sortBy(this.state.sort) });
    this.chips = el("div", { class: "chips" });
    this.tools = el("div", { class: "tools" }, el("label", { class: "control" }, "Find ", this.filter), this.kind.node, this.status.node,
      this.tag.node, this.chips, el("div", { class: "order" }, this.order.node, this.turn), this.menu.node);
    this.count = el("p", { class: "note", role: "status" }, "Reading the runs ...");
    this.where = el("p", { class: "note" });
  }

  makeTable() {
    this.empty = el("p", { class: "empty", hidden: true }, "No runs yet. ", el("code", {}, "esper grow --demo"),
      " grows a small network on built-in digits in under a minute, ", el("code", {}, "esper train ppo"), " trains a controller.");
    this.head = el("tr", {});
    this.body = el("tbody", {});
    this.table = el("table", { class: "runs" }, el("thead", {}, this.head), this.body);
    this.box = el("div", { class: "runs-box" }, this.table);
    this.more = el("button", { type: "button", hidden: true, click: () => { this.most += PAGE; this.arrange(); } });
    this.problems = el("ul", { class: "problems" });
  }

  makeBar() {
    this.chosen = el("span", { role: "status" });
    this.clear = el("button", { type: "button", click: () => this.selectNone() }, "Clear");
    this.compare = el("a", { class: "button primary", role: "link", "aria-disabled": "true" }, "Compare");
    this.bar = el("div", { class: "bar", role: "region", "aria-label": "Selection" }, this.chosen, el("span", { class: "spacer" }), this.clear, this.compare);
  }

  // ---- what is shown

  columnsChanged() {
    this.columns = this.state.columns.map(columnOf);
    const sortable = [NAME, ...this.columns];
    if (!sortable.some((column) => column.name === this.state.sort)) sortable.push(columnOf(this.state.sort));
    this.head.replaceChildren(el("td", {}), ...[NAME, ...this.columns].map((column) => this.heading(column)));
    this.order.control.replaceChildren(...sortable.map((column) => el("option", { value: column.name }, column.label)));
    this.showOrder();
    this.state.keep();
    this.arrange();
  }

  heading(column) {
    const mark = el("span", { "aria-hidden": "true", class: "sort-mark" });
    return el("th", { scope: "col", class: cellClass(column), "data-column": column.name, title: column.title },
      el("button", { type: "button", class: "sort", click: () => this.sortBy(column.name) }, column.label, mark));
  }

  showOrder() {
    for (const cell of this.head.querySelectorAll("th")) {
      const isSorted = cell.dataset.column === this.state.sort;
      if (isSorted) cell.setAttribute("aria-sort", this.state.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      setText(cell.querySelector(".sort-mark"), isSorted ? (this.state.descending ? " ▼" : " ▲") : "");
    }
    this.order.control.value = this.state.sort;
    setText(this.turn, this.state.descending ? "▼ descending" : "▲ ascending");
  }

  sortBy(name) {
    const column = name === NAME.name ? NAME : columnOf(name);
    const first = Boolean(column.number || column.descends);
    this.state.descending = this.state.sort === name ? !this.state.descending : first;
    this.state.sort = name;
    this.showOrder();
    this.filterBy({});
  }

  filterBy(changes) {
    Object.assign(this.state, changes);
    this.state.keep();
    this.arrange();
  }

  addTag(tag) {
    this.filterBy({ tags: [...new Set([...this.state.tags, tag])] });
  }

  showTags() {
    const known = [...new Set(this.runs.flatMap((run) => run.tags))].sort();
    const free = known.filter((tag) => !this.state.tags.includes(tag));
    const key = JSON.stringify([free, this.state.tags]);
    if (key === this.tagKey) return;
    this.tagKey = key;
    this.tag.control.replaceChildren(el("option", { value: "" }, this.state.tags.length ? "another tag" : "any tag"),
      ...free.map((tag) => el("option", { value: tag }, tag)));
    this.tag.node.hidden = !free.length;
    this.chips.replaceChildren(...this.state.tags.map((tag) => el("button", {
      type: "button", class: "tag", "aria-label": `Do not filter by the tag ${tag}`,
      click: () => { this.filterBy({ tags: this.state.tags.filter((one) => one !== tag) }); this.filter.focus(); },
    }, tag, el("span", { "aria-hidden": "true" }, " ✕"))));
  }

  // ---- selection

  select(id, isSelected) {
    if (isSelected) this.state.selected.add(id);
    else this.state.selected.delete(id);
    this.state.keep();
    this.showSelection();
  }

  selectNone() {
    for (const id of this.state.selected) if (this.rows.has(id)) this.rows.get(id).check.checked = false;
    this.state.selected.clear();
    this.state.keep();
    this.showSelection();
    this.filter.focus();
  }

  showSelection() {
    const ids = [...this.state.selected];
    const hidden = ids.filter((id) => this.rows.has(id) && !this.state.wants(this.rows.get(id).run)).length;
    const others = hidden ? `, ${hidden} of them hidden by the filter` : "";
    const limit = ids.length > MAX_COMPARED ? `; at most ${MAX_COMPARED} can be compared` : "";
    setText(this.chosen, ids.length ? `${ids.length} selected${others}${limit}` : "Select two runs or more to compare them");
    this.clear.hidden = !ids.length;
    setText(this.compare, ids.length ? `Compare ${ids.length} selected` : "Compare");
    if (ids.length >= 2 && ids.length <= MAX_COMPARED) {
      this.compare.setAttribute("href", `/compare?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`);
      this.compare.removeAttribute("aria-disabled");
    } else {
      this.compare.removeAttribute("href");
      this.compare.setAttribute("aria-disabled", "true");
    }
  }

  // ---- reading

  settings() {
    return this.state.columns.map(settingOf).filter((name) => name !== null);
  }

  async refresh() {
    const wanted = this.settings().map((name) => `setting=${encodeURIComponent(name)}`).join("&");
    try {
      this.show(await ask(`/api/runs${wanted ? `?${wanted}` : ""}`));
    } catch (error) {
      setText(this.count, `The server does not answer (${error.message}); trying again.`);
    }
  }

  show({ folder, runs }) {
    this.runs = runs;
    setText(this.where, `in ${folder}`);
    const ids = new Set(runs.map((run) => run.id));
    for (const id of [...this.rows.keys()]) if (!ids.has(id)) this.rows.delete(id);
    for (const id of [...this.state.selected]) if (!ids.has(id)) this.state.selected.delete(id);
    for (const run of runs) {
      if (!this.rows.has(run.id)) this.rows.set(run.id, this.newRow(run));
      this.rows.get(run.id).run = run;
    }
    this.arrange();
  }

  newRow(run) {
    return new Row(run, {
      isSelected: this.state.selected.has(run.id),
      onSelect: (id, isSelected) => this.select(id, isSelected), onTag: (tag) => this.addTag(tag),
    });
  }

  // Rows that are in place already are not touched, so that the focus stays.
  arrange() {
    const order = this.state.sort === NAME.name ? NAME : columnOf(this.state.sort);
    const wanted = this.runs.filter((run) => this.state.wants(run)).sort(comparator(order, this.state.descending));
    const shown = wanted.slice(0, this.most).map((run) => this.rows.get(run.id));
    shown.forEach((row, i) => {
      row.update(row.run, this.columns);
      if (this.body.children[i] !== row.node) this.body.insertBefore(row.node, this.body.children[i] ?? null);
    });
    while (this.body.children.length > shown.length) this.body.lastElementChild.remove();
    this.say(wanted, shown.length);
    this.showTags();
    this.showSelection();
  }

  say(wanted, shown) {
    const running = this.runs.filter((run) => run.state === "running").length;
    const all = wanted.length === this.runs.length ? plural(this.runs.length) : `${wanted.length} of ${plural(this.runs.length)}`;
    if (this.runs.length) setText(this.count, `${all}, ${running} running`);
    else if (this.where.textContent) setText(this.count, "");
    this.empty.hidden = this.runs.length > 0 || !this.where.textContent;
    this.box.hidden = !this.runs.length;
    this.bar.hidden = !this.runs.length;
    this.more.hidden = shown === wanted.length;
    setText(this.more, `Show ${Math.min(PAGE, wanted.length - shown)} more`);
    const said = wanted.filter((run) => run.problem).map((run) => `${run.name}: ${run.problem}`);
    if (said.join("\n") !== this.said) clear(this.problems).append(...said.map((text) => el("li", {}, text)));
    this.said = said.join("\n");
  }
}

function cellClass(column) {
  return [column.isSetting ? "setting" : column.name, column.number ? "num" : ""].filter(Boolean).join(" ");
}

function choice(label, every, names, chosen, onChange) {
  const found = select(label, [["", every], ...names.map((name) => [name, name])], onChange);
  found.control.value = names.includes(chosen) ? chosen : "";
  return found;
}

function plural(count) {
  return `${count} ${count === 1 ? "run" : "runs"}`;
}

async function keepReading(list) {
  if (document.visibilityState === "visible") await list.refresh();
  setTimeout(() => keepReading(list), PERIOD);
}

keepReading(new List());
