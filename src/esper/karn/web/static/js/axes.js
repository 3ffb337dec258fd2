// Scales, ticks and axes of the plots drawn as SVG.

import { clear, svg } from "./dom.js";
import { tickTexts } from "./format.js";

const LOG_FROM = 3;

export function linear([from, to], [start, end]) {
  const span = to - from || 1;
  const scale = (value) => start + ((value - from) / span) * (end - start);
  scale.ticks = (count) => linearTicks(from, to, count);
  scale.range = [start, end];
  return scale;
}

// Logarithmic if the values differ enough, or as the reader chose.
export function costScale(values, range, isLog = null) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (low <= 0 || !(isLog ?? high / low >= LOG_FROM)) {
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return linear([low - pad, high + pad], range);
  }
  const [from, to] = [Math.log10(low) - 0.08, Math.log10(high) + 0.08];
  const inner = linear([from, to], range);
  const scale = (value) => inner(Math.log10(value));
  scale.ticks = () => logTicks(10 ** from, 10 ** to);
  scale.range = range;
  scale.isLog = true;
  return scale;
}

export function linearTicks(from, to, count = 5) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const rough = span / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  const ticks = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n += 1) {
    ticks.push(Number((n * step).toPrecision(12)) + 0);
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
  const ticks = apart(scale.ticks(6), scale, 44);
  const texts = tickTexts(ticks);
  ticks.forEach((tick, i) => {
    const x = scale(tick);
    group.append(svg("line", { class: "grid", x1: x, x2: x, y1: box.top, y2: box.bottom }),
      svg("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, texts[i]));
  });
  const middle = (box.left + box.right) / 2;
  group.append(svg("text", { x: middle, y: box.bottom + 34, "text-anchor": "middle" }, scale.isLog ? `${label} (log)` : label));
  return group;
}

export function yAxis(scale, box, { count = 5, label = "" } = {}) {
  const group = svg("g", { class: "axis" });
  if (label) group.append(svg("text", { x: 4, y: box.top - 10 }, label));
  const ticks = scale.ticks(count);
  const texts = tickTexts(ticks);
  ticks.forEach((tick, i) => {
    const y = scale(tick);
    group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
      svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, texts[i]));
  });
  return group;
}

// An interval as a line along an axis; where it leaves the axis an arrow points out of it.
export function whisker({ low, high }, scale, across, attributes, isUpright = true) {
  const ends = [low, high].map((value) => scale(value));
  const [from, to] = scale.range[0] < scale.range[1] ? scale.range : [...scale.range].reverse();
  const [a, b] = ends.map((end) => Math.min(to, Math.max(from, end)));
  const point = (along, aside) => (isUpright ? `${across + aside} ${along}` : `${along} ${across + aside}`);
  const parts = [`M${point(a, 0)}L${point(b, 0)}`];
  [a, b].forEach((end, i) => {
    if (end === ends[i]) parts.push(`M${point(end, -3.5)}L${point(end, 3.5)}`);
    else {
      const back = end + (end === to ? -6 : 6);
      parts.push(`M${point(back, -4)}L${point(end, 0)}L${point(back, 4)}`);
    }
  });
  return svg("path", { d: parts.join(""), fill: "none", "stroke-width": 1.5, class: "whisker", ...attributes });
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
