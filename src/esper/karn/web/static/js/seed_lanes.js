// Life lines of one member's seeds: stages, and above them the contribution with its error.

import { el, svg } from "./dom.js";
import { linear, valueRange, xAxis, yAxis } from "./axes.js";
import { pointsText } from "./growth_state.js";
import { number } from "./format.js";
import { allStages, stageColour, stageWord } from "./stages.js";
import { seriesColour } from "./theme.js";

const LEFT = 58;
const PANEL = 104;
const RATES = 74;
const LANE = 104;
const NORMAL = 1.96; // standard errors of a 95 % interval
const BAR = 12;

// `onSeed(text)`: a seed was pointed at or focused; `onStep(step)`: the axis was clicked.
export function seedLanes(growth, width, { onSeed, onStep }) {
  const rates = growth.rates.length ? RATES : 0;
  const above = rates + (growth.points.length > 1 ? PANEL : 0);
  const height = above + growth.slots.length * LANE + 52;
  const box = { left: LEFT, right: width - 14, top: 6, bottom: height - 44 };
  const x = linear([0, growth.steps], [box.left, box.right]);
  const picture = svg("svg", {
    width, height, role: "group", "aria-label": `Life lines of the seeds of member ${growth.member}`,
    click: (event) => onStep(stepAt(event, picture, growth, box)),
  }, xAxis(x, box, "steps done"));
  if (rates) picture.append(...ratePanel(growth, x, box));
  if (above > rates) picture.append(...accuracyPanel(growth, x, box, rates));
  const y = contributionScale(growth);
  growth.slots.forEach((slot, i) => {
    const top = above + i * LANE;
    picture.append(svg("line", { class: "divider", x1: 0, x2: box.right, y1: top, y2: top }),
      svg("text", { class: "label", x: 4, y: top + LANE - 13 }, slot));
    const seeds = growth.seeds.filter((seed) => seed.slot === slot);
    if (seeds.some((seed) => seed.measured.length)) picture.append(...contributionAxis(y, top, box));
    for (const seed of seeds) picture.append(life(seed, growth, top, x, y, onSeed));
  });
  const cursor = svg("line", { class: "cursor", y1: 2, y2: box.bottom });
  picture.append(cursor);
  const move = (step) => {
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
  };
  return { picture, move };
}

export function seedText(seed) {
  const stages = seed.stages.map((span) => `${stageWord(span.stage)} from step ${span.first}`).join(", ");
  const last = seed.measured.at(-1);
  const found = last ? `; contribution ${pointsText(last)} (± 1 standard error) at the last of ${seed.measured.length} measurements` : "";
  return `${seed.blueprint} in ${seed.slot}, +${number(seed.params)} parameters: ${stages}${found}`;
}

function stepAt(event, picture, growth, box) {
  const at = (event.clientX - picture.getBoundingClientRect().left - box.left) / (box.right - box.left);
  return Math.round(Math.min(1, Math.max(0, at)) * growth.steps);
}

function contributionScale(growth) {
  const all = growth.seeds.flatMap((seed) => seed.measured);
  const low = Math.min(0, ...all.map((one) => one.value - reach(one)));
  const high = Math.max(0, ...all.map((one) => one.value + reach(one)));
  return linear([low, high > low ? high : low + 0.01], [LANE - BAR - 14, 22]); // from the top of a lane
}

function reach(measured) {
  return NORMAL * (measured.se ?? 0);
}

function contributionAxis(y, top, box) {
  return y.ticks(3).flatMap((tick) => [
    svg("line", { class: tick === 0 ? "zero" : "grid", x1: box.left, x2: box.right, y1: top + y(tick), y2: top + y(tick) }),
    svg("text", { class: "small", x: box.left - 5, y: top + y(tick) + 4, "text-anchor": "end" }, String(Math.round(100 * tick))),
  ]);
}

function life(seed, growth, top, x, y, onSeed) {
  const said = seedText(seed);
  const say = () => onSeed(said);
  const group = svg("g", { class: "life", tabindex: 0, role: "img", "aria-label": said, focus: say, pointerenter: say });
  const [from, to] = [seed.stages[0].first, seed.stages.at(-1).end ?? growth.now];
  group.append(svg("rect", { class: "target", x: x(from), y: top, width: Math.max(12, x(to) - x(from)), height: LANE }));
  for (const span of seed.stages) {
    const end = span.end ?? growth.now;
    group.append(svg("rect", {
      class: "span", x: x(span.first), y: top + LANE - BAR - 4, width: Math.max(1.5, x(end) - x(span.first)), height: BAR,
      fill: stageColour(span.stage),
    }, svg("title", {}, `${seed.blueprint}: ${stageWord(span.stage)}, steps ${span.first} to ${end}`)));
  }
  group.append(svg("text", { class: "seed", x: x(seed.stages[0].first) + 1, y: top + 14 }, `${seed.blueprint}, +${number(seed.params)}`));
  group.append(...contribution(seed, top, x, y));
  if (["pruned", "restarted"].includes(seed.end)) {
    const held = seed.stages.filter((span) => !["PRUNED", "EMBARGOED", "RESETTING"].includes(span.stage)).at(-1);
    const end = x(held?.end ?? growth.now);
    group.append(svg("path", { class: "cross", d: `M${end - 4} ${top + LANE - BAR - 2}l8 8m0 -8l-8 8` }));
  }
  return group;
}

