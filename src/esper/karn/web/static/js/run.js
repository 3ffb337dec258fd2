// The page of one run.

import { follow } from "./api.js";
import { el, main, setText } from "./dom.js";
import { duration, number, STATE_MARKS, stateSentence } from "./format.js";
import { LogFigure } from "./log.js";
import { Notes } from "./notes.js";
import { NothingYet, pageTitle, Result, UnderWay } from "./run_head.js";
import { RunData } from "./rundata.js";
import { searchFigures } from "./search_figures.js";
import { loadStages } from "./stages.js";
import { trainingFigures } from "./training_figures.js";

const id = location.pathname.split("/")[2];

class RunPage {
  constructor() {
    this.data = new RunData();
    this.parts = [];
    this.title = el("h1", {}, "Run");
    this.state = el("span", { class: "state" });
    this.tags = el("span", { class: "tags" });
    this.sentence = el("p", { class: "sentence", role: "status" }, "Reading the run ...");
    this.command = el("code", {});
    this.headline = el("p", { class: "headline", hidden: true });
    this.resume = el("p", { class: "resume", hidden: true }, "Resume with ", this.command);
    this.connection = el("p", { class: "problem", role: "status", hidden: true });
    this.bar = el("progress", { max: 1, "aria-label": "Progress", hidden: true });
    this.done = el("span", {});
    this.facts = el("dl", { class: "facts" });
    this.result = new Result();
    this.underWay = new UnderWay();
    this.nothingYet = new NothingYet();
    this.report = el("a", { class: "button", hidden: true, href: `/runs/${id}/report` }, "Report");
    this.compare = el("a", { class: "button", href: `/compare?run=${id}` }, "Compare with ...");
    this.figures = el("div", { class: "figures" });
    this.notes = new Notes();
    this.logBox = el("div", { class: "figures" }); // shown before the figures have anything to draw
    main().append(
      el("div", { class: "run-head" }, this.title, this.state, this.tags, el("span", { class: "spacer" }), this.report, this.compare),
      this.result.node, this.headline, this.sentence, this.resume, this.connection,
      el("div", { class: "run-progress" }, this.bar, this.done), this.underWay.node,
      this.facts, this.nothingYet.node, this.figures, this.logBox, this.notes.node);
  }

  take(message, first) {
    this.data.apply(message, first);
    this.head();
    this.figures.hidden = this.nothingYet.update(this.data);
    if (Object.keys(message).length === 1) return; // only what is under way has moved
    if (!this.parts.length) this.addFigures();
    for (const part of this.parts) part.update(this.data);
    this.notes.update(this.data);
  }

  addFigures() {
    const make = this.data.run.kind === "train" ? trainingFigures : searchFigures;
    this.parts = make(id, this.data);
    this.figures.append(...this.parts.map((part) => part.node));
    const log = new LogFigure(this.data.run.kind);
    this.parts.push(log);
    this.logBox.append(log.node);
  }

  head() {
    const { run, setup } = this.data;
    document.title = pageTitle(run);
    this.result.update(run);
    this.underWay.update(run);
    setText(this.title, run.name);
    if (this.state.dataset.state !== run.state) {
      this.state.dataset.state = run.state;
      this.state.replaceChildren(el("span", { "aria-hidden": "true", class: "state-mark" }, STATE_MARKS[run.state]), ` ${run.state}`);
    }
    if (this.tags.textContent !== run.tags.join("")) {
      this.tags.replaceChildren(...run.tags.map((tag) => el("a", { class: "tag", href: `/?tag=${encodeURIComponent(tag)}`, title: `Runs tagged ${tag}` }, tag)));
    }
    setText(this.sentence, stateSentence(run));
    setText(this.headline, run.verdict);
    this.headline.hidden = !run.verdict;
    this.resume.hidden = !run.resume;
    setText(this.command, run.resume);
    this.bar.hidden = run.progress === null;
    if (run.progress !== null) this.bar.value = run.progress;
    const left = run.seconds_left === null ? "" : `, about ${duration(run.seconds_left)} left`;
    const time = run.unit === "minutes" ? "" : `, ${duration(run.seconds)}`;
    setText(this.done, run.unit ? `${run.amount}${time}${left}` : "");
    this.report.hidden = !run.report;
    this.showFacts([
      ["kind", run.kind], ["task", run.task], ["policy", run.policy], ["seed", run.seed === null ? "" : String(run.seed)],
      ["created (UTC)", run.created],
      ["training score, newest round", run.kind !== "train" || run.score === null ? "" : number(run.score)],
      ["best training score", run.best_score === null ? "" : number(run.best_score)],
      ["members", setup ? number(setup.members) : ""], ["steps", setup ? number(setup.episode_length) : ""],
      ["device", setup ? setup.device : ""], ["executor", setup ? setup.executor : ""],
    ]);
  }

  showFacts(pairs) {
    const known = pairs.filter(([, value]) => value && value !== "-");
    const text = JSON.stringify(known);
    if (text === this.shown) return;
    this.shown = text;
    this.facts.replaceChildren(...known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  connected(state, reason) {
    const said = reason ? ` (${reason})` : "";
    if (state === "refused") setText(this.sentence, `This run cannot be shown${said}.`);
    this.connection.hidden = state !== "lost";
    setText(this.connection, state === "lost" ? `esper serve does not answer${said}; trying again. What is shown may be old.` : "");
  }
}

const page = new RunPage();
await loadStages().catch(() => {}); // names of stages will do
follow(id, (message, first) => page.take(message, first), (state, reason) => page.connected(state, reason));
