// Curves with bands, drawn by uPlot. Arrow keys move the cursor; a line below says what is there. All
// curves of a page over the same axis share the cursor and the zoom.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { clear, el, setText } from "./dom.js";
import { emptyPlot } from "./figure.js";
import { interval, number, tickTexts } from "./format.js";
import { Legend, lineSwatch } from "./legend.js";
import { colour, dashOf, onTheme, seriesColour } from "./theme.js";
import { Tip } from "./tip.js";

const HEIGHT = 240;
const FEW_POINTS = 60;
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
const ZOOM_STEP = 2;
const SHARED = new Set(["mousemove", "mouseleave"]); // what other curves hear of a pointer
const everyCurves = new Set();

// series: [{label, x, y, low?, high?, place?, faint?, colour?}] with arrays of equal length; null: no
// value. `colour`: instead of that of its place, with an edge, so that pale ones are seen.
// `mayBeLog`: whether the reader may make the y axis logarithmic.
export class Curves {
  constructor({ xLabel, yLabel, mayBeLog = false }) {
    this.xLabel = xLabel;
    this.yLabel = yLabel;
    this.mayBeLog = mayBeLog;
    this.isLog = false;
    this.series = [];
    this.chart = null;
    this.shape = "";
    this.zoom = null; // {label, min, max} of x
    this.box = el("div", { class: "curves", tabindex: "0", role: "img", keydown: (e) => this.key(e), blur: () => this.leave() });
    this.legend = new Legend(() => this.showSeries());
    this.logButton = this.button("Log scale", () => this.toggleLog());
    this.logButton.setAttribute("aria-pressed", "false");
    this.zoomButton = this.button("Zoom out", () => this.share(null));
    this.foot = el("div", { class: "curve-foot" }, this.legend.node, this.zoomButton, this.logButton);
    this.readout = el("p", { class: "readout" });
    this.tip = new Tip();
    this.observer = new ResizeObserver(() => this.resize());
    onTheme(() => this.rebuild());
  }

  button(text, click) {
    return el("button", { type: "button", class: "small", hidden: true, click }, text);
  }

  show(node, series) {
    this.series = series.filter((one) => one.x.length);
    if (!this.series.length) {
      this.drop();
      emptyPlot(node, "Nothing recorded yet.");
      return;
    }
    if (this.box.parentNode !== node) {
      clear(node).append(this.box, this.foot, this.readout);
      this.observer.observe(node);
      everyCurves.add(this);
    }
    if (this.zoom && this.zoom.label !== this.xLabel) this.zoom = null;
    this.logButton.hidden = !this.mayBeLog;
    this.update();
  }

  update() {
    const shape = JSON.stringify([this.xLabel, this.yLabel, this.isLog, this.series.map((s) => [s.label, s.place, !!s.low, !!s.faint, s.colour])]);
    this.data = joined(this.series, this.isLog);
    if (this.chart && shape === this.shape) this.chart.setData(this.data.table);
    else this.build(shape);
    this.describe();
  }

  describe() {
    this.box.setAttribute("aria-label", this.summary());
    this.zoomButton.hidden = !this.zoom;
  }

  summary() {
    const ends = this.series.map((one) => `${one.label}: last ${number(lastKnown(one.y))}`);
    const part = this.zoom ? ` Zoomed to ${number(this.zoom.min)} to ${number(this.zoom.max)}.` : "";
    return `${this.yLabel} by ${this.xLabel}. ${ends.join("; ")}.${part} Arrow keys move the cursor, plus and minus zoom.`;
  }

  drop() {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.shape = "";
    this.box.remove();
    everyCurves.delete(this);
  }

