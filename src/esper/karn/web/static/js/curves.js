// Curves with bands, drawn by uPlot. Arrow keys move the cursor; a line below says what is there.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { clear, el, setText, svg } from "./dom.js";
import { number, short } from "./format.js";
import { emptyPlot } from "./figure.js";
import { colour, DASHES, onTheme, seriesColour } from "./theme.js";

const HEIGHT = 240;
const FEW_POINTS = 60;
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();

// series: [{label, x, y, low?, high?, place?, faint?}] with arrays of equal length; null: no value.
export class Curves {
  constructor({ xLabel, yLabel, yTitle = false }) {
    this.yTitle = yTitle;
    this.xLabel = xLabel;
    this.yLabel = yLabel;
    this.series = [];
    this.chart = null;
    this.shape = "";
    this.box = el("div", { class: "curves", tabindex: "0", role: "img", keydown: (e) => this.key(e) });
    this.legend = el("ul", { class: "legend" });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    this.observer = new ResizeObserver(() => this.resize());
    onTheme(() => this.rebuild());
  }

  show(node, series) {
    this.series = series.filter((one) => one.x.length);
    if (!this.series.length) {
      this.drop();
      emptyPlot(node, "Nothing recorded yet.");
      return;
    }
    if (this.box.parentNode !== node) {
      clear(node).append(this.box, this.legend, this.readout);
      this.observer.observe(node);
    }
    const shape = JSON.stringify([this.xLabel, this.series.map((s) => [s.label, s.place, !!s.low, !!s.faint])]);
    this.data = joined(this.series);
    if (this.chart && shape === this.shape) this.chart.setData(this.data.table);
    else this.build(shape);
    this.box.setAttribute("aria-label", this.summary());
  }

  summary() {
    const ends = this.series.map((one) => {
      const last = lastKnown(one.y);
      return `${one.label}: last ${number(last)}`;
    });
    return `${this.yLabel} by ${this.xLabel}. ${ends.join("; ")}. Arrow keys move the cursor.`;
  }

  drop() {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.shape = "";
    this.box.remove();
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
    this.fillLegend();
  }

  options(width) {
    const ink = colour("--ink-soft");
    const grid = { stroke: colour("--grid"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      scales: { x: { time: false, range: (u, min, max) => spread(min, max) }, y: { range: padded } },
      axes: [
        { ...axis, label: this.xLabel, labelFont: axis.font, labelSize: 20, size: 34,
          incrs: this.xLabel === "round" ? WHOLE : undefined,
          values: (u, ticks) => ticks.map(short) },
        { ...axis, size: 52, ...(this.yTitle ? { label: this.yLabel, labelFont: axis.font, labelSize: 18 } : {}), values: (u, ticks) => ticks.map(short) },
      ],
      series: [{}, ...this.data.columns.map((column) => this.column(column))],
      bands: this.bands(),
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      hooks: { setCursor: [(u) => this.read(u.cursor.idx)] },
    };
  }

  column({ one, part, place }) {
    if (part !== "y") return { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    const stroke = one.faint ? `${seriesColour(place)}40` : seriesColour(place);
    return {
      label: one.label, stroke, width: 2, dash: DASHES[place % DASHES.length], spanGaps: true,
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

  fillLegend() {
    clear(this.legend);
    if (this.series.length < 2 && !this.series[0].low) return;
    this.series.forEach((one, i) => {
      const place = one.place ?? i;
      const line = svg("line", {
        x1: 1, y1: 6, x2: 27, y2: 6, stroke: seriesColour(place), "stroke-width": 2.5,
        "stroke-dasharray": DASHES[place % DASHES.length].join(" "),
      });
      const swatch = svg("svg", { width: 28, height: 12, "aria-hidden": "true" }, line);
      const text = one.low ? `${one.label}, with 95 % interval` : one.label;
      this.legend.append(el("li", {}, swatch, text));
    });
  }

  read(index) {
    if (index === null || index === undefined) {
      setText(this.readout, "");
      return;
    }
    const parts = [`${this.xLabel} ${number(this.data.table[0][index])}`];
    this.data.columns.forEach(({ one, part }, i) => {
      const value = this.data.table[i + 1][index];
      if (part !== "y" || value === null || value === undefined) return;
      const low = one.low ? this.data.table[i + 3]?.[index] : null;
      const high = one.low ? this.data.table[i + 2]?.[index] : null;
      const range = low !== null && low !== undefined ? ` [${number(low, 3)}, ${number(high, 3)}]` : "";
      parts.push(`${one.label} ${number(value)}${range}`);
    });
    setText(this.readout, parts.join(" · "));
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!this.chart || !(event.key in moves)) return;
    event.preventDefault();
    const xs = this.data.table[0];
    const now = this.chart.cursor.idx ?? (moves[event.key] < 0 ? xs.length : -1);
    const next = Math.min(xs.length - 1, Math.max(0, now + moves[event.key]));
    this.chart.setCursor({ left: this.chart.valToPos(xs[next], "x"), top: HEIGHT / 3 });
  }
}

// One table with all values of x; every series has its column, and two more for a band.
function joined(series) {
  const columns = [];
  const tables = series.map((one, i) => {
    const place = one.place ?? i;
    columns.push({ one, part: "y", place });
    if (!one.low) return [one.x, one.y];
    columns.push({ one, part: "high", place }, { one, part: "low", place });
    return [one.x, one.y, one.high, one.low];
  });
  const table = tables.length === 1 ? tables[0] : uPlot.join(tables);
  return { columns, table };
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

function lastKnown(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

// A figure source over curves: the plot, and the same numbers as a table.
export function curveSource(curves, series) {
  return {
    draw: (node) => curves.show(node, series),
    table: () => curveTable(curves.xLabel, series),
  };
}

function curveTable(xLabel, series) {
  const xs = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const places = series.map((one) => new Map(one.x.map((x, i) => [x, i])));
  const cell = (one, at) => {
    if (at === undefined) return "";
    const value = number(one.y[at]);
    const low = one.low ? one.low[at] : null;
    return low === null || low === undefined
      ? value : `${value} [${number(low, 3)}, ${number(one.high[at], 3)}]`;
  };
  return {
    columns: [{ label: xLabel, number: true }, ...series.map((one) => ({ label: one.label, number: true }))],
    rows: xs.map((x) => [number(x), ...series.map((one, i) => cell(one, places[i].get(x)))]),
  };
}
