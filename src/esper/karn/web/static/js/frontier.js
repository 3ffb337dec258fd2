// Score against parameters: the networks of searches, the topologies of audits, policies.

import { el, svg } from "./dom.js";
import { costScale, Drawing, linear, valueRange, xAxis, yAxis } from "./axes.js";
import { emptyPlot } from "./figure.js";
import { interval, number, topologyText, words } from "./format.js";
import { onTheme, seriesColour } from "./theme.js";

const HEIGHT = 300;
const BOX = { left: 52, top: 30, bottom: HEIGHT - 44 };

// groups: [{label, points, place}]
export class FrontierPlot {
  constructor(title = "test score") {
    this.title = title;
    this.groups = [];
    this.drawing = new Drawing((width) => this.paint(width));
    onTheme(() => this.drawing.node && this.known().length && this.drawing.redraw());
  }

  source(groups) {
    return { draw: (node) => this.show(node, groups), table: () => frontierTable(groups) };
  }

  known() {
    return this.groups.flatMap((group) => group.points.filter((p) => p.score.value !== null));
  }

  show(node, groups) {
    this.groups = groups;
    if (this.known().length) this.drawing.show(node);
    else emptyPlot(node, "No network has been judged on test yet.");
  }

  paint(width) {
    const box = { ...BOX, right: width - 12 };
    const points = this.known();
    const x = costScale(points.map((p) => p.params), [box.left, box.right]);
    const y = linear(valueRange(points.map((p) => p.score)), [box.bottom, box.top]);
    const picture = svg("svg", {
      width, height: HEIGHT, role: "img",
      "aria-label": `${this.title} by parameters of ${points.length} networks; the table has them.`,
    }, yAxis(y, box, { label: this.title }), xAxis(x, box, "parameters"));
    this.groups.forEach((group, i) => picture.append(groupMarks(group, group.place ?? i, x, y, box)));
    return [picture, this.legend()];
  }

  legend() {
    const all = this.known();
    const entries = [];
    if (this.groups.length > 1) {
      this.groups.forEach((group, i) => entries.push(
        legendEntry("frontier", seriesColour(group.place ?? i), group.label)));
    }
    const ink = this.groups.length > 1 ? "currentColor" : seriesColour(this.groups[0].place ?? 0);
    const kinds = [["pick", "pick"], ["host", "host"], ["frontier", "on the frontier"], ["other", "other"],
      ["grown", "grown, or chosen"], ["static", "planted from the start"]];
    for (const [kind, text] of kinds) {
      if (all.some((p) => kindOf(p) === kind)) entries.push(legendEntry(kind, ink, text));
    }
    return el("ul", { class: "legend" }, ...entries);
  }
}

function legendEntry(kind, ink, text) {
  return el("li", {}, svg("svg", { width: 18, height: 16, "aria-hidden": "true" }, mark(kind, 9, 8, ink)), text);
}

// Policies by size: `name` is drawn beside each, and the line joins those that no smaller one beats.
const PLANTED = /^(static-|asha|table:)/;

export function policyPoints(contenders) {
  const known = contenders.filter((one) => one.params !== null && one.score.value !== null)
    .sort((a, b) => a.params - b.params);
  let best = -Infinity;
  return known.map((one) => {
    const front = one.score.value > best;
    best = Math.max(best, one.score.value);
    const host = one.policy === "bare" || one.policy.startsWith("wait");
    return {
      name: one.label, label: one.label, params: one.params, macs: one.macs, score: one.score, on_frontier: front,
      kind: host ? "host" : PLANTED.test(one.policy) ? "static" : "grown",
    };
  });
}

function kindOf(point) {
  if (point.kind) return point.kind;
  if (point.is_pick) return "pick";
  if (point.is_host) return "host";
  return point.on_frontier ? "frontier" : "other";
}

function mark(kind, x, y, ink) {
  const common = { stroke: ink, "stroke-width": 2, fill: kind === "other" || kind === "static" ? "none" : ink, class: "mark" };
  if (kind === "host") return svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, ...common });
  if (kind === "pick") {
    return svg("path", { d: `M${x} ${y - 8}L${x + 8} ${y}L${x} ${y + 8}L${x - 8} ${y}Z`, ...common });
  }
  return svg("circle", { cx: x, cy: y, r: 5, ...common });
}

function groupMarks(group, place, x, y, box) {
  const ink = seriesColour(place);
  const points = group.points.filter((p) => p.score.value !== null);
  const clamp = (value) => Math.min(box.bottom, Math.max(box.top, y(value)));
  const front = points.filter((p) => p.on_frontier).sort((a, b) => a.params - b.params);
  const line = front.map((p) => `${x(p.params)},${clamp(p.score.value)}`).join(" ");
  const nodes = [svg("polyline", { points: line, fill: "none", stroke: ink, "stroke-width": 1.5, opacity: 0.6 })];
  for (const p of points) {
    const at = x(p.params);
    const said = `${group.label} ${p.name ?? topologyText(p)}: ${number(p.params)} parameters, score ${interval(p.score)}`;
    const one = svg("g", {}, svg("title", {}, said));
    if (p.score.low !== null && p.score.high !== null) {
      one.append(svg("line", { x1: at, x2: at, y1: clamp(p.score.low), y2: clamp(p.score.high), stroke: ink, "stroke-width": 1.5, opacity: 0.6 }));
    }
    one.append(mark(kindOf(p), at, clamp(p.score.value), ink));
    if (p.name) {
      const left = at > (box.left + box.right) / 2;
      one.append(svg("text", { class: "label", x: at + (left ? -9 : 9), y: clamp(p.score.value) - 7,
        "text-anchor": left ? "end" : "start" }, p.name));
    }
    nodes.push(one);
  }
  return svg("g", {}, ...nodes);
}

function frontierTable(groups) {
  const several = groups.length > 1;
  const roles = (p) => [p.is_pick && "pick", p.is_host && "host", p.on_frontier && "frontier"]
    .filter(Boolean).join(", ");
  return {
    columns: [
      ...(several ? [{ label: "run" }] : []),
      { label: "network" }, { label: "origin" }, { label: "role" },
      { label: "parameters", number: true }, { label: "MACs", number: true },
      { label: "test score", number: true }, { label: "validation", number: true },
    ],
    rows: groups.flatMap((group) => group.points.map((p) => [
      ...(several ? [group.label] : []),
      topologyText(p), words(p.origin), roles(p), number(p.params), number(p.macs),
      interval(p.score), number(p.val_score),
    ])),
  };
}
