// Scales, ticks and axes of the plots drawn as SVG.

import { clear, svg } from "./dom.js";
import { short } from "./format.js";

const LOG_FROM = 3;

export function linear([from, to], [start, end]) {
  const span = to - from || 1;
  const scale = (value) => start + ((value - from) / span) * (end - start);
  scale.ticks = (count) => linearTicks(from, to, count);
  return scale;
}

// Logarithmic if the values differ enough.
export function costScale(values, range) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (low <= 0 || high / low < LOG_FROM) {
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return linear([low - pad, high + pad], range);
  }
  const [from, to] = [Math.log10(low) - 0.08, Math.log10(high) + 0.08];
  const inner = linear([from, to], range);
  const scale = (value) => inner(Math.log10(value));
  scale.ticks = () => logTicks(10 ** from, 10 ** to);
  return scale;
}

export function linearTicks(from, to, count = 5) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const rough = span / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) {
    ticks.push(Number(at.toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const n of [1, 2, 5]) {
      const at = n * 10 ** power;
      if (at >= low && at <= high) ticks.push(at);
    }
  }
  return ticks;
}

// Ticks that keep their distance.
function apart(ticks, scale, pixels) {
  const kept = [];
  for (const tick of ticks) {
    if (!kept.length || Math.abs(scale(tick) - scale(kept.at(-1))) >= pixels) kept.push(tick);
  }
  return kept;
}

export function xAxis(scale, box, label) {
  const group = svg("g", { class: "axis" });
  for (const tick of apart(scale.ticks(6), scale, 44)) {
    const x = scale(tick);
    group.append(svg("line", { class: "grid", x1: x, x2: x, y1: box.top, y2: box.bottom }),
      svg("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, short(tick)));
  }
  const middle = (box.left + box.right) / 2;
  group.append(svg("text", { x: middle, y: box.bottom + 34, "text-anchor": "middle" }, label));
  return group;
}

export function yAxis(scale, box, { count = 5, label = "" } = {}) {
  const group = svg("g", { class: "axis" });
  if (label) group.append(svg("text", { x: 4, y: box.top - 10 }, label));
  for (const tick of scale.ticks(count)) {
    const y = scale(tick);
    group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
      svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, short(tick)));
  }
  return group;
}

// Draws again when the width changes: text keeps its size on narrow screens.
export class Drawing {
  constructor(paint) {
    this.paint = paint;
    this.node = null;
    this.width = 0;
    this.observer = new ResizeObserver(() => {
      if (this.node && this.node.clientWidth && this.node.clientWidth !== this.width) this.redraw();
    });
  }

  show(node) {
    if (this.node !== node) {
      this.node = node;
      this.observer.observe(node);
    }
    this.redraw();
  }

  redraw() {
    this.width = this.node.clientWidth;
    const parts = this.paint(Math.max(240, this.width || 480));
    clear(this.node).append(...parts);
  }
}

// Range of estimates for an axis; wide intervals of few values do not squeeze the values.
export function valueRange(estimates) {
  const values = estimates.map((one) => one.value);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = Math.max(high - low, Math.abs(high) * 0.35, 1e-3);
  const ends = estimates.flatMap((one) => [one.low, one.high]).filter((end) => end !== null);
  const from = Math.max(low - room, Math.min(low, ...ends));
  const to = Math.min(high + room, Math.max(high, ...ends));
  const pad = (to - from) * 0.06 || 0.01;
  return [from - pad, to + pad];
}
