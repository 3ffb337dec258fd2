// The networks of a search by score, against their size and against the time of the search: hollow
// with a validation score, filled once they are judged on test.

import { el, svg } from "./dom.js";
import { costScale, Drawing, linear, valueRange, whisker, xAxis, yAxis } from "./axes.js";
import { emptyPlot, Figure, select } from "./figure.js";
import { duration, interval, networkText, number } from "./format.js";
import { ink, Marks, shape } from "./marks.js";
import { onTheme, seriesColour } from "./theme.js";

const HEIGHT = 320;
const BOX = { left: 52, top: 30, bottom: HEIGHT - 44 };
const COSTS = [["params", "parameters"], ["macs", "MACs"], ["seconds", "seconds"]];
const SCORES = [["validation", "validation"], ["test", "test"]];

const isJudged = (point) => point.score.value !== null;
const validation = (point) => ({ value: point.val_score, low: null, high: null });

// Networks as marks: what they are drawn against is the figure's.
class ScatterFigure {
  constructor(selection, id, title, controls = []) {
    this.data = null;
    this.figure = new Figure(id, title, { controls });
    this.picture = el("div", { class: "networks-plot" });
    this.marks = new Marks(selection, this.picture);
    this.drawing = new Drawing((width) => this.paint(width));
    this.node = this.figure.node;
    onTheme(() => this.data && this.update(this.data));
  }

  known() {
    return this.data.frontier.filter((point) => this.value(point).value !== null && this.at(point) > 0)
      .sort((a, b) => this.at(a) - this.at(b) || this.value(a).value - this.value(b).value);
  }

  draw(node) {
    if (!this.data.frontier.length) {
      emptyPlot(node, this.data.run.state === "running" ? "The first network is being trained." : "No network has a score.");
      return;
    }
    if (this.picture.parentNode !== node) node.replaceChildren(this.picture);
    if (!this.known().length) emptyPlot(this.picture, "No network has been judged on test yet.");
    else this.marks.repaint(() => this.drawing.show(this.picture));
  }

  paint(width) {
    const points = this.known();
    const box = { ...BOX, right: width - 12 };
    const x = this.scale(points.map((point) => this.at(point)), [box.left, box.right]);
    const y = linear(valueRange(points.map((point) => this.value(point))), [box.bottom, box.top]);
    const places = points.map((point) => ({ point, label: point.label, x: x(this.at(point)), y: y(this.value(point).value) }));
    this.marks.places = places;
    const metric = this.data.run.metric;
    const title = `${this.kind} score${metric ? ` (${metric})` : ""}`;
    const entry = this.marks.entry();
    const picture = svg("svg", {
      width, height: HEIGHT, role: "group", "aria-label": `${title} of ${points.length} networks. Arrow keys move, Enter pins.`, ...this.marks.pointer,
    }, yAxis(y, box, { label: title }), xAxis(x, box, this.across), this.line(places, x, y));
    for (const place of places) picture.append(this.markOf(place, y, place.label === entry));
    return [picture, legend(points)];
  }

  markOf(place, scale, isEntry) {
    const { point, x, y } = place;
    const score = this.value(point);
    const bar = score.low === null || score.high === null ? null : whisker(score, scale, x, { stroke: ink(point), opacity: 0.6 });
    return this.marks.node(place, this.spoken(point), isEntry, bar, markShape(point, x, y));
  }

  spoken(point) {
    return `${networkText(point)}, ${this.kind} score ${number(this.value(point).value)}, ${number(point.params)} parameters`;
  }
}

// Against size.
export class NetworksFigure extends ScatterFigure {
  constructor(selection) {
    const scores = select("Score", SCORES, (value) => { this.kind = value; this.update(this.data); });
    const costs = select("by", COSTS, (value) => { this.cost = value; this.update(this.data); });
    super(selection, "frontier", "Frontier", [scores.node, costs.node]);
    this.scores = scores;
    this.kind = null;
    this.cost = "params";
  }

  update(data) {
    this.data = data;
    if (this.kind === null && data.frontier.length) {
      this.kind = data.frontier.some(isJudged) ? "test" : "validation";
      this.scores.control.value = this.kind;
    }
    this.figure.show({ draw: (node) => this.draw(node), table: () => networksTable(data) }, { problem: data.problems.frontier, note: this.note() });
  }

