// The card of one network: what it is, how good, how large; pinned, also its files and its code.

import { ask } from "./api.js";
import { Curves } from "./curves.js";
import { el } from "./dom.js";
import { duration, interval, networkText, number, signed, size } from "./format.js";
import { drawLayers } from "./layers.js";

const HINT = "Point at a network, or Tab to a plot and use the arrow keys. A click or Enter pins it.";

export class NetworkCard {
  constructor(id, selection) {
    this.id = id;
    this.selection = selection;
    this.data = null;
    this.shown = "";
    this.loaded = "";
    this.detail = el("div", { class: "detail", hidden: true });
    this.loss = new Curves({ xLabel: "batches", yLabel: "training loss" });
    this.facts = el("div", { "aria-live": "polite" });
    this.hint = el("p", { class: "note" }, HINT);
    this.close = el("button", { type: "button", hidden: true, click: () => selection.pin(null) }, "Unpin");
    this.node = el("aside", { class: "card", "aria-label": "Network" }, this.facts, this.hint, this.close);
    selection.onChange(() => this.show());
  }

  update(data) {
    this.data = data;
    this.selection.fallback = data.frontier.find((point) => point.is_pick)?.label ?? data.best.at(-1)?.label ?? null;
    this.show();
  }

  // What the plots know of a run; one that has no score is only in the lineage.
  point(label) {
    const run = this.data.lineage.find((one) => one.label === label);
    const point = this.data.frontier.find((one) => one.label === label);
    return run || point ? { ...run, ...point } : null;
  }

  show() {
    if (!this.data) return;
    const { shown, pinned } = this.selection;
    const point = this.point(shown);
    const isPinned = point !== null && shown === pinned;
    const text = JSON.stringify([point, isPinned]);
    if (text !== this.shown) {
      this.shown = text;
      this.facts.replaceChildren(...(point ? facts(point, this.data) : []));
    }
    this.node.classList.toggle("pinned", pinned !== null);
    this.close.hidden = !isPinned;
    this.hint.hidden = isPinned;
    const kept = pinned === null ? null : this.point(pinned);
    this.detail.hidden = kept === null;
    if (kept) this.load(kept, this.data);
  }

  // Its files change when it is judged.
  async load(point, data) {
    const key = JSON.stringify([point.label, point.under_way, point.score.value, data.run.state]);
    if (key === this.loaded) return;
    this.loaded = key;
    try {
      const found = await ask(`/api/runs/${this.id}/networks/${point.label}`);
      if (key === this.loaded) this.showDetail(found);
    } catch (error) {
      this.detail.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  }

  showDetail(found) {
    const file = ({ name, size: bytes }) => el("li", {},
      el("a", { href: `/runs/${this.id}/networks/${name}`, download: name.replace("/", "-") }, `networks/${name}`), ` ${size(bytes)}`);
    const box = el("div", {});
    const part = (title, ...nodes) => el("section", {}, el("h3", {}, title), ...nodes);
    const parts = [found.layers.length ? el("section", { class: "whole" }, el("h3", {}, `Layers of #${found.label}`), drawLayers(found.layers)) : null,
      found.curve.length ? part("Training loss", box) : null,
      el("section", {}, ...(found.pick ? [el("h3", {}, "In Python"), el("pre", { tabindex: 0 }, el("code", {}, found.pick))] : []),
        el("h3", {}, "Files"), found.files.length ? el("ul", {}, ...found.files.map(file))
          : el("p", { class: "note" }, "None: weights are kept of the best networks.")),
      found.script ? part("Script that trains it again", el("pre", { tabindex: 0, class: "script" }, el("code", {}, found.script))) : null];
    this.detail.replaceChildren(...parts.filter(Boolean));
    this.loss.drop();
    const known = found.curve.filter(([, loss]) => loss !== null);
    if (known.length) this.loss.show(box, [{ label: "loss", x: known.map(([at]) => at), y: known.map(([, loss]) => loss) }]);
  }
}

function facts(point, { frontier, run }) {
  const judged = point.score.value !== null;
  const parent = frontier.find((one) => one.label === point.parent);
  const test = `${number(point.score.value)}${point.score.low === null ? "" : ` ± ${number(point.score.value - point.score.low, 2)}`}`;
  const roles = [point.is_pick && "the pick", point.is_host && "your model's best run", point.on_frontier && "on the frontier",
    point.under_way && "under way"].filter(Boolean).join(", ");
  const pairs = [
    ["", roles],
    [`test ${run.metric}`, point.val_score === null ? "" : judged ? `${test} (one standard error)` : point.under_way ? "" : "not judged"],
    ["gain on test", point.is_host || point.gain === null ? "" : `${signed(point.gain)} against your model`],
    [`validation ${run.metric}`, number(point.val_score)],
    ["gain on validation", point.is_host || point.val_gain === null ? "" : `${signed(point.val_gain)} against your model`],
    ["parameters", number(point.params)], ["MACs", number(point.macs)],
    ["latency", point.latency.value === null ? "" : `${interval(point.latency)} ms`],
    ["recipe", point.recipe],
    ["training", [point.seconds === null ? "" : duration(point.seconds), !point.length ? "" : `${number(point.length, 3)} × a full run`].filter(Boolean).join(", ")],
    ["from", point.parent ? `#${point.parent}${parent ? ` ${networkText(parent)}` : ""}` : ""],
  ];
  const rows = pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name || "role"), el("dd", {}, value)));
  const story = [point.made, point.ended].filter(Boolean).map((said) => el("p", { class: "story" }, said));
  return [el("h3", {}, `#${point.label} ${networkText(point)}`), ...story, el("dl", { class: "facts" }, ...rows)];
}
