// Score against parameters: the networks of searches, the topologies of audits, policies.

import { svg } from "./dom.js";
import { policyPlaces } from "./contenders.js";
import { costScale, Drawing, linear, valueRange, whisker, xAxis, yAxis } from "./axes.js";
import { emptyPlot } from "./figure.js";
import { interval, number, topologyText, words } from "./format.js";
import { Legend } from "./legend.js";
import { onTheme, seriesColour } from "./theme.js";

const HEIGHT = 300;
const BOX = { left: 52, top: 30, bottom: HEIGHT - 44 };
const LETTER = 6.6; // width of a letter of a label, about
const LABEL_PLACES = [[9, -7], [-9, -7], [9, 15], [-9, 15], [9, 4], [-9, 4]];
const KINDS = [["pick", "pick"], ["model", "your model"], ["host", "host"], ["frontier", "on the frontier"], ["other", "other"],
  ["grown", "grown, or chosen"], ["static", "planted from the start"]];

// groups: [{label, points, place}]
export class FrontierPlot {
  constructor(title = "test score") {
    this.title = title;
    this.groups = [];
    this.legend = new Legend(() => this.drawing.redraw());
    this.drawing = new Drawing((width) => this.paint(width));
    onTheme(() => this.drawing.node && this.known().length && this.drawing.redraw());
  }

  source(groups) {
    return { draw: (node) => this.show(node, groups), table: () => frontierTable(groups) };
  }

  known() {
    return this.groups.flatMap((group) => group.points.filter((p) => p.score.value !== null));
  }

  // Points that the legend does not hide.
  shown(group) {
    const isHidden = (p) => this.legend.isHidden(kindOf(p)) || (this.groups.length > 1 && this.legend.isHidden(runName(group)));
    return group.points.filter((p) => p.score.value !== null && !isHidden(p));
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
    const shown = this.groups.map((group) => this.shown(group));
    this.groups.forEach((group, i) => picture.append(groupMarks(group, shown[i], x, y, box)));
    picture.append(...names(shown.flat(), x, y, box));
    this.fillLegend(points);
    return [picture, this.legend.node];
  }

  fillLegend(all) {
    const several = this.groups.length > 1;
    const isMixed = several || all.some((p) => p.place !== undefined);
    const ink = isMixed ? "currentColor" : seriesColour(this.groups[0].place ?? 0);
    const entries = several ? this.groups.map((group, i) => ({
      name: runName(group), text: group.label, swatch: swatch("frontier", seriesColour(group.place ?? i)),
    })) : [];
    for (const [kind, text] of KINDS) {
      if (all.some((p) => kindOf(p) === kind)) entries.push({ name: kind, text, swatch: swatch(kind, ink) });
    }
    this.legend.fill(entries, seriesColour(0));
  }
}

const runName = (group) => `run ${group.label}`;

function swatch(kind, ink) {
  return svg("svg", { width: 18, height: 16, "aria-hidden": "true" }, mark(kind, 9, 8, ink));
}

// Policies by size: `name` is drawn beside each, and the line joins those that no smaller one beats.
// Marks by kind of policy, as in the report (sections.py).
const HOST = /^(bare$|wait|restart:|best-of:)/;
const PLANTED = /^(static-|asha|table:)/;

export function policyPoints(contenders) {
  const places = policyPlaces(contenders);
  const known = contenders.map((one, i) => ({ ...one, place: places[i] })).filter((one) => one.params !== null && one.score.value !== null)
    .sort((a, b) => a.params - b.params);
  let best = -Infinity;
  return known.map((one) => {
    const front = one.score.value > best;
    best = Math.max(best, one.score.value);
    return {
      name: one.label, label: one.label, params: one.params, macs: one.macs, score: one.score, on_frontier: front,
      kind: HOST.test(one.policy) ? "host" : PLANTED.test(one.policy) ? "static" : "grown", place: one.place,
    };
  });
}

function kindOf(point) {
  if (point.kind) return point.kind;
  if (point.is_pick) return "pick";
  if (point.is_host) return point.origin === "given" ? "model" : "host";
  return point.on_frontier ? "frontier" : "other";
}

function mark(kind, x, y, ink) {
  const common = { stroke: ink, "stroke-width": 2, fill: kind === "other" || kind === "static" ? "none" : ink, class: "mark" };
  if (kind === "host" || kind === "model") return svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, ...common });
  if (kind === "pick") {
    return svg("path", { d: `M${x} ${y - 8}L${x + 8} ${y}L${x} ${y + 8}L${x - 8} ${y}Z`, ...common });
  }
  return svg("circle", { cx: x, cy: y, r: 5, ...common });
}

function groupMarks(group, points, x, y, box) {
  const ofGroup = group.place ?? 0;
  const clamp = (value) => Math.min(box.bottom, Math.max(box.top, y(value)));
  const front = points.filter((p) => p.on_frontier).sort((a, b) => a.params - b.params);
  const line = front.map((p) => `${x(p.params)},${clamp(p.score.value)}`).join(" ");
  const nodes = [svg("polyline", { points: line, fill: "none", stroke: points.some((p) => p.place !== undefined) ? "currentColor" : seriesColour(ofGroup), "stroke-width": 1.5, opacity: 0.45 })];
  for (const p of points) {
    const at = x(p.params);
    const ink = seriesColour(p.place ?? ofGroup);
    const said = `${group.label} ${p.name ?? topologyText(p)}: ${number(p.params)} parameters, score ${interval(p.score)}`;
    const one = svg("g", {}, svg("title", {}, said));
    if (p.score.low !== null && p.score.high !== null) one.append(whisker(p.score, y, at, { stroke: ink, opacity: 0.6 }));
    one.append(mark(kindOf(p), at, clamp(p.score.value), ink));
    nodes.push(one);
  }
  return svg("g", {}, ...nodes);
}

// Names where they cover nothing; one that finds no place is left to the table.
function names(points, x, y, box) {
  const spots = points.map((p) => ({ p, at: x(p.params), height: y(p.score.value) }));
  const taken = spots.map(({ at, height }) => [at - 6, height - 6, at + 6, height + 6]);
  const bars = spots.filter(({ p }) => p.score.low !== null && p.score.high !== null)
    .map(({ p, at }) => [at - 2, Math.max(box.top, y(p.score.high)), at + 2, Math.min(box.bottom, y(p.score.low))]);
  const found = [];
  for (const spot of spots.filter(({ p }) => p.name)) {
    const place = placeOf(spot, box, [...taken, ...bars]) ?? placeOf(spot, box, taken);
    if (!place) continue;
    taken.push(place.covered);
    found.push(svg("text", { class: "label over", x: place.x, y: place.y, "text-anchor": place.anchor }, spot.p.name));
  }
  return found;
}

// The first place of a name beside its mark where it covers nothing; null: there is none.
function placeOf({ p, at, height }, box, taken) {
  const width = LETTER * p.name.length;
  for (const [right, down] of LABEL_PLACES) {
    const left = right < 0 ? at + right - width : at + right;
    const covered = [left, height + down - 10, left + width, height + down + 3];
    if (left < box.left || covered[2] > box.right || covered[1] < box.top - 8 || taken.some((other) => overlap(covered, other))) continue;
    return { covered, x: at + right, y: height + down, anchor: right < 0 ? "end" : "start" };
  }
  return null;
}

function overlap(one, other) {
  return one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
}

function frontierTable(groups) {
  const several = groups.length > 1;
  const roles = (p) => [p.is_pick && "pick", p.is_host && (p.origin === "given" ? "your model" : "host"), p.on_frontier && "frontier"]
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