  get across() {
    return this.cost === "seconds" ? "seconds of training" : COSTS.find(([name]) => name === this.cost)[1];
  }

  note() {
    const { frontier } = this.data;
    const judged = frontier.filter(isJudged).length;
    if (!frontier.length) return "";
    if (this.kind === "test") return `${judged} of ${frontier.length} networks were judged on test; bars are one standard error.`;
    return judged ? "Filled: judged on test as well." : "Networks are judged on test when the search ends; these are validation scores.";
  }

  at(point) {
    return point[this.cost];
  }

  value(point) {
    return this.kind === "test" ? point.score : validation(point);
  }

  scale(values, range) {
    return costScale(values, range);
  }

  // What no smaller one beats on validation; of other costs there is no such line.
  line(places) {
    const front = this.cost === "params" ? places.filter(({ point }) => point.on_frontier) : [];
    return svg("polyline", { points: front.map((at) => `${at.x},${at.y}`).join(" "), class: "front-line", stroke: seriesColour(0) });
  }
}

// Against the time of the search, with the best so far as a line.
export class BestFigure extends ScatterFigure {
  constructor(selection) {
    super(selection, "best", "Best score so far");
    this.kind = "validation";
    this.across = "seconds";
  }

  update(data) {
    this.data = data;
    this.figure.show({ draw: (node) => this.draw(node), table: () => bestTable(data.best) }, {
      problem: data.problems.best, note: "Every run when it ended; the line is the best within the budget.",
    });
  }

  at(point) {
    return point.elapsed ?? 0;
  }

  value(point) {
    return validation(point);
  }

  scale(values, range) {
    return linear([0, 1.03 * Math.max(...values)], range);
  }

  // A step wherever the best score changes, the last one up to now.
  line(places, x, y) {
    const ends = this.data.best.map((point) => [x(point.elapsed), y(point.val_score)]);
    const path = ends.map(([at, height], i) => (i ? `H${at}V${height}` : `M${at},${height}`));
    if (ends.length) path.push(`H${Math.max(...places.map((place) => place.x))}`);
    return svg("path", { d: path.join(""), class: "front-line", stroke: seriesColour(0) });
  }
}

function legend(points) {
  const kinds = [
    ["the pick", (p) => p.is_pick], ["your model", (p) => p.is_host && !p.is_pick],
    ["judged on test", (p) => isJudged(p) && !p.is_host && !p.is_pick],
    ["validation only", (p) => !isJudged(p) && !p.under_way && !p.is_host], ["under way", (p) => p.under_way],
  ];
  const entries = kinds.map(([text, test]) => [text, points.find(test)]).filter(([, point]) => point);
  return el("ul", { class: "legend" }, ...entries.map(([text, point]) =>
    el("li", {}, svg("svg", { width: 18, height: 18, "aria-hidden": "true" }, markShape(point, 9, 9)), text)));
}

function markShape(point, x, y) {
  const colour = ink(point);
  return shape(point, x, y, {
    stroke: colour, "stroke-width": 2, fill: isJudged(point) ? colour : "var(--panel)", class: "mark",
    "stroke-dasharray": point.under_way ? "2 2.5" : null, opacity: point.under_way ? 0.75 : null,
  });
}

function networksTable({ frontier }) {
  const roles = (p) => [p.is_pick && "pick", p.is_host && "your model", p.on_frontier && "frontier", p.under_way && "under way"].filter(Boolean).join(", ");
  const heads = ["network", "role", "recipe", "validation score", "test score", "gain on test", "parameters", "MACs", "latency, ms", "training", "from"];
  return {
    columns: heads.map((label, i) => ({ label, number: i > 2 })),
    rows: frontier.map((p) => [networkText(p), roles(p), p.recipe, number(p.val_score), interval(p.score), number(p.gain),
      number(p.params), number(p.macs), interval(p.latency), duration(p.seconds), p.parent ? `#${p.parent}` : ""]),
  };
}

function bestTable(best) {
  return {
    columns: [{ label: "seconds", number: true }, { label: "validation score", number: true }, { label: "network" }, { label: "parameters", number: true }],
    rows: best.map((point) => [number(point.elapsed), number(point.val_score), `#${point.label}`, number(point.params)]),
  };
}
