// How one member grew: its network at a step, its seeds over the steps, what happened in words.

import { ask, oneAtATime } from "./api.js";
import { Drawing } from "./axes.js";
import { clear, el, setText } from "./dom.js";
import { emptyPlot, Figure } from "./figure.js";
import { number } from "./format.js";
import { changes, paramsAt, pointAt, pointsText, rateAt, rateText, slotAt } from "./growth_state.js";
import { networkDrawing } from "./network_drawing.js";
import { Scrubber } from "./scrubber.js";
import { seedLanes, stageLegend } from "./seed_lanes.js";
import { stageWord } from "./stages.js";
import { onTheme } from "./theme.js";

export class Growth {
  constructor(id, chosen) {
    this.id = id;
    this.chosen = chosen;
    this.found = null;
    this.shownOf = "";
    this.addControls();
    this.figure = new Figure("story", "How a member grew", { controls: this.controls, wide: true });
    this.state = el("p", { class: "growth-state" });
    this.network = el("div", { class: "network-plot picture-row" });
    this.lanes = el("div", { class: "picture-row" });
    this.readout = el("p", { class: "seed-readout" }, "Point at a life line, or Tab to it, for its figures. A click moves the slider.");
    this.happened = el("ol", { class: "happened" });
    this.scrubber = new Scrubber((step) => this.moveTo(step));
    this.body = el("div", { class: "growth" },
      el("div", { class: "growth-plots" }, this.state, this.network, this.scrubber.node, this.lanes, this.readout),
      el("div", { class: "growth-happened" }, el("h3", {}, "What happened"), this.happened));
    this.networkDrawing = new Drawing((width) => [networkDrawing(this.found, this.scrubber.step, width)]);
    this.laneDrawing = new Drawing((width) => this.paintLanes(width));
    onTheme(() => this.body.isConnected && this.found?.round >= 0 && this.draw(this.figure.plot));
    this.load = oneAtATime(() => this.ask());
    chosen.onChange(() => this.load());
  }

  addControls() {
    this.member = el("select", { change: () => this.chosen.set({ member: Number(this.member.value) }) });
    this.round = el("input", { type: "number", min: 1, step: 1, class: "round", change: () => this.chooseRound() });
    this.newest = el("button", { type: "button", click: () => this.chosen.set({ round: null }) }, "Newest");
    this.controls = [el("label", { class: "control" }, "member ", this.member),
      el("label", { class: "control" }, "round ", this.round), this.newest];
  }

  chooseRound() {
    const text = this.round.value;
    this.chosen.set({ round: text === "" ? null : Math.max(0, Math.floor(Number(text) || 1) - 1) });
  }

  // The run has moved on: what is shown of its newest round is read again.
  async moved() {
    if (this.chosen.round === null || !this.found) await this.load();
  }

  async ask() {
    const query = this.chosen.query();
    let problem = "";
    let found = this.found;
    try {
      found = await ask(`/api/runs/${this.id}/growth?${query}`);
    } catch (error) {
      problem = error.message;
    }
    // An answer to an earlier choice is dropped: the next request is for what is chosen now.
    if (query === this.chosen.query()) this.take(found, problem);
  }

  take(found, problem) {
    this.found = found;
    if (found) {
      this.fillControls();
      const of = `${found.round} ${found.member}`;
      this.scrubber.fit(Math.max(1, found.now), changes(found), of !== this.shownOf);
      this.shownOf = of;
    }
    this.figure.show({ draw: (node) => this.draw(node), table: () => this.table() }, { problem });
  }

  fillControls() {
    const { members, member, round, newest } = this.found;
    const best = Math.max(...members.map((one) => one.score ?? -Infinity));
    const text = (one) => `${one.member}: ${one.score === null ? "under way" : `score ${number(one.score, 3)}`}, `
      + `${one.seeds} seed${one.seeds === 1 ? "" : "s"}${one.score !== null && one.score === best ? ", best" : ""}`;
    const texts = members.map(text);
    if (texts.join("\n") !== this.listed) {
      this.listed = texts.join("\n");
      this.member.replaceChildren(...members.map((one, i) => el("option", { value: one.member }, texts[i])));
    }
    this.member.value = String(member);
    if (document.activeElement !== this.round) this.round.value = Math.max(1, round + 1);
    this.round.max = Math.max(1, newest + 1);
  }

