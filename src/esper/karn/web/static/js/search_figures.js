// The figures of searches, comparisons and audits. Each has a `node` and `update(data)`.

import { contenderRows, contenderTable, IntervalPlot } from "./contenders.js";
import { Curves, curveSource } from "./curves.js";
import { Figure } from "./figure.js";
import { number, topologyText } from "./format.js";
import { FrontierPlot, policyPoints } from "./frontier.js";
import { withPlaces } from "./identity.js";
import { NetworksFigure } from "./networks.js";

const FEW = 8;

class FrontierFigure {
  constructor() {
    const note = "Test score with its 95 % interval over contexts.";
    this.figure = new Figure("frontier", "Score against size", { note, wide: true });
    this.plot = new FrontierPlot();
    this.node = this.figure.node;
  }

  update(data) {
    const groups = [{ label: "", points: data.frontier, place: 0 }];
    this.figure.show(this.plot.source(groups), { problem: data.problems.frontier });
  }
}

class BestFigure {
  constructor() {
    this.curves = new Curves({ xLabel: "seconds of training, all runs", yLabel: "validation score", log: "x" });
    this.figure = new Figure("best", "Best score so far", { note: "Validation score of the best network within the budget." });
    this.node = this.figure.node;
  }

  // A step wherever the best score changes, the last one up to now.
  update(data) {
    const { best } = data;
    const end = Math.max(0, ...data.frontier.map((point) => point.elapsed ?? 0));
    const x = [];
    const y = [];
    best.forEach((point, i) => {
      if (i) { x.push(point.elapsed); y.push(best[i - 1].val_score); }
      x.push(point.elapsed);
      y.push(point.val_score);
    });
    if (best.length && end > x.at(-1)) { x.push(end); y.push(y.at(-1)); }
    this.figure.show({
      draw: (node) => this.curves.show(node, [{ label: "best so far", x, y }]),
      table: () => bestTable(best),
    }, { problem: data.problems.best });
  }
}

function bestTable(best) {
  return {
    columns: [{ label: "seconds", number: true }, { label: "validation score", number: true }, { label: "network" }, { label: "parameters", number: true }],
    rows: best.map((point) => [number(point.elapsed), number(point.val_score), `#${point.label}`, number(point.params)]),
  };
}

class NetworkCurveFigure {
  constructor(kind) {
    const grow = kind === "grow";
    this.pinned = null;
    this.curves = new Curves({ xLabel: grow ? "length of the run (1: full)" : "share of the budget", yLabel: "validation score" });
    this.note = grow ? "Every point is a run of its own, with its own schedule. " : "";
    this.figure = new Figure("curves", grow ? "Score by length" : "Learning curves of networks", { wide: !grow });
    this.node = this.figure.node;
  }

  // The best come first: of many, the plot has these, the table all that were sent.
  update(data) {
    this.data = data;
    const series = data.curves.filter((curve) => curve.points.length).map((curve) => ({
      label: [topologyText(curve), curve.recipe].filter(Boolean).join(", "), isPinned: curve.runs.includes(this.pinned),
      x: curve.points.map((p) => p.length), y: curve.points.map((p) => p.score),
    }));
    const isPinned = series.some((one) => one.isPinned);
    for (const one of series) one.faint = isPinned && !one.isPinned;
    const top = withPlaces("network", series.filter((one, i) => i < FEW || one.isPinned));
    const source = curveSource(this.curves, series);
    const note = this.note + (series.length > FEW
      ? `The ${FEW} with the best scores; the table has ${series.length} of ${data.curves_total}.` : "");
    this.figure.show({ draw: (node) => this.curves.show(node, top), table: source.table },
      { problem: data.problems.curves, note });
  }
}

// Where a network is pinned, its curve is highlighted.
function grownFigures(id) {
  const networks = new NetworksFigure(id);
  const curves = new NetworkCurveFigure("grow");
  networks.onPin = (label) => {
    curves.pinned = label;
    curves.update(curves.data);
  };
  return [networks, new BestFigure(), curves];
}

export class ContenderFigure {
  constructor(name, title, options) {
    this.name = name;
    this.figure = new Figure(`contenders-${name}`, title, { note: "Mean with its 95 % interval." });
    this.plot = new IntervalPlot(title.toLowerCase(), options);
    this.node = this.figure.node;
  }

  update(data) {
    const groups = [{ label: "", contenders: data.contenders, place: 0 }];
    const rows = contenderRows(groups, this.name);
    this.figure.show(this.plot.source(rows, () => contenderTable(groups)), { problem: data.problems.contenders });
    const awaited = this.name === "score" && data.run.kind === "compare";
    this.node.hidden = !data.problems.contenders && !awaited
      && !rows.some((row) => row.estimate.value !== null);
  }
}

export class PolicySizeFigure {
  constructor() {
    const note = "Mean score with its 95 % interval; the line joins those that no smaller one beats.";
    this.figure = new Figure("policy-sizes", "Score against size", { note });
    this.plot = new FrontierPlot("score");
    this.node = this.figure.node;
  }

  update(data) {
    const points = policyPoints(data.contenders);
    const { draw } = this.plot.source([{ label: "", points, place: 0 }]);
    const table = () => contenderTable([{ label: "", contenders: data.contenders, place: 0 }]);
    this.figure.show({ draw, table }, { problem: data.problems.contenders });
    this.node.hidden = points.length < 2;
  }
}

export function searchFigures(id, data) {
  const kind = data.run.kind;
  if (kind === "grow") return grownFigures(id);
  const contenders = () => [new ContenderFigure("score", "Score"),
    new ContenderFigure("difference", "Score minus that of the reference", { zero: true }),
    new ContenderFigure("test", "Test accuracy"), new PolicySizeFigure()];
  return kind === "compare" ? contenders() : [...contenders(), new FrontierFigure(), new NetworkCurveFigure(kind)];
}
