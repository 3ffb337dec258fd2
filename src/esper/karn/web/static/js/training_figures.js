// The figures of a training run. Each has a `node` and `update(data)`.

import { Chosen } from "./chosen.js";
import { Curves, curveSource } from "./curves.js";
import { clear, el } from "./dom.js";
import { Figure } from "./figure.js";
import { number, words } from "./format.js";
import { Growth } from "./growth.js";
import { withPlaces } from "./identity.js";
import { ContenderFigure, PolicySizeFigure } from "./search_figures.js";
import { LifeLines } from "./lifelines.js";
import { stageColour, stageWord } from "./stages.js";

// Rounds are counted from 1 for people, from 0 in the records.
const rounds = (points) => points.map((point) => point.round + 1);
const field = (points, name) => points.map((point) => point[name]);
const part = (points, name, end) => points.map((point) => point[name][end]);

function line(label, points, name, place) {
  return { label, x: rounds(points), y: field(points, name), place };
}

function banded(label, points, name) {
  return {
    label, x: rounds(points), y: part(points, name, "value"),
    low: part(points, name, "low"), high: part(points, name, "high"),
  };
}

// name of the series, title, y label, curves of the data
const CURVES = [
  ["rounds", "score", "Training score by round", "training score", (d) => [
    banded("mean of members", d.rounds, "score"), line("best member", d.rounds, "best_member_score")]],
  ["rounds", "accuracy", "Accuracy by round", "accuracy", (d) => [
    banded("validation", d.rounds, "accuracy"), line("training", d.rounds, "train_accuracy")]],
  ["rounds", "growth", "Seeds per member", "seeds", (d) => [
    line("germinated", d.rounds, "germinated"), line("fossilized", d.rounds, "fossilized"),
    line("pruned", d.rounds, "pruned")]],
  ["rounds", "restarts", "Restarts of members", "restarts of all members", (d) => [
    line("restarts", d.rounds, "restarts")].filter((curve) => curve.y.some((value) => value))],
  ["rounds", "size", "Added parameters per member", "parameters", (d) => [
    line("added parameters", d.rounds, "added_params")], true],
  ["rounds", "stages", "Slots by stage, at the end of a round", "slots of all members", (d) => stages(d.rounds)],
  ["actions", "actions", "Operations chosen", "share of member-steps", (d) => withPlaces("operation", shares(d.actions))],
  ["actions", "slots", "Operations by slot", "share of operations on a slot", (d) => withPlaces("slot", bySlot(d.actions, slotShare))],
  ["actions", "slot-rewards", "Reward by slot", "mean reward of an operation", (d) => withPlaces("slot", bySlot(d.actions, slotReward))],
  ["learner", "entropy", "PPO: entropy", "entropy", (d) => [line("all heads", d.learner, "entropy")]],
  ["learner", "kl", "PPO: KL and clipping", "KL, share", (d) => [
    line("approximate KL", d.learner, "approx_kl"), line("clipped share", d.learner, "clip_fraction")]],
  ["learner", "variance", "PPO: explained variance", "explained variance", (d) => [
    line("explained variance", d.learner, "explained_variance")]],
  ["learner", "losses", "PPO: losses", "loss", (d) => [
    line("policy", d.learner, "policy_loss"), line("value", d.learner, "value_loss")]],
  ["learner", "ratio", "PPO: probability ratio", "ratio", (d) => [
    line("mean", d.learner, "ratio_mean"), line("lowest", d.learner, "ratio_min"),
    line("highest", d.learner, "ratio_max")], true],
  ["learner", "rate", "PPO: learning rate", "learning rate", (d) => [
    line("learning rate", d.learner, "learning_rate")], true],
  ["learner", "gradient", "PPO: gradient norm", "norm", (d) => [line("gradient norm", d.learner, "grad_norm")], true],
  ["speed", "speed", "Throughput", "member-steps/s", (d) => [
    line("member-steps/s", d.speed, "member_steps_per_second")], true],
  ["speed", "device", "Device", "share of time", (d) => [
    line("trained and validated", d.speed, "device_share", 0), line("GPU utilisation", d.speed, "gpu_utilization", 1)]
    .filter((curve) => curve.y.some((value) => value !== null))],
];

function shares(points) {
  const names = new Set();
  for (const point of points) for (const one of point.ops) if (one.chosen) names.add(one.op);
  const share = (point, name) => {
    const all = point.ops.reduce((sum, one) => sum + one.chosen, 0);
    const found = point.ops.find((one) => one.op === name);
    return all && found ? found.chosen / all : 0;
  };
  return [...names].map((name) => ({
    label: words(name), x: rounds(points), y: points.map((point) => share(point, name)),
  }));
}

