// Two or more runs beside a baseline: differences, curves, settings.

import { ask, follow } from "./api.js";
import { contenderRows, contenderTable, IntervalPlot } from "./contenders.js";
import { Curves, curveSource } from "./curves.js";
import { Differences } from "./differences.js";
import { el, main, setText, svg } from "./dom.js";
import { fillTable, Figure, select } from "./figure.js";
import { duration, number, signed, STATE_MARKS } from "./format.js";
import { FrontierPlot } from "./frontier.js";
import { RunData } from "./rundata.js";
import { SettingsDiff } from "./settingsdiff.js";
import { DASHES, onTheme, seriesColour } from "./theme.js";

const MAX_RUNS = 8;
const READ_AGAIN = 3000;
const METRICS = [
  ["score", "score"], ["accuracy", "validation accuracy"], ["train_accuracy", "training accuracy"],
  ["mean_return", "return"], ["added_params", "added parameters"], ["flops_ratio", "training FLOPs over the host's"],
  ["germinated", "seeds germinated"], ["fossilized", "seeds made permanent"], ["pruned", "seeds pruned"], ["seconds", "seconds"],
];
const X = [["round", "round"], ["minutes", "minutes"]];

class ComparePage {
  constructor(ids, baseline) {
    this.runs = new Map(ids.map((id, place) => [id, { id, place, data: new RunData(), stop: null, said: "" }]));
    this.baseline = ids.includes(baseline) ? baseline : ids[0];
    this.found = null;
    this.metric = "score";
    this.x = "round";
    this.status = el("p", { class: "note", role: "status" });
    this.cards = el("ul", { class: "cards", "aria-label": "Compared runs" });
    this.find = el("input", { type: "search", placeholder: "name, task, tag", "aria-label": "Find a run", input: () => this.fillPicker() });
    this.picker = el("div", { class: "picker" });
    this.curves = new Curves({ xLabel: "round", yLabel: "score" });
    const metric = select("Value", METRICS, (value) => { this.metric = value; this.draw(); });
    const x = select("by", X, (value) => { this.x = value; this.draw(); });
    this.differences = new Differences();
    this.settings = new SettingsDiff();
    this.curveFigure = new Figure("curves", "Training runs", { controls: [metric.node, x.node], wide: true });
    this.frontierFigure = new Figure("frontier", "Score against size", { wide: true });
    this.frontier = new FrontierPlot();
    this.contenderFigure = new Figure("contenders", "Policies: score", { note: "Mean with its 95 % interval.", wide: true });
    this.contenders = new IntervalPlot("score");
    this.summary = el("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Runs side by side" });
    this.summaryFigure = el("section", { class: "figure wide" }, el("h2", {}, "Side by side"), this.summary);
    this.figures = [this.differences.node, this.summaryFigure, this.curveFigure.node, this.frontierFigure.node, this.settings.node, this.contenderFigure.node];
    main().append(el("h1", {}, "Compare runs"), this.status, this.cards,
      el("details", { open: ids.length < 2 }, el("summary", {}, "Choose runs"), this.find, this.picker),
      el("div", { class: "figures" }, ...this.figures));
    onTheme(() => { this.cardKey = null; this.draw(); });
  }

  start() {
    for (const run of this.runs.values()) {
      run.stop = follow(run.id, (message, first) => {
        run.data.apply(message, first);
        run.said = "";
        this.draw();
        this.readSoon();
      }, (state, reason) => {
        run.said = state === "open" ? "" : `${run.id}: ${reason || "esper serve does not answer; trying again"}`;
        this.say();
      });
    }
    this.keep();
    this.draw();
    this.readPicker();
    if (this.runs.size) this.read();
  }

  // ---- the address, and what it chooses

  address(ids, baseline) {
    const said = new URLSearchParams(ids.map((id) => ["run", id]));
    if (baseline && baseline !== ids[0]) said.set("baseline", baseline);
    return `/compare${ids.length ? `?${said}` : ""}`;
  }

  keep() {
    history.replaceState(null, "", this.address([...this.runs.keys()], this.baseline));
  }

  pin(id) {
    this.baseline = id;
    this.keep();
    this.showCards();
    this.read();
  }

  choose(ids) {
    location.assign(this.address(ids, ids.includes(this.baseline) ? this.baseline : ""));
  }

  async readPicker() {
    try {
      this.listed = (await ask("/api/runs")).runs;
      this.fillPicker();
    } catch (error) {
      setText(this.picker, error.message);
    }
  }

  fillPicker() {
    const text = this.find.value.trim().toLowerCase();
    const wanted = (this.listed ?? []).filter((run) => `${run.name} ${run.task} ${run.tags.join(" ")}`.toLowerCase().includes(text));
    const isFull = this.runs.size >= MAX_RUNS;
    this.picker.replaceChildren(...wanted.map((run) => el("label", { class: "pick" },
      el("input", {
        type: "checkbox", value: run.id, checked: this.runs.has(run.id), disabled: isFull && !this.runs.has(run.id),
        change: (event) => this.choose(event.target.checked ? [...this.runs.keys(), run.id] : [...this.runs.keys()].filter((id) => id !== run.id)),
      }),
      el("span", {}, run.name), el("span", { class: "note" }, [run.kind, run.state, ...run.tags].join(", ")))));
  }

  // ---- differences and settings, which the server reads

  readSoon() {
    if (this.waiting) return;
    this.waiting = setTimeout(() => { this.waiting = null; this.read(); }, READ_AGAIN);
  }

  async read() {
    const asked = this.baseline;
    const runs = [...this.runs.keys()].map((id) => `run=${encodeURIComponent(id)}`).join("&");
    try {
      const found = await ask(`/api/compare?${runs}&baseline=${encodeURIComponent(asked)}`);
      if (asked !== this.baseline) return;
      this.found = found;
      this.unread = "";
    } catch (error) {
      this.unread = error.message;
    }
    this.draw();
  }

  known() {
    return [...this.runs.values()].filter((run) => run.data.run);
  }

  say() {
    const problems = [...this.runs.values()].map((run) => run.said).filter(Boolean);
    const ended = this.known().filter((run) => run.data.run.state === "killed").map((run) => run.data.run.name);
    if (ended.length) problems.push(`the process that wrote ${ended.join(", ")} is gone; what it had written is shown`);
    if (this.unread) problems.push(this.unread);
    for (const said of Object.values(this.found?.problems ?? {})) problems.push(...said);
    const text = this.runs.size ? [...new Set(problems)].join("; ") : "Choose two or more runs.";
    setText(this.status, text);
    this.status.hidden = !text;
  }

  draw() {
    const runs = this.known();
    this.showCards();
    const trained = runs.filter((run) => run.data.run.kind === "train");
    this.curves.xLabel = this.x;
    this.curves.yLabel = METRICS.find(([name]) => name === this.metric)[1];
    this.curveFigure.show(curveSource(this.curves, trained.map((run) => this.series(run))));
    this.curveFigure.node.hidden = !trained.length;
    const searched = runs.filter((run) => run.data.frontier.length)
      .map((run) => ({ label: run.data.run.name, points: run.data.frontier, place: run.place }));
    this.frontierFigure.show(this.frontier.source(searched));
    this.frontierFigure.node.hidden = !searched.length;
    const compared = runs.filter((run) => run.data.contenders.length)
      .map((run) => ({ label: run.data.run.name, contenders: run.data.contenders, place: run.place }));
    this.contenderFigure.show(this.contenders.source(contenderRows(compared, "score"), () => contenderTable(compared)));
    this.contenderFigure.node.hidden = !compared.length;
    this.showDifferences(runs);
    this.summaryFigure.hidden = !runs.length;
    if (runs.length) fillTable(this.summary, sideBySide(this.baselineFirst(runs), this.baseline), "Runs side by side; differences to the baseline in brackets");
    this.say();
  }

  showDifferences(runs) {
    const ordered = this.baselineFirst(runs);
    const isKnown = this.found !== null && ordered.length > 0 && ordered[0].id === this.found.baseline;
    this.differences.node.hidden = !isKnown || ordered.length < 2;
    this.settings.node.hidden = !isKnown;
    if (!isKnown) return;
    const { differences, settings } = this.found;
    this.differences.show({ name: ordered[0].data.run.name, place: ordered[0].place }, ordered.slice(1).map((run) => ({ name: run.data.run.name, place: run.place, differences: differences[run.id] ?? [] })));
    this.settings.show(ordered.map((run) => ({ name: run.data.run.name, settings: settings[run.id] ?? {} })));
  }

  baselineFirst(runs) {
    return [...runs].sort((one, other) => (other.id === this.baseline) - (one.id === this.baseline));
  }

  showCards() {
    const runs = [...this.runs.values()].map((run) => ({ ...run, run: run.data.run }));
    const key = JSON.stringify([this.baseline, runs.map(({ id, run }) => [id, run?.name, run?.state, run?.tags])]);
    if (key === this.cardKey) return;
    this.cardKey = key;
    const focused = document.activeElement?.id;
    this.cards.replaceChildren(...runs.map((one) => this.card(one)));
    if (focused) document.getElementById(focused)?.focus();
  }

  card({ id, place, run }) {
    const isBaseline = id === this.baseline;
    const name = run?.name ?? id;
    const pin = el("input", { type: "radio", name: "baseline", id: `pin-${place}`, checked: isBaseline, "aria-label": `Baseline: ${name}`, change: () => this.pin(id) });
    const line = svg("line", { x1: 1, y1: 6, x2: 27, y2: 6, stroke: seriesColour(place), "stroke-width": 2.5, "stroke-dasharray": DASHES[place % DASHES.length].join(" ") });
    return el("li", { class: isBaseline ? "run-card baseline" : "run-card" },
      el("div", { class: "run-card-name" }, svg("svg", { width: 28, height: 12, "aria-hidden": "true" }, line), el("a", { href: `/runs/${id}` }, name)),
      el("div", { class: "run-card-more" },
        el("label", { class: "control" }, pin, "baseline"),
        run ? el("span", { class: "state", "data-state": run.state }, el("span", { "aria-hidden": "true" }, STATE_MARKS[run.state]), ` ${run.state}`) : null,
        ...(run?.tags ?? []).map((tag) => el("span", { class: "tag" }, tag)),
        el("span", { class: "spacer" }),
        el("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}`, click: () => this.choose([...this.runs.keys()].filter((other) => other !== id)) }, "✕")));
  }

  series(run) {
    const points = run.data.rounds;
    const started = points.length ? points[0].time - (points[0].seconds ?? 0) : 0;
    const found = points.map((point) => point[this.metric]);
    const hasBand = points.length > 0 && found[0] !== null && typeof found[0] === "object";
    return {
      label: run.data.run.name, place: run.place,
      x: points.map((point) => (this.x === "round" ? point.round + 1 : (point.time - started) / 60)),
      y: found.map((value) => (hasBand ? value.value : value)),
      low: hasBand ? found.map((value) => value.low) : undefined,
      high: hasBand ? found.map((value) => value.high) : undefined,
    };
  }
}

function sideBySide(runs, baseline) {
  const reference = runs.find((run) => run.id === baseline)?.data.run;
  const beside = (name, show) => (run) => {
    const [value, theirs] = [run[name], reference?.[name]];
    if (value === null) return "-";
    const apart = run === reference || theirs === null || theirs === undefined ? "" : ` (${signed(value - theirs)})`;
    return `${show(value)}${apart}`;
  };
  const facts = [
    ["kind", (run) => run.kind], ["progress", (run) => (run.unit ? run.amount : "-")], ["task, model", (run) => run.task || "-"],
    ["policy", (run) => run.policy || "-"], ["seed", (run) => String(run.seed ?? "-")],
    ["result", (run) => run.headline || "-"], ["parameters", beside("params", number)],
    ["gain", (run) => signed(run.result.gain?.value)], ["duration", (run) => duration(run.seconds)],
  ].filter(([, value]) => runs.some((run) => value(run.data.run) !== "-"));
  return {
    columns: [{ label: "run" }, ...runs.map((run) => ({ label: `${run.data.run.name}${run.id === baseline ? " (baseline)" : ""}` }))],
    rows: facts.map(([name, value]) => [name, ...runs.map((run) => value(run.data.run))]),
  };
}

const given = new URLSearchParams(location.search);
const ids = [...new Set(given.getAll("run"))].filter((id) => /^[~\w][\w.@+=-]*$/.test(id)).slice(0, MAX_RUNS);
new ComparePage(ids, given.get("baseline")).start();