  rebuild() {
    if (this.chart) this.build(this.shape);
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.chart && width && Math.abs(width - this.chart.width) > 1) {
      this.chart.setSize({ width, height: HEIGHT });
    }
  }

  build(shape) {
    if (this.chart) this.chart.destroy();
    this.shape = shape;
    const width = Math.max(200, this.box.clientWidth || 480);
    this.chart = new uPlot(this.options(width), this.data.table, this.box);
    this.tip.attach(this.chart.over);
    this.fillLegend();
    if (this.zoom) this.chart.setScale("x", this.zoom);
  }

  // ---- options of uPlot -----------------------------------------------------------------------

  options(width) {
    const ink = colour("--ink-soft");
    const grid = { stroke: colour("--grid"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", values: (u, ticks) => texts(ticks) };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      scales: {
        x: { time: false, auto: () => !this.zoom, range: (u, min, max) => spread(min, max) },
        y: { distr: this.isLog ? 3 : 1, range: this.isLog ? paddedLog : padded },
      },
      axes: [
        { ...axis, label: this.xLabel, labelSize: 20, size: 34, space: 56, incrs: this.xLabel === "round" ? WHOLE : undefined },
        { ...axis, label: this.isLog ? `${this.yLabel} (log)` : this.yLabel, labelSize: 20, size: 56 },
      ],
      series: [{}, ...this.data.columns.map((column) => this.column(column))],
      bands: this.bands(),
      cursor: {
        y: false, drag: { x: true, y: false, dist: 8 }, points: { size: 7 },
        sync: { key: this.xLabel, scales: ["x", null], filters: { pub: (type) => SHARED.has(type), sub: (type) => SHARED.has(type) } },
      },
      hooks: { draw: [(u) => this.drawLone(u)], setCursor: [(u) => this.read(u.cursor.idx)], setScale: [(u, name) => name === "x" && this.zoomed(u)] },
    };
  }

  column({ one, part, place }) {
    const show = !this.legend.isHidden(one.label);
    if (part === "edge") return { stroke: colour("--ink-soft"), width: 5, points: { show: false }, spanGaps: true, show };
    if (part !== "y") return { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, show };
    const ink = one.colour ?? seriesColour(place);
    const stroke = one.faint ? `${ink}40` : ink;
    return {
      label: one.label, stroke, width: one.colour ? 3 : 2, dash: one.colour ? [] : dashOf(place), spanGaps: true, show,
      points: { show: one.x.length <= FEW_POINTS, size: 5, fill: stroke, stroke },
    };
  }

  bands() {
    const found = [];
    this.data.columns.forEach(({ part, place }, i) => {
      if (part === "high") found.push({ series: [i + 1, i + 2], fill: `${seriesColour(place)}2e` });
    });
    return found;
  }

  // Of a band with a single point there is nothing to fill: its interval is a line.
  drawLone(u) {
    this.data.columns.forEach(({ one, part, place }, i) => {
      const known = part === "high" ? this.data.table[i + 1].flatMap((high, at) => (high === null || high === undefined ? [] : [at])) : [];
      if (known.length !== 1 || this.legend.isHidden(one.label)) return;
      const x = u.valToPos(this.data.table[0][known[0]], "x", true);
      u.ctx.save();
      u.ctx.strokeStyle = seriesColour(place);
      u.ctx.lineWidth = 2 * devicePixelRatio;
      u.ctx.beginPath();
      for (const [end, draw] of [[1, "moveTo"], [2, "lineTo"]]) u.ctx[draw](x, u.valToPos(this.data.table[i + end][known[0]], "y", true));
      u.ctx.stroke();
      u.ctx.restore();
    });
  }

  fillLegend() {
    const isAlone = this.series.length < 2 && !this.series[0].low;
    const entries = this.series.map((one, i) => ({
      name: this.series.length > 1 ? one.label : undefined, swatch: lineSwatch(one.place ?? i, one.colour),
      text: one.low ? `${one.label}, with 95 % interval` : one.label,
    }));
    this.legend.fill(isAlone ? [] : entries, colour("--series-0") + this.shape);
  }

  showSeries() {
    this.data.columns.forEach(({ one }, i) => this.chart.setSeries(i + 1, { show: !this.legend.isHidden(one.label) }));
  }

  toggleLog() {
    this.isLog = !this.isLog;
    this.logButton.setAttribute("aria-pressed", String(this.isLog));
    this.update();
  }

  // ---- zoom -------------------------------------------------------------------------------------

  // The x axis was set: by dragging, by a double click, by new data or by other curves.
  zoomed(u) {
    const { min, max } = u.scales.x;
    const xs = this.data.table[0];
    if (!xs.length || u.status !== 1 || (this.zoom && this.zoom.min === min && this.zoom.max === max)) return;
    const [first, last] = spread(xs[0], xs.at(-1));
    const isPart = min > first || max < last;
    if (isPart || this.zoom) this.share(isPart ? { label: this.xLabel, min, max } : null);
  }

  // All curves over this axis zoom together.
  share(zoom) {
    for (const curves of everyCurves) if (curves.xLabel === this.xLabel) curves.take(zoom);
  }

  take(zoom) {
    this.zoom = zoom;
    this.describe();
    if (!this.chart) return;
    const xs = this.data.table[0];
    const [min, max] = zoom ? [zoom.min, zoom.max] : spread(xs[0], xs.at(-1));
    const { x } = this.chart.scales;
    if (x.min !== min || x.max !== max) this.chart.setScale("x", { min, max });
  }

  zoomAt(factor) {
    const { min, max } = this.chart.scales.x;
    const xs = this.data.table[0];
    const [first, last] = spread(xs[0], xs.at(-1));
    const middle = xs[this.chart.cursor.idx] ?? (min + max) / 2;
    const from = Math.max(first, middle - (middle - min) * factor);
    const to = Math.min(last, middle + (max - middle) * factor);
    const least = (last - first) / Math.max(1, xs.length);
    if (to - from < least) return;
    this.share(from > first || to < last ? { label: this.xLabel, min: from, max: to } : null);
  }

  // ---- what is under the cursor -----------------------------------------------------------------

  read(index) {
    if (index === null || index === undefined) {
      setText(this.readout, "");
      this.tip.hide();
      return;
    }
    const at = `${this.xLabel} ${number(this.data.table[0][index])}`;
    const rows = [];
    this.data.columns.forEach(({ one, part, place }, i) => {
      const value = this.data.table[i + 1][index];
      if (part !== "y" || value === null || value === undefined || this.legend.isHidden(one.label)) return;
      const low = one.low ? this.data.table[i + 3]?.[index] : null;
      const high = one.low ? this.data.table[i + 2]?.[index] : null;
      rows.push({ label: one.label, text: interval({ value, low, high }), place, colour: one.colour });
    });
    setText(this.readout, [at, ...rows.map(({ label, text }) => `${label} ${text}`)].join(" · "));
    this.tip.show(at, rows, this.chart.cursor.left);
  }

  key(event) {
    if (!this.chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const zooms = { "+": 1 / ZOOM_STEP, "=": 1 / ZOOM_STEP, "-": ZOOM_STEP };
    if (event.key in zooms) this.zoomAt(zooms[event.key]);
    else if (event.key === "Escape") this.share(null);
    else if (event.key in moves) this.move(moves[event.key]);
    else return;
    event.preventDefault();
  }

  move(by) {
    this.readout.setAttribute("aria-live", "polite");
    const xs = this.data.table[0];
    const { min, max } = this.chart.scales.x;
    const first = xs.findIndex((x) => x >= min);
    const last = xs.findLastIndex((x) => x <= max);
    const now = this.chart.cursor.idx ?? (by < 0 ? last + 1 : first - 1);
    const next = Math.min(last, Math.max(first, now + by));
    this.chart.setCursor({ left: this.chart.valToPos(xs[next], "x"), top: HEIGHT / 3 }, true, true);
  }

  // Only the curves that have the keyboard speak.
  leave() {
    this.readout.removeAttribute("aria-live");
  }
}