// Measurements with their 95 % intervals.
function contribution(seed, top, x, y) {
  const ink = seriesColour(0);
  const points = seed.measured.map((one) => ({ one, at: x(one.at), y: top + y(one.value), low: top + y(one.value - reach(one)), high: top + y(one.value + reach(one)) }));
  const line = (list, name) => list.map((p, i) => `${i ? "L" : "M"}${p.at} ${p[name]}`).join("");
  const back = points.toReversed().map((p) => `L${p.at} ${p.low}`).join("");
  const band = points.length > 1 ? [svg("path", { d: `${line(points, "high")}${back}Z`, fill: ink, "fill-opacity": 0.18 })] : [];
  return [...band, svg("path", { class: "contribution", d: line(points, "y"), stroke: ink }), ...points.map((p) =>
    svg("g", { class: "measured" }, svg("line", { class: "error", x1: p.at, x2: p.at, y1: p.low, y2: p.high, stroke: ink }),
      svg("circle", { cx: p.at, cy: p.y, r: 2.6, fill: ink }), svg("circle", { cx: p.at, cy: p.y, r: 9, class: "target" }),
      svg("title", {}, `${seed.blueprint} in ${seed.slot}, step ${p.one.at}: ${pointsText(p.one)} (± 1 standard error)`)))];
}

// The rates of every step, from its beginning to its end.
function ratePanel(growth, x, box) {
  const names = growth.rates.some((point) => point.seed !== point.host) ? ["host", "seed"] : ["host"];
  const inner = { left: box.left, right: box.right, top: 24, bottom: RATES - 10 };
  const most = Math.max(...growth.rates.flatMap((point) => names.map((name) => point[name])));
  const y = linear([0, most || 1], [inner.bottom, inner.top]);
  const title = names.length > 1 ? "learning rate of the host; dashed: of seeds" : "learning rate";
  return [yAxis(y, inner, { count: 2 }), svg("text", { class: "label", x: inner.left, y: 16 }, title),
    ...names.map((name, i) => svg("path", {
      class: "rate", d: growth.rates.map((point, j) => `${j ? "L" : "M"}${x(point.at - 1)} ${y(point[name])}H${x(point.at)}`).join(""),
      fill: "none", stroke: seriesColour(i), "stroke-width": 1.8, "stroke-dasharray": i ? "5 4" : null,
    }))];
}

function accuracyPanel(growth, x, box, top) {
  const curves = ["accuracy", "train_accuracy"].map((name) =>
    growth.points.filter((point) => point[name] !== null).map((point) => [point.at, point[name]]));
  const inner = { left: box.left, right: box.right, top: top + 24, bottom: top + PANEL - 12 };
  const y = linear(valueRange(curves.flat().map(([, value]) => ({ value, low: null, high: null }))), [inner.bottom, inner.top]);
  const title = "accuracy, held out; dashed: on train batches";
  return [yAxis(y, inner, { count: 3 }), svg("text", { class: "label", x: inner.left, y: top + 16 }, title),
    ...curves.map((points, i) => svg("path", {
      d: points.map(([at, value], j) => `${j ? "L" : "M"}${x(at)} ${y(value)}`).join(""),
      fill: "none", stroke: seriesColour(i), "stroke-width": 1.8, "stroke-dasharray": i ? "5 4" : null,
    }))];
}

export function stageLegend(seeds) {
  const used = new Set(seeds.flatMap((seed) => seed.stages.map((span) => span.stage)));
  const entries = allStages().filter((one) => used.has(one.stage)).map((one) => el("li", {},
    svg("svg", { width: 20, height: 12, "aria-hidden": "true" },
      svg("rect", { x: 1, y: 1, width: 18, height: 10, fill: one.colour, class: "span" })), one.name));
  const cross = svg("svg", { width: 14, height: 12, "aria-hidden": "true" },
    svg("path", { class: "cross", d: "M4 3l6 6m0 -6l-6 6" }));
  if (seeds.some((seed) => ["pruned", "restarted"].includes(seed.end))) entries.push(el("li", {}, cross, "pruned, or its member restarted"));
  return el("ul", { class: "legend" }, ...entries);
}
