// Life lines: which seed was in which slot of which member, its stages over the steps of a round.

import { el, svg } from "./dom.js";
import { ask, oneAtATime } from "./api.js";
import { Drawing, linear, valueRange, xAxis, yAxis } from "./axes.js";
import { emptyPlot, Figure } from "./figure.js";
import { number } from "./format.js";
import { pointsText } from "./growth_state.js";
import { stageLegend } from "./seed_lanes.js";
import { stageColour, stageWord } from "./stages.js";
import { onTheme, seriesColour } from "./theme.js";

const LANE = 28;
const BAR = 10;
const PANEL = 96;
const PANEL_HEAD = 24;

export class LifeLines {
  constructor(id, chosen) {
    this.id = id;
    this.chosen = chosen;
    this.first = chosen.member ?? 0;
    this.found = null;
    this.slots = [];
    this.before = el("button", { type: "button", click: () => this.turn(-1), "aria-label": "Members before" }, "◀");
    this.after = el("button", { type: "button", click: () => this.turn(1), "aria-label": "Members after" }, "▶");
    this.window = el("span", { class: "control" });
    const controls = [el("span", { class: "control" }, this.before, this.window, this.after)];
    this.figure = new Figure("life-lines", "Life lines of seeds", { controls, wide: true });
    this.drawing = new Drawing((width) => this.paint(width));
    onTheme(() => this.drawing.node && this.found?.seeds.length && this.drawing.redraw());
    this.load = oneAtATime(() => this.ask());
    chosen.onChange(() => this.load());
  }

  turn(by) {
    this.first = Math.max(0, this.first + by * this.found.window);
    this.load();
  }

  // The newest round is loaded again when the run has moved on.
  async moved(slots) {
    this.slots = slots;
    if (this.chosen.round === null || !this.found) await this.load();
  }

  async ask() {
    const query = `round=${this.chosen.round ?? ""}&member=${this.first}`;
    try {
      this.found = await ask(`/api/runs/${this.id}/seeds?${query}`);
      this.show("");
    } catch (error) {
      this.show(error.message);
    }
  }

  show(problem) {
    const found = this.found;
    if (!found) {
      this.figure.show({ draw: (node) => emptyPlot(node, ""), table: () => this.table() }, { problem });
      return;
    }
    this.first = found.first;
    this.window.parentElement.hidden = !found.members;
    this.window.textContent = ` members ${found.first}-${found.first + found.window - 1} of ${found.members} `;
    this.before.disabled = found.first === 0;
    this.after.disabled = found.first + found.window >= found.members;
    this.figure.show({ draw: (node) => this.draw(node), table: () => this.table() }, { problem });
  }

  draw(node) {
    if (this.found.round < 0) emptyPlot(node, "No round is recorded yet.");
    else if (!this.found.seeds.length) emptyPlot(node, "No seed germinated in these members in this round.");
    else this.drawing.show(node);
  }

  lanes() {
    const slots = this.slots.length ? this.slots : [...new Set(this.found.seeds.map((s) => s.slot))].sort();
    const lanes = [];
    for (let m = this.found.first; m < this.found.first + this.found.window; m += 1) {
      for (const slot of slots) lanes.push({ member: m, slot, first: slot === slots[0] });
    }
    return lanes;
  }

  paint(width) {
    const lanes = this.lanes();
    const panels = this.panels();
    const above = panels.length * (PANEL + PANEL_HEAD);
    const height = above + lanes.length * LANE + 52;
    const box = { left: 84, right: width - 14, top: above + 6, bottom: height - 44 };
    const x = linear([0, this.found.steps], [box.left, box.right]);
    const picture = svg("svg", {
      width, height, role: "img",
      "aria-label": `Life lines of ${this.found.seeds.length} seeds in round ${this.found.round + 1}; the table has them.`,
    }, xAxis(x, box, `step of round ${this.found.round + 1}`));
    panels.forEach((panel, i) => picture.append(...this.panel(panel, i * (PANEL + PANEL_HEAD), x, box)));
    const tops = new Map();
    lanes.forEach((lane, i) => {
      const top = box.top + i * LANE;
      tops.set(`${lane.member} ${lane.slot}`, top);
      if (lane.first) picture.append(svg("line", { class: "divider", x1: 0, x2: box.right, y1: top, y2: top }));
      const text = lane.first ? `${lane.member} ${lane.slot}` : lane.slot;
      const kind = lane.member === this.chosen.member ? "label chosen" : "label";
      picture.append(svg("text", { class: kind, x: box.left - 6, y: top + 24, "text-anchor": "end" }, text));
    });
    for (const seed of this.found.seeds) {
      const top = tops.get(`${seed.member} ${seed.slot}`);
      if (top !== undefined) picture.append(this.life(seed, top, x));
    }
    return [picture, stageLegend(this.found.seeds)];
  }

