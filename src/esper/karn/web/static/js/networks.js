// The networks of a search as they are found: hollow with a validation score, filled once they are
// judged on test. One axis, one kind of score.

import { el, setText, svg } from "./dom.js";
import { costScale, Drawing, linear, valueRange, xAxis, yAxis } from "./axes.js";
import { emptyPlot, Figure, select } from "./figure.js";
import { duration, interval, networkText, number } from "./format.js";
import { NetworkCard } from "./network_card.js";
import { onTheme, seriesColour } from "./theme.js";

const HEIGHT = 340;
const BOX = { left: 52, top: 30, bottom: HEIGHT - 44 };
const REACH = 28; // pixels between a finger and the point it means
const COSTS = [["params", "parameters"], ["macs", "MACs"], ["seconds", "seconds of training"]];
const SCORES = [["validation", "validation"], ["test", "test"]];
const KEYS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };

const isJudged = (point) => point.score.value !== null;

export class NetworksFigure {
  constructor(id) {
    this.score = null;
    this.cost = "params";
    this.active = null; // label of the network under the pointer or the focus
    this.pinned = null;
    this.data = null;
    this.onPin = () => {};
    this.scores = select("Score", SCORES, (value) => { this.score = value; this.refresh(); });
    this.costs = select("against", COSTS, (value) => { this.cost = value; this.refresh(); });
    this.figure = new Figure("frontier", "Frontier", { wide: true, controls: [this.scores.node, this.costs.node] });
    this.card = new NetworkCard(id, () => this.pin(null));
    this.picture = el("div", { class: "networks-plot" });
    this.body = el("div", { class: "networks" }, this.picture, this.card.node, this.card.detail);
    this.drawing = new Drawing((width) => this.paint(width));
    this.node = this.figure.node;
    onTheme(() => this.refresh());
  }

  update(data) {
    this.data = data;
    if (this.score === null && data.frontier.length) {
      this.score = data.frontier.some(isJudged) ? "test" : "validation";
      this.scores.control.value = this.score;
    }
    this.figure.show({ draw: (node) => this.draw(node), table: () => networksTable(data) }, { problem: data.problems.frontier, note: this.note() });
  }

  note() {
    const { frontier } = this.data;
    const judged = frontier.filter(isJudged).length;
    if (!frontier.length) return "";
    if (this.score === "test") return `${judged} of ${frontier.length} networks were judged on test; bars are one standard error.`;
    return judged ? "Filled: judged on test as well." : "Networks are judged on test when the search ends; these are validation scores.";
  }

  refresh() {
    if (!this.data) return;
    this.update(this.data);
  }

  value(point) {
    return this.score === "test" ? point.score : { value: point.val_score, low: null, high: null };
  }

  known() {
    return this.data.frontier.filter((point) => this.value(point).value !== null && point[this.cost] > 0)
      .sort((a, b) => a[this.cost] - b[this.cost] || this.value(a).value - this.value(b).value);
  }

  draw(node) {
    if (!this.data.frontier.length) {
      emptyPlot(node, this.data.run.state === "running" ? "The first network is being trained." : "No network has a score.");
      return;
    }
    if (this.body.parentNode !== node) node.replaceChildren(this.body);
    if (!this.known().length) emptyPlot(this.picture, "No network has been judged on test yet.");
    else {
      const focused = this.picture.contains(document.activeElement) && document.activeElement.dataset.label;
      this.drawing.show(this.picture);
      if (focused) this.mark(focused)?.focus();
    }
    this.showCard();
  }

  paint(width) {
    const points = this.known();
    const box = { ...BOX, right: width - 12 };
    const x = costScale(points.map((point) => point[this.cost]), [box.left, box.right]);
    const y = linear(valueRange(points.map((point) => this.value(point))), [box.bottom, box.top]);
    this.places = points.map((point) => ({ point, x: x(point[this.cost]), y: y(this.value(point).value) }));
    const metric = this.data.run.metric;
    const title = `${this.score} score${metric ? ` (${metric})` : ""}`;
    const picture = svg("svg", {
      width, height: HEIGHT, role: "group", "aria-label": `${title} of ${points.length} networks. Arrow keys move, Enter pins.`,
      pointermove: (event) => this.hover(event), pointerleave: () => this.activate(null), click: (event) => this.tap(event),
    }, yAxis(y, box, { label: title }), xAxis(x, box, COSTS.find(([name]) => name === this.cost)[1]), this.line());
    const current = points.some((point) => point.label === this.pinned) ? this.pinned : points[0].label;
    for (const place of this.places) picture.append(this.markOf(place, y, box, place.point.label === current));
    return [picture, this.legend(points)];
  }

  // What no smaller one beats on validation; of other costs there is no such line.
  line() {
    const front = this.cost === "params" ? this.places.filter(({ point }) => point.on_frontier) : [];
    return svg("polyline", { points: front.map((at) => `${at.x},${at.y}`).join(" "), class: "front-line", stroke: seriesColour(0) });
  }