function bySlot(points, value) {
  const names = [...new Set(points.flatMap((point) => point.slots.map((one) => one.slot)))].sort();
  return names.map((name) => ({
    label: name, x: rounds(points), y: points.map((point) => value(point.slots.find((one) => one.slot === name), point.slots)),
  }));
}

function slotShare(slot, slots) {
  const all = slots.reduce((sum, one) => sum + one.chosen, 0);
  return slot && all ? slot.chosen / all : null;
}

function slotReward(slot) {
  return slot && slot.chosen && slot.reward !== null ? slot.reward / slot.chosen : null;
}

function stages(points) {
  const names = new Set();
  for (const point of points) for (const [name, count] of point.stages) if (count) names.add(name);
  const count = (point, name) => (point.stages.find(([one]) => one === name) ?? [name, null])[1];
  return [...names].map((name) => ({
    label: stageWord(name), colour: stageColour(name), x: rounds(points), y: points.map((point) => count(point, name)),
  }));
}

class CurveFigure {
  constructor([source, id, title, yLabel, series, mayBeLog]) {
    this.source = source;
    this.series = series;
    this.curves = new Curves({ xLabel: "round", yLabel, mayBeLog });
    this.figure = new Figure(id, title);
    this.node = this.figure.node;
  }

  update(data) {
    const series = this.series(data);
    const problem = data.problems[this.source];
    this.node.hidden = !series.some((one) => one.x.length) && !problem;
    this.figure.show(curveSource(this.curves, series), { problem });
  }
}

// A figure of a round; `part.moved(slots)` reads it anew.
class RoundFigure {
  constructor(part) {
    this.part = part;
    this.node = part.figure.node;
    this.newest = null;
  }

  update(data) {
    const newest = data.rounds.length ? data.rounds.at(-1).round : -1;
    this.node.hidden = newest < 0;
    if (newest < 0 || newest === this.newest) return;
    this.newest = newest;
    this.part.moved(data.setup ? data.setup.slots : []);
  }
}

class PhaseFigure {
  constructor() {
    this.figure = new Figure("phases", "Where the time of a round goes");
    this.node = this.figure.node;
  }

  update(data) {
    const last = data.speed.at(-1);
    const total = last ? last.phases.reduce((sum, [, seconds]) => sum + seconds, 0) : 0;
    this.node.hidden = !total;
    if (total) this.figure.show({ draw: (node) => draw(node), table: () => table() });

    function draw(node) {
      clear(node).append(el("p", { class: "note" }, `round ${last.round + 1}, ${number(total, 3)} s`),
        el("ul", { class: "bars" }, ...last.phases.map(([name, seconds]) => el("li", {},
          el("span", { class: "bar-name" }, words(name)), el("meter", { max: total, value: seconds, "aria-hidden": "true" }),
          el("span", { class: "bar-value" }, `${number(seconds, 2)} s, ${Math.round((100 * seconds) / total)} %`)))));
    }

    function table() {
      return {
        columns: [{ label: "phase" }, { label: "seconds", number: true }, { label: "share", number: true }],
        rows: last.phases.map(([name, seconds]) => [
          words(name), number(seconds, 3), `${Math.round((100 * seconds) / total)} %`]),
      };
    }
  }
}

class AnomalyFigure {
  constructor() {
    this.list = el("ul", { class: "problems" });
    this.node = el("section", { class: "figure wide", id: "anomalies" }, el("h2", {}, "Anomalies"), this.list);
  }

  update(data) {
    this.node.hidden = !data.anomalies.length;
    this.list.replaceChildren(...data.anomalies.slice(-20).reverse().map((one) =>
      el("li", {}, `round ${one.round + 1}: ${words(one.kind)}, ${one.detail}`)));
  }
}

export function trainingFigures(id) {
  const curves = CURVES.map((row) => new CurveFigure(row));
  const judged = [new ContenderFigure("score", "Judged on fresh hosts: score"),
    new PolicySizeFigure()];
  const chosen = new Chosen();
  const grown = [new RoundFigure(new Growth(id, chosen)), new RoundFigure(new LifeLines(id, chosen))];
  return [...curves.slice(0, 4), ...judged, ...grown, ...curves.slice(4), new PhaseFigure(),
    new AnomalyFigure()];
}
