// Two or more runs in the same plots.

import { ask, follow } from "./api.js";
import { contenderRows, contenderTable, IntervalPlot } from "./contenders.js";
import { Curves, curveSource } from "./curves.js";
import { el, main, setText } from "./dom.js";
import { fillTable, Figure, select } from "./figure.js";
import { duration, number, progressText, words } from "./format.js";
import { FrontierPlot } from "./frontier.js";
import { RunData } from "./rundata.js";
import { startTheme } from "./theme.js";

const MAX_RUNS = 8;
const METRICS = [
  ["score", "score"], ["accuracy", "validation accuracy"], ["train_accuracy", "training accuracy"],
  ["mean_return", "return"], ["added_params", "added parameters"], ["flops_ratio", "training FLOPs over the host's"],
  ["germinated", "seeds germinated"], ["fossilized", "seeds made permanent"], ["pruned", "seeds pruned"], ["seconds", "seconds"],
];
const X = [["round", "round"], ["minutes", "minutes"]];

class ComparePage {
  constructor(ids) {
    this.runs = new Map(ids.map((id, place) => [id, { id, place, data: new RunData(), stop: null, said: "" }]));
    this.metric = "score";
    this.x = "round";
    this.status = el("p", { class: "note", role: "status" });
    this.picker = el("div", { class: "picker" });
    this.curves = new Curves({ xLabel: "round", yLabel: "score" });
    const metric = select("Value", METRICS, (value) => { this.metric = value; this.draw(); });
    const x = select("by", X, (value) => { this.x = value; this.draw(); });
    this.curveFigure = new Figure("curves", "Training runs", { controls: [metric.node, x.node], wide: true });
    this.frontierFigure = new Figure("frontier", "Score against size", { wide: true });
    this.frontier = new FrontierPlot();
    this.contenderFigure = new Figure("contenders", "Policies: score", { note: "Mean with its 95 % interval.", wide: true });
    this.contenders = new IntervalPlot("score");
    this.summary = el("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Runs side by side" });
    this.summaryFigure = el("section", { class: "figure wide" }, el("h2", {}, "Side by side"), this.summary);
    this.figures = [this.curveFigure.node, this.frontierFigure.node, this.contenderFigure.node, this.summaryFigure];
    main().append(el("h1", {}, "Compare runs"), el("details", { open: ids.length < 2 }, el("summary", {}, "Choose runs"), this.picker),
      this.status, el("div", { class: "figures" }, ...this.figures));
  }

  start() {
    for (const run of this.runs.values()) {
      run.stop = follow(run.id, (message, first) => {
        run.data.apply(message, first);
        run.said = "";
        this.draw();
      }, (state, reason) => {
        run.said = state === "open" ? "" : `${run.id}: ${reason || "esper serve does not answer; trying again"}`;
        this.say();
      });
    }
    this.draw();
    this.fillPicker();
  }

  async fillPicker() {
    try {
      const { runs } = await ask("/api/runs");
      const boxes = runs.map((run) => el("label", { class: "pick" },
        el("input", { type: "checkbox", value: run.id, checked: this.runs.has(run.id), change: () => this.choose() }),
        ` ${run.name} `, el("span", { class: "note" }, `${run.kind}, ${run.state}`)));
      this.picker.replaceChildren(...boxes);
    } catch (error) {
      setText(this.picker, error.message);
    }
  }

  choose() {
    const ids = [...this.picker.querySelectorAll("input:checked")].map((box) => box.value).slice(0, MAX_RUNS);
    const kept = [...this.runs.keys()].filter((id) => ids.includes(id));
    const order = [...kept, ...ids.filter((id) => !kept.includes(id))];
    location.assign(`/compare?${order.map((id) => `run=${id}`).join("&")}`);
  }

  known() {
    return [...this.runs.values()].filter((run) => run.data.run);
  }

  say() {
    const problems = [...this.runs.values()].map((run) => run.said).filter(Boolean);
    const ended = this.known().filter((run) => run.data.run.state === "killed").map((run) => run.data.run.name);
    if (ended.length) problems.push(`the process that wrote ${ended.join(", ")} is gone; what it had written is shown`);
    const text = this.runs.size ? problems.join("; ") : "Choose two or more runs.";
    setText(this.status, text);
    this.status.hidden = !text;
  }

  draw() {
    const runs = this.known();
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
    this.summaryFigure.hidden = !runs.length;
    if (runs.length) fillTable(this.summary, sideBySide(runs), "Runs side by side; settings only where they differ");
    this.say();
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

function sideBySide(runs) {
  const facts = [
    ["kind", (d) => d.run.kind], ["state", (d) => d.run.state], ["progress", (d) => progressText(d.run)],
    ["time", (d) => duration(d.run.seconds)], ["task", (d) => d.run.task || "-"], ["policy", (d) => d.run.policy || "-"],
    ["seed", (d) => String(d.run.seed ?? "-")], ["result", (d) => d.run.headline || "-"],
  ];
  const setups = runs.map((run) => run.data.setup || {});
  const names = [...new Set(setups.flatMap((setup) => Object.keys(setup)))]
    .filter((name) => !["task", "policy", "seed"].includes(name));
  const text = (value) => (Array.isArray(value) ? value.join(" ") : typeof value === "number" ? number(value) : value ?? "-");
  const differing = names.filter((name) => new Set(setups.map((setup) => JSON.stringify(setup[name]))).size > 1);
  return {
    columns: [{ label: "" }, ...runs.map((run) => ({ label: run.data.run.name }))],
    rows: [
      ...facts.map(([name, value]) => [name, ...runs.map((run) => value(run.data))]),
      ...differing.map((name) => [words(name), ...setups.map((setup) => text(setup[name]))]),
      ["page", ...runs.map((run) => el("a", { href: `/runs/${run.id}` }, "open"))],
    ],
  };
}

startTheme();
const ids = [...new Set(new URLSearchParams(location.search).getAll("run"))]
  .filter((id) => /^[~\w][\w.@+=-]*$/.test(id)).slice(0, MAX_RUNS);
new ComparePage(ids).start();