  // What is drawn above the lines: of all members, whichever of them are shown.
  panels() {
    const known = (points) => (points ?? []).filter(([, value]) => value !== null);
    const accuracy = [known(this.found.accuracy), known(this.found.train_accuracy)];
    const contribution = known(this.found.contribution);
    return [
      { title: "accuracy, held out, with its 95 % interval; dashed: on train batches", curves: accuracy },
      { title: "contribution of a seed: mean, and the middle half of seeds", curves: [contribution] },
    ].filter((panel) => panel.curves[0].length > 1);
  }

  panel({ title, curves }, top, x, box) {
    const inner = { ...box, top: top + PANEL_HEAD, bottom: top + PANEL };
    const estimates = curves.flat().map(([, value, low, high]) => ({ value, low, high }));
    const y = linear(valueRange(estimates), [inner.bottom, inner.top]);
    const path = (points, at) => points.map((p, i) => `${i ? "L" : "M"}${x(p[0])} ${y(at(p))}`).join("");
    const parts = [yAxis(y, inner, { count: 4 }), svg("text", { class: "label", x: box.left, y: top + 14 }, title)];
    curves.forEach((points, i) => {
      if (points.length < 2) return;
      const ink = seriesColour(i);
      const sure = points.filter(([, , low, high]) => low !== null && high !== null);
      const clamp = (value) => Math.min(inner.bottom, Math.max(inner.top, value));
      if (sure.length > 1) {
        const back = sure.slice().reverse().map((p) => `L${x(p[0])} ${clamp(y(p[2]))}`).join("");
        const over = sure.map((p, j) => `${j ? "L" : "M"}${x(p[0])} ${clamp(y(p[3]))}`).join("");
        parts.push(svg("path", { d: `${over}${back}Z`, fill: ink, "fill-opacity": 0.18 }));
      }
      parts.push(svg("path", { d: path(points, (p) => p[1]), fill: "none", stroke: ink, "stroke-width": 1.8,
        "stroke-dasharray": i ? "5 4" : null }));
    });
    return parts;
  }

  life(seed, top, x) {
    const group = svg("g", {});
    const y = top + 16;
    for (const span of seed.stages) {
      const end = span.end ?? this.found.steps;
      const said = `${seed.blueprint} in ${seed.slot} of member ${seed.member}: ${stageWord(span.stage)}, steps ${span.first} to ${end}`;
      group.append(svg("rect", {
        x: x(span.first), y, width: Math.max(1.5, x(end) - x(span.first)), height: BAR,
        fill: stageColour(span.stage), class: "span",
      }, svg("title", {}, said)));
    }
    const held = seed.stages.at(-1).end ?? this.found.steps;
    const end = x(held);
    if (["pruned", "restarted"].includes(seed.end)) group.append(svg("path", { class: "cross", d: `M${end - 8} ${y + 2}l6 6m0 -6l-6 6` }));
    const start = x(seed.stages[0].first);
    const last = seed.measured.at(-1);
    const isWide = x(held) - start > 7 * (seed.blueprint.length + 20);
    const text = last && isWide ? `${seed.blueprint}, ${pointsText(last)}` : seed.blueprint;
    group.append(svg("text", { class: "seed", x: start + 1, y: y - 4 }, text));
    return group;
  }

  table() {
    const life = (seed) => seed.stages.map((span) => `${stageWord(span.stage)} ${span.first}-${span.end ?? "end"}`).join(", ");
    const spread = (seed) => pointsText(seed.measured.at(-1)) || "-";
    return {
      columns: [{ label: "member and slot" }, { label: "blueprint" }, { label: "stages by step" }, { label: "end" },
        { label: "parameters", number: true }, { label: "last contribution ± s.e.", number: true }],
      rows: (this.found?.seeds ?? []).map((seed) => [
        `${seed.member} ${seed.slot}`, seed.blueprint, life(seed), seed.end, number(seed.params), spread(seed),
      ]),
    };
  }
}
