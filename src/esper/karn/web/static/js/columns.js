// Columns of the list of runs: how each is shown, and what it is sorted by.

import { el } from "./dom.js";
import { duration, number, signed, STATE_MARKS } from "./format.js";

// A column: label; value(run), which it is sorted by; show(run), a text or nodes, else the value is
// the text; key(run), which changes whenever what is shown does, else the value; number: right of its
// cell; descends: a first click sorts from high to low, as of numbers.
const BUILT_IN = {
  state: { label: "state", value: (run) => run.state, show: stateCell, key: (run) => `${run.state} ${run.problem} ${run.progress} ${run.amount} ${run.where} ${leftText(run)}` },
  kind: { label: "kind", value: (run) => run.kind },
  task: { label: "task, model", value: (run) => run.task },
  policy: { label: "policy", value: (run) => run.policy },
  result: { label: "result", value: (run) => run.score, show: (run) => run.headline, key: (run) => `${run.headline} ${run.judged}`, descends: true },
  score: { label: "score", value: (run) => run.score, number: true },
  metric: { label: "metric", value: (run) => run.metric },
  params: { label: "parameters", value: (run) => run.params, number: true },
  gain: { label: "gain", value: (run) => run.result.gain?.value ?? null, show: (run) => (run.result.gain ? signed(run.result.gain.value) : ""), number: true, title: "of what was judged, over your model (grow), the same networks from the start (train), the reference (compare, audit)" },
  progress: { label: "progress", value: (run) => run.progress, show: (run) => (run.unit ? run.amount : ""), key: (run) => run.done, descends: true },
  seconds: { label: "duration", value: (run) => run.seconds, show: (run) => (run.seconds === null ? "" : duration(run.seconds)), number: true },
  created: { label: "created (UTC)", value: (run) => run.created, descends: true },
  seed: { label: "seed", value: (run) => run.seed, number: true },
  tags: { label: "tags", value: (run) => run.tags.join(" "), show: tagCell },
};
const SETTING = "setting:";

export const DEFAULT_COLUMNS = ["state", "kind", "task", "result", "seconds", "created", "tags"];
export const COLUMN_NAMES = Object.keys(BUILT_IN);

export function settingColumn(name) {
  return SETTING + name;
}

// Name of the setting behind a column; null: it is no setting.
export function settingOf(column) {
  return column.startsWith(SETTING) ? column.slice(SETTING.length) : null;
}

export function isColumn(name) {
  return Object.hasOwn(BUILT_IN, name) || (settingOf(name) ?? "") !== "";
}

export function columnOf(name) {
  const setting = settingOf(name);
  if (setting === null) return { name, ...BUILT_IN[name] };
  const value = (run) => (run.settings && Object.hasOwn(run.settings, setting) ? run.settings[setting] : null);
  return { name, label: setting, value, show: (run) => settingText(value(run), ""), isSetting: true };
}

export function settingText(value, unset = "none") {
  if (value === null || value === undefined) return unset;
  if (typeof value === "number") return number(value, 6);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value;
}

// What a cell holds; `keyOf` changes whenever that does.
export function cellContent(column, run, actions) {
  const value = (column.show ?? ((one) => plain(column.value(one))))(run, actions);
  return Array.isArray(value) ? value : [value];
}

export function keyOf(column, run) {
  return JSON.stringify((column.key ?? column.value)(run));
}

function plain(value) {
  return value === null ? "" : typeof value === "number" ? number(value) : value;
}

function stateCell(run) {
  const mark = el("span", { "aria-hidden": "true", class: "state-mark" }, STATE_MARKS[run.state]);
  const state = el("span", { class: "state", "data-state": run.state, title: run.problem || null }, mark, ` ${run.state}`);
  if (run.state === "finished" || !run.unit) return [state];
  const bar = run.progress === null ? null
    : el("progress", { max: 1, value: run.progress, "aria-label": `Progress of ${run.name}` });
  return [state, ...(bar ? [bar] : []), el("span", { class: "done", title: run.under_way || null }, run.where || run.amount, leftText(run))];
}

function leftText(run) {
  return run.seconds_left === null ? "" : `, about ${duration(run.seconds_left)} left`;
}

function tagCell(run, { onTag }) {
  return run.tags.map((tag) => el("button", {
    type: "button", class: "tag", "aria-label": `Show runs tagged ${tag}`, click: () => onTag(tag),
  }, tag));
}

// Orders runs by a column; unknown values come last either way.
export function comparator(column, descending) {
  const sign = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    const [noA, noB] = [a === null || a === "", b === null || b === ""];
    if (noA || noB) return noA - noB;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
}
