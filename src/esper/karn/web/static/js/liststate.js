// What the list shows, as its address says it: filter, order, columns, selection.

import { COLUMN_NAMES, DEFAULT_COLUMNS, isColumn } from "./columns.js";

export const KINDS = ["train", "grow", "compare", "audit"];
export const STATES = ["running", "finished", "interrupted", "failed", "killed", "broken"];
const NEWEST = "-created";
const MAX_COLUMNS = COLUMN_NAMES.length + 40;

export class ListState {
  constructor(search) {
    const given = new URLSearchParams(search);
    this.text = given.get("q") ?? "";
    this.kind = KINDS.find((kind) => kind === given.get("kind")) ?? "";
    this.state = STATES.find((state) => state === given.get("state")) ?? "";
    this.tags = unique(given.getAll("tag"));
    const columns = unique(given.getAll("col").filter(isColumn)).slice(0, MAX_COLUMNS);
    this.columns = columns.length ? columns : [...DEFAULT_COLUMNS];
    const sort = given.get("sort") ?? NEWEST;
    this.descending = sort.startsWith("-");
    this.sort = this.descending ? sort.slice(1) : sort;
    if (this.sort !== "name" && !isColumn(this.sort)) [this.sort, this.descending] = ["created", true];
    this.selected = new Set(given.getAll("run"));
  }

  get isFiltered() {
    return Boolean(this.text || this.kind || this.state || this.tags.length);
  }

  get hasDefaultColumns() {
    return this.columns.join(" ") === DEFAULT_COLUMNS.join(" ");
  }

  // The same as an address; the shortest one that says it.
  search() {
    const said = new URLSearchParams();
    if (this.text) said.set("q", this.text);
    if (this.kind) said.set("kind", this.kind);
    if (this.state) said.set("state", this.state);
    for (const tag of this.tags) said.append("tag", tag);
    const sort = `${this.descending ? "-" : ""}${this.sort}`;
    if (sort !== NEWEST) said.set("sort", sort);
    if (!this.hasDefaultColumns) for (const column of this.columns) said.append("col", column);
    for (const run of this.selected) said.append("run", run);
    const text = said.toString();
    return text ? `?${text}` : "";
  }

  // Without a new entry in the history: Back leads to the page before the list.
  keep() {
    history.replaceState(null, "", location.pathname + this.search());
  }

  wants(run) {
    const words = `${run.name} ${run.task} ${run.policy} ${run.metric} ${run.tags.join(" ")}`.toLowerCase();
    return (!this.kind || run.kind === this.kind) && (!this.state || run.state === this.state)
      && this.tags.every((tag) => run.tags.includes(tag))
      && this.text.toLowerCase().split(/\s+/).every((word) => words.includes(word));
  }

  toggleColumn(name) {
    this.columns = this.columns.includes(name) ? this.columns.filter((one) => one !== name) : [...this.columns, name];
    if (!this.columns.length) this.restoreColumns();
  }

  restoreColumns() {
    this.columns = [...DEFAULT_COLUMNS];
  }
}

function unique(values) {
  return [...new Set(values)];
}
