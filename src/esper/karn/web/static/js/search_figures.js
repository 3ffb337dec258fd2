// The figures of searches, comparisons and audits. Each has a `node` and `update(data)`.

import { contenderRows, contenderTable, IntervalPlot } from "./contenders.js";
import { Curves, curveSource } from "./curves.js";
import { el } from "./dom.js";
import { Figure } from "./figure.js";
import { topologyText } from "./format.js";
import { FrontierPlot, policyPoints } from "./frontier.js";
import { withPlaces } from "./identity.js";
import { LineageFigure } from "./lineage.js";
import { NetworkCard } from "./network_card.js";
import { BestFigure, NetworksFigure } from "./networks.js";
import { Selection } from "./selection.js";

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
    this.figure.show(this.plot.source(groups), { problem: data.problems.frontier ?? data.problems.left_out });
  }
}

class NetworkCurveFigure {
  // `selection`: of a search, whose pinned network is highlighted.
  constructor(kind, selection = null) {
    const grow = kind === "grow";
    this.pinned = null;
    selection?.onChange(({ pinned }) => {
      if (pinned === this.pinned) return;
      this.pinned = pinned;
      if (this.data) this.update(this.data);
    });
    this.curves = new Curves({ xLabel: grow ? "length of the run (1: full)" : "share of the budget", yLabel: "validation score" });
    this.note = grow ? "Every point is a run of its own, with its own schedule. " : "";
    this.figure = new Figure("curves", grow ? "Score by length" : "Learning curves of networks", { wide: true });
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
      { problem: data.problems.curves ?? data.problems.left_out, note });
  }
}

// The plots of a search with the one card that belongs to all of them.
class SearchView {
  constructor(id) {
    const selection = new Selection();
    this.card = new NetworkCard(id, selection);
    const scores = [new NetworksFigure(selection), new BestFigure(selection)];
    this.parts = [...scores, new LineageFigure(selection)];
    this.curves = new NetworkCurveFigure("grow", selection);
    this.node = el("div", { class: "search" },
      el("div", { class: "search-plots" }, el("div", { class: "pair" }, ...scores.map((part) => part.node)), this.parts.at(-1).node),
      el("div", { class: "card-side" }, this.card.node), this.card.detail);
  }

  update(data) {
    this.card.update(data);
    for (const part of this.parts) part.update(data);
  }
}

function grownFigures(id) {
  const view = new SearchView(id);
  return [view, view.curves];
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
