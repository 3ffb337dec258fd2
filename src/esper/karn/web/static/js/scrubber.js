// Moves over the steps of an episode: by a slider, its arrow keys, or by itself.

import { el, setText } from "./dom.js";

const MILLISECONDS = 400;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Scrubber {
  constructor(onStep) {
    this.onStep = onStep;
    this.step = 0;
    this.last = 0;
    this.changes = [];
    this.timer = null;
    this.button = el("button", { type: "button", class: "play", click: () => this.press() });
    this.range = el("input", {
      type: "range", min: 0, max: 1, step: 1, "aria-label": "Step of the episode",
      input: () => { this.stop(); this.moveTo(Number(this.range.value)); },
    });
    this.said = el("output", { class: "step" });
    this.node = el("div", { class: "scrubber" }, this.button, this.range, this.said);
    still.addEventListener("change", () => this.stop());
    this.label();
  }

  // `last`: steps done; of another member (`anew`) and at the end the slider goes to the end.
  fit(last, changes, anew) {
    const wasAtEnd = this.step >= this.last;
    if (anew) this.stop();
    this.last = last;
    this.changes = changes;
    this.range.max = last;
    this.step = anew || wasAtEnd && this.timer === null ? last : Math.min(this.step, last);
    this.show();
  }

  set(step) {
    this.stop();
    this.moveTo(step);
  }

  moveTo(step) {
    this.step = Math.max(0, Math.min(this.last, step));
    this.show();
    this.onStep(this.step);
  }

  show() {
    this.range.value = this.step;
    this.range.setAttribute("aria-valuetext", `step ${this.step} of ${this.last}`);
    setText(this.said, `step ${this.step} of ${this.last}`);
  }

  press() {
    if (still.matches) this.moveTo(this.changes.find((at) => at > this.step) ?? (this.step < this.last ? this.last : 0));
    else if (this.timer === null) this.play();
    else this.stop();
  }

  play() {
    if (this.step >= this.last) this.moveTo(0);
    this.timer = setInterval(() => {
      if (this.node.isConnected) this.moveTo(this.step + 1);
      if (this.step >= this.last || !this.node.isConnected) this.stop();
    }, MILLISECONDS);
    this.label();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.label();
  }

  // Where motion is not wanted nothing plays: the button goes to the next change.
  label() {
    setText(this.button, still.matches ? "Next change" : this.timer === null ? "▶ Play" : "❚❚ Pause");
  }
}
