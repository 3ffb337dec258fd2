// The list of runs, read again every few seconds while the page is visible.

import { ask } from "./api.js";
import { breakable, el, main, setText } from "./dom.js";
import { duration, progressText, STATE_MARKS } from "./format.js";
import { startTheme } from "./theme.js";

const PERIOD = 3000;
const MAX_ROWS = 500;

class Row {
  constructor(run, onSelect) {
    this.id = run.id;
    this.check = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, change: onSelect });
    this.link = el("a", { href: `/runs/${run.id}` }, ...breakable(run.name));
    this.kind = el("td", { class: "kind" });
    this.state = el("span", { class: "state" });
    this.mark = el("span", { "aria-hidden": "true", class: "state-mark" });
    this.bar = el("progress", { max: 1, "aria-label": `Progress of ${run.name}` });
    this.done = el("span", { class: "done" });
    this.result = el("td", { class: "result", "data-label": "result" });
    this.what = el("td", { "data-label": "on" });
    this.time = el("td", { class: "num", "data-label": "time" });
    this.created = el("td", { "data-label": "created (UTC)" });
    this.report = el("td", {});
    this.node = el("tr", {},
      el("td", { class: "check" }, this.check), el("th", { scope: "row", class: "name" }, this.link),
      this.kind, el("td", {}, this.state), el("td", { class: "progress" }, this.bar, this.done),
      this.result, this.what, this.time, this.created, this.report);
    this.update(run);
  }

  update(run) {
    this.run = run;
    setText(this.kind, run.kind);
    if (this.state.dataset.state !== run.state) {
      this.state.dataset.state = run.state;
      setText(this.mark, STATE_MARKS[run.state]);
      this.state.replaceChildren(this.mark, ` ${run.state}`);
    }
    this.state.title = run.problem;
    this.bar.hidden = run.progress === null;
    if (run.progress !== null) this.bar.value = run.progress;
    setText(this.done, run.where || (run.unit ? progressText(run) : ""));
    this.done.title = run.under_way;
    setText(this.result, run.headline);
    this.result.dataset.judged = String(run.judged);
    setText(this.what, [run.task, run.policy].filter(Boolean).join(", "));
    setText(this.time, duration(run.seconds));
    setText(this.created, run.created || "-");
    if (run.report !== (this.report.childElementCount > 0)) {
      this.report.replaceChildren(...(run.report
        ? [el("a", { href: `/runs/${run.id}/report`, "aria-label": `Report of ${run.name}` }, "report")] : []));
    }
  }
}

class List {
  constructor() {
    this.rows = new Map();
    this.runs = [];
    this.filter = el("input", { type: "search", id: "filter", placeholder: "name, task, policy", input: () => this.arrange() });
    this.kind = el("select", { change: () => this.arrange() },
      ...["all kinds", "train", "grow", "compare", "audit"].map((text, i) => el("option", { value: i ? text : "" }, text)));
    this.state = el("select", { change: () => this.arrange() },
      ...["all states", "running", "finished", "interrupted", "failed", "killed", "broken"]
        .map((text, i) => el("option", { value: i ? text : "" }, text)));
    this.compare = el("a", { class: "button", role: "link", "aria-disabled": "true" }, "Compare");
    this.count = el("p", { class: "note", role: "status" }, "Reading the runs ...");
    this.where = el("p", { class: "note" });
    this.empty = el("p", { class: "empty", hidden: true }, "No runs yet. ", el("code", {}, "esper grow --demo"),
      " grows a small network on built-in digits in under a minute, ", el("code", {}, "esper train ppo"), " trains a controller.");
    this.body = el("tbody", {});
    this.problems = el("ul", { class: "problems" });
    const heads = ["", "run", "kind", "state", "progress", "result", "on", "time", "created (UTC)", ""];
    const numbers = new Set([7]);
    this.table = el("table", { class: "runs" }, el("thead", {}, el("tr", {}, ...heads.map((text, i) =>
      (text ? el("th", { scope: "col", class: numbers.has(i) ? "num" : null }, text) : el("td", {}))))), this.body);
    main().append(el("h1", {}, "Runs"), this.where,
      el("div", { class: "tools" }, el("label", { class: "control" }, "Find ", this.filter),
        el("label", { class: "control" }, "Kind ", this.kind), el("label", { class: "control" }, "State ", this.state), this.compare),
      this.count, this.empty, this.table, this.problems);
    this.select();
  }

  select() {
    const chosen = this.runs.filter((run) => this.rows.get(run.id)?.check.checked);
    const enough = chosen.length >= 2;
    setText(this.compare, chosen.length ? `Compare ${chosen.length} selected` : "Select runs to compare");
    if (enough) {
      this.compare.setAttribute("href", `/compare?${chosen.map((run) => `run=${run.id}`).join("&")}`);
      this.compare.removeAttribute("aria-disabled");
    } else {
      this.compare.removeAttribute("href");
      this.compare.setAttribute("aria-disabled", "true");
    }
  }

  show({ folder, runs }) {
    this.runs = runs;
    setText(this.where, `in ${folder}`);
    const ids = new Set(runs.map((run) => run.id));
    for (const id of [...this.rows.keys()]) if (!ids.has(id)) this.rows.delete(id);
    for (const run of runs) {
      const row = this.rows.get(run.id);
      if (row) row.update(run);
      else this.rows.set(run.id, new Row(run, () => this.select()));
    }
    this.arrange();
    this.select();
  }

  wanted(run) {
    const text = this.filter.value.trim().toLowerCase();
    const words = `${run.name} ${run.task} ${run.policy}`.toLowerCase();
    return (!this.kind.value || run.kind === this.kind.value)
      && (!this.state.value || run.state === this.state.value) && words.includes(text);
  }

  // Rows that are in place already are not touched, so that the focus stays.
  arrange() {
    const wanted = this.runs.filter((run) => this.wanted(run));
    const nodes = wanted.slice(0, MAX_ROWS).map((run) => this.rows.get(run.id).node);
    nodes.forEach((node, i) => {
      if (this.body.children[i] !== node) this.body.insertBefore(node, this.body.children[i] ?? null);
    });
    while (this.body.children.length > nodes.length) this.body.lastElementChild.remove();
    const running = this.runs.filter((run) => run.state === "running").length;
    const cut = wanted.length > nodes.length ? `; the newest ${nodes.length} are shown` : "";
    const all = wanted.length === this.runs.length ? plural(this.runs.length) : `${wanted.length} of ${plural(this.runs.length)}`;
    setText(this.count, this.runs.length ? `${all}, ${running} running${cut}` : "");
    this.empty.hidden = this.runs.length > 0;
    this.table.hidden = !this.runs.length;
    this.problems.replaceChildren(...wanted.filter((run) => run.problem)
      .map((run) => el("li", {}, `${run.name}: ${run.problem}`)));
  }
}

function plural(count) {
  return `${count} ${count === 1 ? "run" : "runs"}`;
}

async function refresh(list) {
  if (document.visibilityState === "visible") {
    try {
      list.show(await ask("/api/runs"));
    } catch (error) {
      setText(list.count, `The server does not answer (${error.message}); trying again.`);
    }
  }
  setTimeout(() => refresh(list), PERIOD);
}

startTheme();
refresh(new List());
