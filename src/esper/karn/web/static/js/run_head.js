// What stands above the figures of a run: its result, and what is under way.

import { el, setText } from "./dom.js";
import { stageColour, stageWord } from "./stages.js";

// The judged result in large, beside what it is to be compared with.
export class Result {
  constructor() {
    this.node = el("dl", { class: "result-facts", hidden: true, "aria-label": "Result" });
    this.shown = "";
  }

  update({ result }) {
    const text = JSON.stringify(result);
    if (text === this.shown) return;
    this.shown = text;
    this.node.hidden = !result.facts.length;
    this.node.dataset.basis = result.basis;
    this.node.replaceChildren(...result.facts.map((fact) => el("div", {},
      el("dt", {}, fact.name), el("dd", {}, el("strong", {}, fact.value), fact.beside ? el("span", { class: "beside" }, fact.beside) : null))));
  }
}

// A line that moves once a second, and how many slots are in which stage.
export class UnderWay {
  constructor() {
    this.line = el("p", { class: "under-way" });
    this.stages = el("ul", { class: "stage-counts", "aria-label": "Slots of all members by stage" });
    this.node = el("div", { hidden: true }, this.line, this.stages);
    this.shown = "";
  }

  update(run) {
    this.node.hidden = !run.under_way;
    setText(this.line, run.under_way);
    const counts = run.live ? run.live.stages : [];
    const text = JSON.stringify(counts);
    if (text === this.shown) return;
    this.shown = text;
    this.stages.replaceChildren(...counts.map(([name, count]) => {
      const mark = el("span", { class: "stage-mark", "aria-hidden": "true" });
      mark.style.background = stageColour(name);
      return el("li", {}, mark, `${count} ${stageWord(name)}`);
    }));
  }
}

const FIRST = {
  train: ["The first round is under way. Curves and tables appear when it has ended.", "No round was completed."],
  grow: ["The first network is being trained. Networks appear as soon as they have a score.", "No network has a score."],
  compare: ["The first policy is being run. Policies appear when they are done.", "No policy was completed."],
  audit: ["The first context is being trained. Topologies appear when it is done.", "No context was completed."],
};

// In place of the figures, while there is nothing to draw.
export class NothingYet {
  constructor() {
    this.node = el("p", { class: "figure nothing-yet", hidden: true });
  }

  // Whether there is nothing to draw.
  update({ run, rounds, frontier, contenders, problems }) {
    const points = { train: rounds, grow: frontier, compare: contenders, audit: [...frontier, ...contenders] }[run.kind];
    const isEmpty = !points.length && !Object.keys(problems).length;
    const [first, none] = FIRST[run.kind];
    this.node.hidden = !isEmpty;
    setText(this.node, run.state === "running" ? first : none);
    return isEmpty;
  }
}

// Of the tab: how far the run is comes first, so that it is read where there is little room.
export function pageTitle(run) {
  const share = run.progress === null ? "running" : `${Math.floor(100 * run.progress)} %`;
  const state = run.state === "running" ? share : run.state === "finished" ? "done" : run.state;
  return `${state} ${run.name} - Esper`;
}
