// The runs of a search: rungs are columns, networks are lanes, lines lead from a run to those that came from it.

import { Drawing } from "./axes.js";
import { el, svg } from "./dom.js";
import { emptyPlot, Figure } from "./figure.js";
import { number, shorten } from "./format.js";
import { Marks, shape } from "./marks.js";

const STEP = 18; // between runs
const GAP = 40; // between rungs, at least
const MAX_GAP = 110;
const LANE = 14; // above and below the runs of a lane
const BOW = 11; // of a line to a run of the same lane, at most
const HEAD = 26;
const LEAST = 3; // runs beside each other
const MARK = 5.5;
const SHADES = 5;
const NOTE = "A line leads from a run to those that came from it: solid, trained again for another length; dotted, something was changed. "
  + "Arrow keys: left and right along the lines, up and down in a rung.";

export class LineageFigure {
  constructor(selection) {
    this.selection = selection;
    this.data = null;
    this.drawn = "";
    this.figure = new Figure("lineage", "Lineage", { note: NOTE });
    this.box = el("div", { class: "lineage-box" });
    this.legend = el("ul", { class: "legend" });
    this.marks = new Marks(selection, this.box, (label, key) => this.next(label, key));
    this.drawing = new Drawing((width) => this.paint(width));
    this.node = this.figure.node;
    selection.onChange(() => this.show());
  }

  update(data) {
    this.data = data;
    this.figure.show({ draw: (node) => this.draw(node), table: () => lineageTable(data.lineage) }, { problem: data.problems.lineage });
  }

  draw(node) {
    const { lineage } = this.data;
    if (!lineage.length) {
      emptyPlot(node, "No run was proposed yet.");
      return;
    }
    if (this.box.parentNode !== node) node.replaceChildren(this.box, this.legend);
    const key = JSON.stringify(lineage);
    if (key !== this.drawn) {
      this.drawn = key;
      this.byLabel = new Map(lineage.map((run) => [run.label, run]));
      const { scrollLeft, scrollTop } = this.box;
      this.marks.repaint(() => this.drawing.show(this.box));
      this.box.scrollTo(scrollLeft, scrollTop);
      this.legend.replaceChildren(...legend(lineage));
    }
    this.show();
  }

  // ---- the picture ------------------------------------------------------------------------------

  paint(width) {
    const { lineage } = this.data;
    const names = lanesOf(lineage);
    const side = width < 560 ? 92 : 138;
    const plan = planOf(lineage, names.length, width - side - 14);
    this.marks.places = lineage.map((run) => ({ run, label: run.label, ...plan.at(run) })).sort((a, b) => a.x - b.x || a.y - b.y);
    const entry = this.marks.entry();
    const places = new Map(this.marks.places.map((place) => [place.label, place]));
    const plot = svg("svg", {
      width: plan.width, height: plan.height, role: "group", "aria-label": `${lineage.length} runs by rung and network. Arrow keys follow the lines, Enter pins.`,
      ...this.marks.pointer,
    }, ...plan.lanes.map(({ top, height }, i) => svg("rect", { x: 0, y: top, width: plan.width, height, class: i % 2 ? "lane odd" : "lane" })),
    ...plan.refits.flatMap((run) => refit(places.get(run.label), plan)), ...lineage.map((run) => edge(run, places)));
    for (const place of this.marks.places) plot.append(this.marks.node(place, spoken(place.run), place.label === entry, runShape(place.run, place.x, place.y)));
    const head = svg("svg", { width: plan.width, height: HEAD, "aria-hidden": "true" },
      ...plan.columns.map(({ left, width: wide, name }) => svg("text", { x: left + wide / 2, y: 17, "text-anchor": "middle" }, name)));
    const labels = svg("svg", { width: side, height: plan.height, class: "lane-names", "aria-hidden": "true" },
      ...plan.lanes.map(({ top, height }, i) => svg("text", { x: 2, y: top + height / 2 + 4 }, svg("title", {}, names[i].network), laneName(names[i], side))));
    return [el("div", { class: "lineage-rows" },
      el("div", { class: "lineage-head picture-row" }, svg("svg", { width: side, height: HEAD, class: "lane-names", "aria-hidden": "true" }), head),
      el("div", { class: "lineage-row picture-row" }, labels, plot))];
  }

