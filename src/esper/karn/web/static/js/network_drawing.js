// The network of a member at a step: segments of the host in order, the slots between them.

import { svg } from "./dom.js";
import { number, shorten } from "./format.js";
import { slotAt } from "./growth_state.js";
import { inkOn, stageColour, stageWord } from "./stages.js";

const HOST = 62;
const UNIT = 216;
const ROW = 142;
const WIRE = 72; // from the top of a row
const SEED = { width: 112, height: 30, above: 58 };

export function networkDrawing(growth, step, width) {
  const perRow = Math.max(1, Math.floor((width - HOST - 16) / UNIT));
  const rows = Math.ceil(growth.slots.length / perRow) || 1;
  const unit = Math.min(UNIT * 1.5, (width - HOST - 16) / Math.min(perRow, growth.slots.length || 1));
  const picture = svg("svg", { width, height: rows * ROW + 4, role: "img", "aria-label": said(growth, step) });
  growth.slots.forEach((slot, i) => {
    const left = 8 + (i % perRow) * unit;
    const top = Math.floor(i / perRow) * ROW;
    const isLastOfRow = i % perRow === perRow - 1;
    const isLast = i === growth.slots.length - 1;
    picture.append(wire(left + HOST, left + unit, top + WIRE), segment(`host ${i + 1}`, left, top),
      slotDrawing(growth, slot, step, left + HOST + (unit - HOST) / 2, top));
    if (isLast) picture.append(segment(`host ${i + 2}`, left + unit, top));
    else if (isLastOfRow) picture.append(turn(left + unit, top, 8));
  });
  return picture;
}

function wire(from, to, y) {
  return svg("line", { class: "wire", x1: from, x2: to, y1: y, y2: y });
}

// From the end of a row to the start of the next.
function turn(x, top, left) {
  const y = top + WIRE;
  const between = top + ROW - 4;
  return svg("path", {
    class: "wire", d: `M${x} ${y}h8V${between}H${left - 4}V${y + ROW}h4`,
  });
}

function segment(name, x, top) {
  return svg("g", {}, svg("rect", { class: "host", x, y: top + WIRE - 20, width: HOST, height: 40, rx: 5 }),
    svg("text", { class: "label", x: x + HOST / 2, y: top + WIRE + 4, "text-anchor": "middle" }, name));
}

function slotDrawing(growth, slot, step, x, top) {
  const y = top + WIRE;
  const held = slotAt(growth, slot, step);
  const group = svg("g", { class: "slot", "data-slot": slot, "data-stage": held?.stage ?? "DORMANT" });
  const words = (text, line, kind = "small") => svg("text", { class: kind, x, y: y + 22 + 15 * line, "text-anchor": "middle" }, text);
  if (!held) {
    group.append(svg("circle", { class: "empty-slot", cx: x, cy: y, r: 7 }), words(slot, 0, "label"), words("empty", 1));
    return group;
  }
  group.append(words(slot, 0, "label"));
  if (!held.isHeld) {
    group.append(svg("circle", { class: "span", cx: x, cy: y, r: 7, fill: stageColour(held.stage) }), words(stageWord(held.stage), 1));
    return group;
  }
  group.append(...seedDrawing(held, x, y), words(`${stageWord(held.stage)}, alpha ${number(held.alpha, 2)}`, 1),
    words(held.seed.params ? `+${number(held.seed.params)} parameters` : "", 2));
  return group;
}

// A seed reads the host's activation and adds to it, the more the higher its alpha.
function seedDrawing(held, x, y) {
  const half = SEED.width / 2 + 8;
  const middle = y - SEED.above + SEED.height / 2;
  const path = `M${x - half} ${y}V${middle + 8}q0 -8 8 -8H${x + half - 8}q8 0 8 8V${y}`;
  const box = { x: x - SEED.width / 2, y: y - SEED.above, width: SEED.width, height: SEED.height, rx: 6 };
  const alpha = held.alpha ?? 0;
  return [
    svg("path", { class: alpha ? "seed-wire" : "seed-wire idle", d: path, "stroke-width": 1.5 + 2.5 * alpha }),
    alpha ? svg("circle", { class: "joint", cx: x + half, cy: y, r: 3 + 3 * alpha }) : "",
    svg("rect", { class: "seed-box", ...box, fill: stageColour(held.stage) }, svg("title", {}, `${held.seed.blueprint}: ${stageWord(held.stage)}`)),
    svg("text", { x, y: middle + 4, "text-anchor": "middle", class: `seed-name ${inkOn(held.stage)}` }, shorten(held.seed.blueprint, 16)),
  ];
}

function said(growth, step) {
  const slots = growth.slots.map((slot) => {
    const held = slotAt(growth, slot, step);
    if (!held?.isHeld) return `${slot} empty`;
    return `${slot} ${held.seed.blueprint} ${stageWord(held.stage)}, alpha ${number(held.alpha, 2)}`;
  });
  return `Network of member ${growth.member} when ${step} steps are done: ${slots.join("; ")}.`;
}