// One table with all values of x; every series has its column, and two more for a band. A logarithmic
// axis has no place for what is not above 0.
function joined(series, isLog) {
  const columns = [];
  const shown = (values) => (isLog ? values.map((v) => (v > 0 ? v : null)) : values);
  const tables = series.map((one, i) => {
    const place = one.place ?? i;
    const found = [...(one.colour ? [["edge", one.y]] : []), ["y", one.y], ...(one.low ? [["high", one.high], ["low", one.low]] : [])];
    columns.push(...found.map(([name]) => ({ one, part: name, place })));
    return [one.x, ...found.map(([, values]) => shown(values))];
  });
  const table = tables.length === 1 ? tables[0] : uPlot.join(tables);
  return { columns, table };
}

// uPlot leaves out the text of some ticks of a logarithmic axis.
function texts(ticks) {
  const found = tickTexts(ticks.filter((tick) => tick !== null));
  return ticks.map((tick) => (tick === null ? "" : found.shift()));
}

function spread(min, max) {
  if (min === null || min === undefined) return [0, 1];
  return min === max ? [min - 0.5, max + 0.5] : [min, max];
}

function padded(u, min, max) {
  if (min === null || min === undefined) return [0, 1];
  const pad = (max - min) * 0.08 || Math.abs(max) * 0.05 || 0.5;
  return [min - pad, max + pad];
}

function paddedLog(u, min, max) {
  return min > 0 ? [min / 1.15, max * 1.15] : [1, 10];
}

function lastKnown(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

// A figure source over curves: the plot, the same numbers as a table, and in full for a file.
export function curveSource(curves, series) {
  return {
    draw: (node) => curves.show(node, series),
    table: () => curveTable(curves.xLabel, series, number, (value, low, high) => interval({ value, low, high })),
    csv: () => curveTable(curves.xLabel, series.flatMap(parts), (value) => String(value ?? ""), (value) => String(value ?? "")),
  };
}

function parts(one) {
  const ends = one.low ? [["low", one.low], ["high", one.high]] : [];
  return [{ label: one.label, x: one.x, y: one.y }, ...ends.map(([end, y]) => ({ label: `${one.label}, ${end}`, x: one.x, y }))];
}

function curveTable(xLabel, series, sayX, sayY) {
  const xs = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const places = series.map((one) => new Map(one.x.map((x, i) => [x, i])));
  const cell = (one, at) => (at === undefined ? "" : sayY(one.y[at], one.low?.[at], one.high?.[at]));
  return {
    columns: [{ label: xLabel, number: true }, ...series.map((one) => ({ label: one.label, number: true }))],
    rows: xs.map((x) => [sayX(x), ...series.map((one, i) => cell(one, places[i].get(x)))]),
  };
}