  markOf({ point, x, y }, scale, box, isFirst) {
    const { low, high } = this.value(point);
    const clamp = (value) => Math.min(box.bottom, Math.max(box.top, scale(value)));
    const node = svg("g", {
      class: "network", role: "button", tabindex: isFirst ? 0 : -1, "data-label": point.label,
      "aria-pressed": String(point.label === this.pinned), "aria-label": this.spoken(point),
      keydown: (event) => this.key(event, point.label), focus: () => this.activate(point.label), blur: () => this.activate(null),
    });
    if (low !== null && high !== null) {
      node.append(svg("line", { x1: x, x2: x, y1: clamp(low), y2: clamp(high), stroke: ink(point), "stroke-width": 1.5, opacity: 0.6 }));
    }
    node.append(svg("circle", { cx: x, cy: y, r: 13, class: "halo" }), shape(point, x, y));
    return node;
  }

  spoken(point) {
    return `${networkText(point)}, ${this.score} score ${number(this.value(point).value)}, ${number(point.params)} parameters`;
  }

  legend(points) {
    const kinds = [
      ["the pick", (p) => p.is_pick], ["your model", (p) => p.is_host && !p.is_pick],
      ["judged on test", (p) => isJudged(p) && !p.is_host && !p.is_pick],
      ["validation score alone", (p) => !isJudged(p) && !p.under_way && !p.is_host], ["under way", (p) => p.under_way],
    ];
    const entries = kinds.map(([text, test]) => [text, points.find(test)]).filter(([, point]) => point);
    return el("ul", { class: "legend" }, ...entries.map(([text, point]) =>
      el("li", {}, svg("svg", { width: 18, height: 18, "aria-hidden": "true" }, shape(point, 9, 9)), text)));
  }

  // ---- the card ---------------------------------------------------------------------------------

  mark(label) {
    return [...this.picture.querySelectorAll(".network")].find((node) => node.dataset.label === label);
  }

  nearest(event) {
    const frame = event.currentTarget.getBoundingClientRect();
    const far = (place) => Math.hypot(place.x - (event.clientX - frame.left), place.y - (event.clientY - frame.top));
    const found = this.places.reduce((best, place) => (far(place) < far(best) ? place : best));
    return far(found) <= REACH ? found.point.label : null;
  }

  hover(event) {
    if (event.pointerType !== "touch") this.activate(this.nearest(event));
  }

  tap(event) {
    const label = this.nearest(event);
    if (label !== null) this.pin(label === this.pinned ? null : label);
  }

  key(event, label) {
    if (event.key === "Enter" || event.key === " ") this.pin(label === this.pinned ? null : label);
    else if (event.key === "Escape") this.pin(null);
    else if (event.key in KEYS) {
      const now = this.places.findIndex(({ point }) => point.label === label);
      const next = Math.min(this.places.length - 1, Math.max(0, now + KEYS[event.key]));
      const node = this.mark(this.places[next].point.label);
      this.mark(label).setAttribute("tabindex", "-1");
      node.setAttribute("tabindex", "0");
      node.focus();
    } else return;
    event.preventDefault();
  }

  activate(label) {
    if (label === this.active) return;
    this.active = label;
    this.showCard();
  }

  pin(label) {
    this.pinned = label;
    for (const node of this.picture.querySelectorAll(".network")) {
      node.setAttribute("aria-pressed", String(node.dataset.label === label));
    }
    this.showCard();
    this.onPin(label);
  }

  showCard() {
    const find = (label) => this.data.frontier.find((point) => point.label === label);
    const shown = find(this.active) ?? find(this.pinned) ?? this.data.frontier.find((point) => point.is_pick);
    for (const node of this.picture.querySelectorAll(".network")) node.classList.toggle("active", node.dataset.label === shown?.label);
    this.card.show(shown ?? null, shown !== undefined && shown.label === this.pinned, this.data);
  }
}

function ink(point) {
  return seriesColour(point.is_pick ? 2 : point.is_host ? 1 : 0);
}

// Shapes tell the pick and the user's model; fill tells what is judged on test.
function shape(point, x, y) {
  const colour = ink(point);
  const common = {
    stroke: colour, "stroke-width": 2, fill: isJudged(point) ? colour : "var(--panel)", class: "mark",
    "stroke-dasharray": point.under_way ? "2 2.5" : null, opacity: point.under_way ? 0.75 : null,
  };
  if (point.is_pick) return svg("path", { d: `M${x} ${y - 8}L${x + 8} ${y}L${x} ${y + 8}L${x - 8} ${y}Z`, ...common });
  if (point.is_host) return svg("rect", { x: x - 5.5, y: y - 5.5, width: 11, height: 11, ...common });
  return svg("circle", { cx: x, cy: y, r: 5, ...common });
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
