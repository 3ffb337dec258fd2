// Legends whose entries hide and show what they name, by click or Enter.

import { clear, el, svg } from "./dom.js";
import { dashOf, seriesColour } from "./theme.js";

export class Legend {
  // `onChange()`: an entry was hidden or shown.
  constructor(onChange) {
    this.onChange = onChange;
    this.hidden = new Set();
    this.node = el("ul", { class: "legend" });
    this.shown = "";
  }

  isHidden(name) {
    return this.hidden.has(name);
  }

  // entries: [{name, text, swatch}]; without a name it is not a button. `state`: what the swatches depend on.
  fill(entries, state = "") {
    const text = JSON.stringify([entries.map(({ name, text: said }) => [name, said]), state]);
    if (text === this.shown) return;
    this.shown = text;
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    clear(this.node).append(...entries.map((entry) => el("li", {}, entry.name === undefined
      ? el("span", { class: "entry" }, entry.swatch, entry.text) : this.button(entry))));
    if (focused !== null) [...this.node.querySelectorAll("button")].find((one) => one.dataset.name === focused)?.focus();
  }

  button({ name, text, swatch }) {
    const button = el("button", {
      type: "button", class: "entry", "data-name": name, "aria-pressed": String(!this.hidden.has(name)),
      title: "Hide or show", click: () => this.toggle(name, button),
    }, swatch, text);
    return button;
  }

  toggle(name, button) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    this.onChange();
  }
}

// `colour`: instead of that of the place, with an edge.
export function lineSwatch(place, colour = null) {
  const line = (look) => svg("line", { x1: 1, y1: 6, x2: 27, y2: 6, ...look });
  const lines = colour === null ? [line({ stroke: seriesColour(place), "stroke-width": 2.5, "stroke-dasharray": dashOf(place).join(" ") })]
    : [line({ stroke: "var(--ink-soft)", "stroke-width": 6 }), line({ stroke: colour, "stroke-width": 4 })];
  return svg("svg", { width: 28, height: 12, "aria-hidden": "true" }, ...lines);
}