  draw(node) {
    if (!this.found || this.found.round < 0) {
      emptyPlot(node, this.found ? "No round is recorded yet." : "");
      return;
    }
    if (this.body.parentNode !== node) clear(node).append(this.body);
    this.laneDrawing.show(this.lanes);
    this.fillHappened();
    this.moveTo(this.scrubber.step);
  }

  paintLanes(width) {
    const { picture, move } = seedLanes(this.found, width, {
      onSeed: (text) => setText(this.readout, text), onStep: (step) => this.scrubber.set(step),
    });
    this.moveCursor = move;
    move(this.scrubber.step);
    const hasError = this.found.seeds.some((seed) => seed.measured.length);
    const notes = [hasError ? "Above a life line: accuracy that is lost without the seed, in points, with 95 % intervals." : "",
      this.found.stopped ? "This member stopped training before the end of the episode; the last learning rates were not used." : "",
      this.found.points.length ? "" : "Accuracy of single members is recorded with --step-events."].filter(Boolean);
    return [picture, stageLegend(this.found.seeds), ...notes.map((text) => el("p", { class: "note" }, text))];
  }

  fillHappened() {
    const items = this.found.happened.map((one) => el("li", { "data-at": one.at },
      el("button", { type: "button", class: "happened-one", click: () => this.scrubber.set(one.at) },
        el("span", { class: "happened-step" }, one.at ? `step ${one.at}` : "start"), ` ${one.text}`)));
    this.happened.replaceChildren(...items.length ? items : [el("li", { class: "empty" }, "No seed germinated in this member in this round.")]);
  }

  moveTo(step) {
    setText(this.state, stateText(this.found, step));
    if (!this.body.isConnected) return;
    this.networkDrawing.show(this.network);
    this.moveCursor?.(step);
    let last = null;
    for (const item of this.happened.children) {
      const at = Number(item.dataset.at);
      item.classList.toggle("later", at > step);
      item.classList.toggle("now", at === step);
      if (at <= step) last = item;
    }
    if (last) this.happened.scrollTop = last.offsetTop - this.happened.clientHeight / 2;
  }

  table() {
    if (!this.found || this.found.round < 0) return { columns: [{ label: "step" }], rows: [] };
    const { slots, now } = this.found;
    return {
      columns: [{ label: "steps done", number: true }, { label: "accuracy", number: true },
        { label: "added parameters", number: true }, { label: "learning rate", number: true }, ...slots.map((slot) => ({ label: slot }))],
      rows: Array.from({ length: now + 1 }, (_, step) => [
        String(step), number(pointAt(this.found, step)?.accuracy), number(paramsAt(this.found, step)),
        rateText(rateAt(this.found, step)) || "-",
        ...slots.map((slot) => slotText(this.found, slot, step))]),
    };
  }
}

function slotText(growth, slot, step) {
  const held = slotAt(growth, slot, step);
  if (!held) return "empty";
  if (!held.isHeld) return stageWord(held.stage);
  return [held.seed.blueprint, stageWord(held.stage), `alpha ${number(held.alpha, 2)}`, pointsText(held.measured)]
    .filter(Boolean).join(", ");
}

function stateText(growth, step) {
  const added = paramsAt(growth, step);
  const seeds = growth.slots.filter((slot) => slotAt(growth, slot, step)?.isHeld).length;
  const point = pointAt(growth, step);
  const rate = rateText(rateAt(growth, step));
  const times = growth.host_params ? ` (${number((growth.host_params + added) / growth.host_params, 3)} × the host)` : "";
  return [`Member ${growth.member}, step ${step} of ${growth.steps}: ${seeds} seed${seeds === 1 ? "" : "s"}`,
    `+${number(added)} parameters${times}`, point ? `accuracy ${(100 * point.accuracy).toFixed(1)}\u00a0%` : "", rate ? `learning rate ${rate}` : ""].filter(Boolean).join(", ");
}