  // Where the runs that are looked at came from, and what came from them.
  show() {
    if (!this.data || !this.byLabel) return;
    const { shown, active, pinned } = this.selection;
    const family = familyOf(this.data.lineage, this.byLabel, shown);
    this.box.classList.toggle("chosen", family.size > 0 && (active ?? pinned) !== null);
    for (const line of this.box.querySelectorAll(".edge")) {
      line.classList.toggle("family", family.has(line.dataset.from) && family.has(line.dataset.to));
    }
    for (const node of this.marks.nodes()) node.classList.toggle("family", family.has(node.dataset.label));
    if (pinned !== this.followed) {
      this.followed = pinned;
      this.reveal(pinned);
    }
  }

  // Scrolls only inside the box.
  reveal(label) {
    const place = this.marks.places.find((one) => one.label === label);
    if (!place || this.box.matches(":hover") || this.box.contains(document.activeElement)) return;
    this.box.scrollTo(place.x - this.box.clientWidth / 2, place.y - this.box.clientHeight / 2);
  }

  // ---- the keyboard -----------------------------------------------------------------------------

  next(label, key) {
    const run = this.byLabel.get(label);
    const children = this.data.lineage.filter((one) => one.parent === label);
    if (key === "ArrowLeft") return run.parent || label;
    if (key === "ArrowRight") return (children.find((one) => one.is_again) ?? children[0])?.label ?? label;
    if (key === "Home" || key === "End") return this.data.lineage.at(key === "Home" ? 0 : -1).label;
    const column = this.data.lineage.filter((one) => one.rung === run.rung).sort((a, b) => a.lane - b.lane || a.place - b.place);
    const now = column.findIndex((one) => one.label === label) + (key === "ArrowUp" ? -1 : 1);
    return column[Math.min(column.length - 1, Math.max(0, now))].label;
  }
}

function familyOf(lineage, byLabel, label) {
  const family = new Set();
  if (!byLabel.has(label)) return family;
  for (let at = label; at && byLabel.has(at); at = byLabel.get(at).parent) family.add(at);
  const after = new Set([label]);
  for (const run of lineage) if (after.has(run.parent)) after.add(run.label); // children follow their parents
  return new Set([...family, ...after]);
}

// ---- places -------------------------------------------------------------------------------------

// A run of each lane, for its name.
function lanesOf(lineage) {
  const lanes = [];
  for (const run of lineage) lanes[run.lane] = run;
  return lanes;
}

// Columns as wide as their fullest lane, in lines of as many runs as there is room for.
function planOf(lineage, lanes, room) {
  const rungs = [...new Set(lineage.map((run) => run.rung))].sort((a, b) => a - b);
  const counts = new Map();
  const cell = (rung, lane) => `${rung} ${lane}`;
  for (const run of lineage) counts.set(cell(run.rung, run.lane), Math.max(counts.get(cell(run.rung, run.lane)) ?? 0, run.place + 1));
  const most = rungs.map((rung) => Math.max(...Array.from({ length: lanes }, (_, lane) => counts.get(cell(rung, lane)) ?? 0)));
  const refits = lineage.filter((run) => run.is_refit);
  const wide = (limit) => most.reduce((sum, count) => sum + Math.min(count, limit) * STEP + GAP, refits.length ? STEP + GAP : 0);
  let limit = Math.max(LEAST, ...most);
  while (limit > LEAST && wide(limit) > room) limit -= 1;
  const columns = [];
  const gap = Math.min(MAX_GAP, GAP + Math.max(0, room - wide(limit)) / (rungs.length + 1));
  let left = gap / 2;
  rungs.forEach((rung, i) => {
    const width = Math.min(most[i], limit) * STEP;
    columns.push({ rung, left, width, name: rungs.length > 12 || room < 420 ? String(rung) : `rung ${rung}` });
    left += width + gap;
  });
  if (refits.length) {
    columns.push({ rung: null, left, width: STEP, name: "refit" });
    left += STEP + gap;
  }
  const plan = { columns, refits, lanes: [], width: Math.max(room, left - gap / 2), height: 0 };
  for (let lane = 0; lane < lanes; lane += 1) {
    const lines = Math.max(1, ...rungs.map((rung) => Math.ceil((counts.get(cell(rung, lane)) ?? 0) / limit)));
    plan.lanes.push({ top: plan.height, height: lines * STEP + LANE });
    plan.height += lines * STEP + LANE;
  }
  plan.at = ({ rung, lane, place }) => {
    const column = columns.find((one) => one.rung === rung);
    return { x: column.left + (place % limit) * STEP + STEP / 2, y: plan.lanes[lane].top + LANE / 2 + Math.floor(place / limit) * STEP + STEP / 2 };
  };
  return plan;
}

