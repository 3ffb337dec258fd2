// The box beside the cursor of curves: what every series has there.

import { el } from "./dom.js";
import { lineSwatch } from "./legend.js";

const GAP = 12;

export class Tip {
  constructor() {
    this.node = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.shown = "";
  }

  // `over`: the plot inside its axes.
  attach(over) {
    this.over = over;
    over.append(this.node);
    this.hide();
  }

  hide() {
    this.node.hidden = true;
  }

  // rows: [{label, text, place}]; `left`: of the cursor, in pixels.
  show(title, rows, left) {
    const text = JSON.stringify([title, rows]);
    if (text !== this.shown) {
      this.shown = text;
      this.node.replaceChildren(el("p", {}, title), ...rows.map((row) =>
        el("p", {}, lineSwatch(row.place, row.colour), `${row.label} `, el("b", {}, row.text))));
    }
    this.node.hidden = false;
    const room = this.over.clientWidth;
    const width = this.node.offsetWidth;
    const right = left + GAP + width <= room;
    this.node.style.left = `${Math.max(0, Math.min(room - width, right ? left + GAP : left - GAP - width))}px`;
  }
}
