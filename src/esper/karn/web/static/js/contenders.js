// Policies with their intervals, one line each.

import { svg } from "./dom.js";
import { Drawing, linear, valueRange, whisker, xAxis } from "./axes.js";
import { emptyPlot } from "./figure.js";
import { interval, number } from "./format.js";
import { placesOf } from "./identity.js";
import { onTheme, seriesColour } from "./theme.js";

const ROW = 40;

// rows: [{label, estimate, isReference, n, place}]
export class IntervalPlot {
  constructor(xLabel, { zero = false } = {}) {
    this.xLabel = xLabel;
    this.zero = zero;
    this.rows = [];
    this.drawing = new Drawing((width) => this.paint(width));
    onTheme(() => this.drawing.node && this.known().length && this.drawing.redraw());
  }

  source(rows, table) {
    return { draw: (node) => this.show(node, rows), table };
  }

  known() {
    return this.rows.filter((row) => row.estimate.value !== null);
  }

  show(node, rows) {
    this.rows = rows;
    if (this.known().length) this.drawing.show(node);
    else emptyPlot(node, "Nothing to compare yet.");
  }

  paint(width) {
    const rows = this.known();
    const height = rows.length * ROW + 60;
    const box = { left: 12, right: width - 12, top: 8, bottom: height - 46 };
    const estimates = rows.map((row) => row.estimate);
    const zero = this.zero ? [{ value: 0, low: null, high: null }] : [];
    const x = linear(valueRange([...estimates, ...zero]), [box.left, box.right]);
    const picture = svg("svg", {
      width, height, role: "img",
      "aria-label": `${this.xLabel} of ${rows.length} policies with intervals; the table has them.`,
    }, xAxis(x, box, this.xLabel));
    const reference = this.zero ? 0 : rows.find((row) => row.isReference)?.estimate.value;
    if (reference !== undefined) {
      picture.append(svg("line", { class: "reference", x1: x(reference), x2: x(reference), y1: box.top, y2: box.bottom }));
    }
    rows.forEach((row, i) => picture.append(this.line(row, box.top + i * ROW, x, box)));
    return [picture];
  }

  line(row, top, x, box) {
    const { value, low, high } = row.estimate;
    const ink = seriesColour(row.place ?? 0);
    const y = top + 28;
    const text = row.isReference ? `${row.label} (reference)` : row.label;
    const group = svg("g", {}, svg("title", {}, `${text}: ${interval(row.estimate)}, n = ${row.n}`),
      svg("text", { class: "label over", x: box.left, y: top + 15 }, text));
    if (low !== null && high !== null) group.append(whisker(row.estimate, x, y, { stroke: ink, "stroke-width": 2.2 }, false));
    const shape = row.isReference
      ? svg("rect", { x: x(value) - 5, y: y - 5, width: 10, height: 10, fill: ink, class: "mark" })
      : svg("circle", { cx: x(value), cy: y, r: 5.5, fill: ink, class: "mark" });
    group.append(shape);
    return group;
  }
}

// The colours of policies in every plot of a page.
export function policyPlaces(contenders) {
  return placesOf("policy", contenders.map((one) => one.label));
}

// groups: [{label, contenders, place}]
export function contenderRows(groups, name) {
  const several = groups.length > 1;
  return groups.flatMap((group, i) => group.contenders.map((one, at) => ({
    label: several ? `${group.label}: ${one.label}` : one.label,
    estimate: one[name], isReference: one.is_reference, n: one.n, place: several ? group.place ?? i : policyPlaces(group.contenders)[at],
  })));
}

export function contenderTable(groups) {
  const several = groups.length > 1;
  const reference = groups[0]?.contenders.find((one) => one.is_reference)?.label ?? "the reference";
  const named = ["policy", "n", "mean score", `minus ${several ? "the reference" : reference}`,
    "test accuracy", "validation accuracy", "parameters", "MACs", "compute", "seconds"];
  return {
    columns: [...(several ? [{ label: "run" }] : []),
      ...named.map((label, i) => ({ label, number: i > 0 }))],
    rows: groups.flatMap((group) => group.contenders.map((one) => [
      ...(several ? [group.label] : []),
      one.is_reference ? `${one.label} (reference)` : one.label, number(one.n),
      interval(one.score), interval(one.difference), interval(one.test), interval(one.accuracy),
      number(one.params), number(one.macs), number(one.compute), number(one.seconds),
    ])),
  };
}