// The name of a network, shorter where there is no room.
function laneName({ network, variant, topology }, side) {
  const most = Math.floor(side / 6.6);
  const short = [variant, ...topology].filter(Boolean).join(" ");
  return shorten(network.length <= most ? network : short || network, most);
}

// ---- marks --------------------------------------------------------------------------------------

function edge(run, places) {
  const [from, to] = [places.get(run.parent), places.get(run.label)];
  if (!from) return null;
  return svg("path", { d: curve(from, to), class: run.is_again ? "edge" : "edge changed", "data-from": run.parent, "data-to": run.label });
}

// To the same height in a bow, past the runs between.
function curve(from, to) {
  const wide = to.x - from.x;
  const bend = Math.max(18, wide / 2);
  const bow = from.y === to.y && wide > 2 * STEP ? Math.min(BOW, 5 + wide / 40) : 0;
  return `M${from.x} ${from.y}C${from.x + bend / (bow ? 2 : 1)} ${from.y - bow} ${to.x - bend / (bow ? 2 : 1)} ${to.y - bow} ${to.x} ${to.y}`;
}

function refit(place, { columns }) {
  const at = { x: columns.at(-1).left + STEP / 2, y: place.y };
  return [svg("path", { d: curve(place, at), class: "edge", "data-from": place.label, "data-to": place.label }),
    svg("circle", { cx: at.x, cy: at.y, r: MARK, class: "refit" }, svg("title", {}, `#${place.label} was trained once more, on validation samples as well`))];
}

function runShape(run, x, y) {
  if (run.state === "diverged") return svg("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, class: "cross" });
  const kind = [run.shade < 0 ? "run unknown" : `run shade-${run.shade}`, run.on_frontier && "is-best", run.is_pick && "is-pick", run.is_host && "is-model",
    run.state === "under way" && "under-way", run.state === "cut" && "stopped"].filter(Boolean).join(" ");
  return shape(run, x, y, { class: kind }, run.shade < 0 ? 4 : MARK);
}

function spoken(run) {
  const score = run.val_score === null ? run.state : `validation score ${number(run.val_score)}`;
  return `#${run.label} ${run.network}, rung ${run.rung}, ${score}${run.on_frontier ? ", on the frontier" : ""}. ${run.made} ${run.ended}`;
}

function legend(lineage) {
  const plain = { label: "", shade: 3, state: "finished" };
  const swatch = (...parts) => svg("svg", { width: 18, height: 18, "aria-hidden": "true" }, ...parts);
  const shades = svg("svg", { width: SHADES * 15, height: 18, "aria-hidden": "true" },
    ...Array.from({ length: SHADES }, (_, shade) => runShape({ ...plain, shade }, 8 + 15 * shade, 9)));
  const kinds = [
    ["on the frontier", { on_frontier: true }, (run) => run.on_frontier], ["the pick", { is_pick: true }, (run) => run.is_pick],
    ["your model", { is_host: true }, (run) => run.is_host && !run.is_pick], ["diverged", { state: "diverged" }, (run) => run.state === "diverged"],
    ["under way", { state: "under way" }, (run) => run.state === "under way"], ["cut", { state: "cut" }, (run) => run.state === "cut"],
    ["not trained", { shade: -1, state: "planned" }, (run) => run.state === "planned"],
  ];
  return [el("li", {}, shades, "validation score, from the lowest fifth to the highest"),
    ...kinds.filter(([, , test]) => lineage.some(test)).map(([text, look]) => el("li", {}, swatch(runShape({ ...plain, ...look }, 9, 9)), text))];
}

function lineageTable(lineage) {
  const heads = ["run", "rung", "network", "recipe", "from", "why it was made", "validation score", "why it ended"];
  return {
    columns: heads.map((label, i) => ({ label, number: i === 1 || i === 6 })),
    rows: lineage.map((run) => [`#${run.label}`, String(run.rung), run.network, run.recipe, run.parent ? `#${run.parent}` : "", run.made, number(run.val_score), run.ended]),
  };
}
