// Settings of several runs side by side: those that differ first, equal ones folded away.

import { clear, el, setText } from "./dom.js";
import { settingText } from "./columns.js";

const ABSENT = Symbol("absent");

export class SettingsDiff {
  constructor() {
    this.body = el("div", {});
    this.note = el("p", { class: "note" });
    this.equal = el("details", { class: "equal" });
    this.node = el("section", { class: "figure wide", id: "settings", "aria-labelledby": "settings-title" },
      el("h2", { id: "settings-title" }, "Settings"), this.note, this.body, this.equal);
  }

  // runs: [{name, kind, settings}], the baseline first.
  show(runs) {
    const key = JSON.stringify(runs.map(({ name, settings }) => [name, settings]));
    if (key === this.key) return;
    this.key = key;
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
    const rows = names.map((name) => ({ name, values: runs.map((run) => (Object.hasOwn(run.settings, name) ? run.settings[name] : ABSENT)) }));
    const differing = rows.filter(({ values }) => values.some((value) => value !== values[0]));
    const same = rows.filter((row) => !differing.includes(row));
    setText(this.note, differing.length
      ? `${differing.length} of ${names.length} differ; what differs from the baseline is marked.`
      : `All ${names.length} are equal.`);
    clear(this.body).append(...(differing.length ? [tableBox(differing, runs, "Settings that differ")] : []));
    const isOpen = this.equal.open;
    clear(this.equal).append(el("summary", {}, `${same.length} equal settings`), tableBox(same, runs.slice(0, 1), "Equal settings", "every run"));
    this.equal.open = isOpen;
    this.equal.hidden = !same.length || !differing.length && !names.length;
  }
}

// One body per group of nested settings, so that `ppo.entropy.start` is read as start, of ppo.entropy.
function tableBox(rows, runs, title, only = "") {
  const head = el("tr", {}, el("th", { scope: "col" }, "setting"),
    ...runs.map((run, i) => el("th", { scope: "col" }, only || `${run.name}${i ? "" : " (baseline)"}`)));
  const groups = new Map();
  for (const row of rows) {
    const at = row.name.lastIndexOf(".");
    const group = at < 0 ? "" : row.name.slice(0, at);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(row);
  }
  const bodies = [...groups].map(([group, some]) => el("tbody", {},
    group ? el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: runs.length + 1 }, group.split(".").join(" › "))) : null,
    ...some.map((row) => settingRow(row, group, only ? 1 : runs.length))));
  return el("div", { class: "table-box tall", tabindex: "0", role: "region", "aria-label": title },
    el("table", { class: "settings" }, el("caption", {}, title), el("thead", {}, head), ...bodies));
}

function settingRow({ name, values }, group, count) {
  const label = group ? name.slice(group.length + 1) : name;
  const cells = values.slice(0, count).map((value, i) => {
    const isOther = value !== values[0];
    const text = value === ABSENT ? el("span", { class: "absent" }, "not a setting here") : said(value);
    return el("td", { class: isOther ? "changed" : null }, i && isOther ? el("strong", {}, text) : text);
  });
  return el("tr", {}, el("th", { scope: "row", class: group ? "nested" : null, title: name }, label), ...cells);
}

function said(value) {
  return value === "" ? "(empty)" : settingText(value);
}
