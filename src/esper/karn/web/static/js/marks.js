// Marks of networks in a plot, chosen with a pointer, a finger or the keyboard.

import { svg } from "./dom.js";
import { seriesColour } from "./theme.js";

const REACH = 28; // pixels between a finger and the mark it means
const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };

export class Marks {
  // `next(label, key)`: the label that a key leads to; by default the next in order.
  constructor(selection, picture, next = null) {
    this.selection = selection;
    this.picture = picture;
    this.places = []; // [{label, x, y}] in order
    this.next = next ?? ((label, key) => this.inOrder(label, key));
    selection.onChange(() => this.show());
  }

  // Attributes of the plot that the marks are in.
  get pointer() {
    return {
      pointermove: (event) => { if (event.pointerType !== "touch") this.selection.activate(this.nearest(event)); },
      pointerleave: () => this.selection.activate(null),
      click: (event) => this.tap(event),
    };
  }

  // Paints again, and keeps the focus where it was.
  repaint(paint) {
    const focused = this.picture.contains(document.activeElement) && document.activeElement.dataset.label;
    paint();
    if (focused) this.find(focused)?.focus({ preventScroll: true });
    this.show();
  }

  // Where the Tab key leads to.
  entry() {
    const { pinned, fallback } = this.selection;
    const has = (label) => this.places.some((place) => place.label === label);
    return has(pinned) ? pinned : has(fallback) ? fallback : this.places[0]?.label;
  }

  node({ label, x, y }, spoken, isEntry, ...shapes) {
    return svg("g", {
      class: "network", role: "button", tabindex: isEntry ? 0 : -1, "data-label": label, "aria-label": spoken,
      "aria-pressed": String(label === this.selection.pinned), keydown: (event) => this.key(event, label),
      focus: () => this.selection.activate(label), blur: () => this.selection.activate(null),
    }, svg("circle", { cx: x, cy: y, r: 13, class: "halo" }), ...shapes);
  }

  nodes() {
    return [...this.picture.querySelectorAll(".network")];
  }

  find(label) {
    return this.nodes().find((node) => node.dataset.label === label);
  }

  nearest(event) {
    if (!this.places.length) return null;
    const frame = event.currentTarget.getBoundingClientRect();
    const far = (place) => Math.hypot(place.x - (event.clientX - frame.left), place.y - (event.clientY - frame.top));
    const found = this.places.reduce((best, place) => (far(place) < far(best) ? place : best));
    return far(found) <= REACH ? found.label : null;
  }

  tap(event) {
    const label = this.nearest(event);
    if (label !== null) this.selection.toggle(label);
  }

  key(event, label) {
    if (event.key === "Enter" || event.key === " ") this.selection.toggle(label);
    else if (event.key === "Escape") this.selection.pin(null);
    else if (event.key in STEPS) this.focus(label, this.next(label, event.key));
    else return;
    event.preventDefault();
  }

  focus(from, to) {
    const node = this.find(to);
    if (!node) return;
    this.find(from)?.setAttribute("tabindex", "-1");
    node.setAttribute("tabindex", "0");
    node.focus();
  }

  inOrder(label, key) {
    const now = this.places.findIndex((place) => place.label === label);
    return this.places[Math.min(this.places.length - 1, Math.max(0, now + STEPS[key]))].label;
  }

  show() {
    const { shown, pinned } = this.selection;
    for (const node of this.nodes()) {
      node.classList.toggle("active", node.dataset.label === shown);
      node.setAttribute("aria-pressed", String(node.dataset.label === pinned));
    }
  }
}

// Shapes distinguish the pick and the user's model.
export function shape(point, x, y, attributes, radius = 5) {
  if (point.is_pick) {
    const d = radius + 3;
    return svg("path", { d: `M${x} ${y - d}L${x + d} ${y}L${x} ${y + d}L${x - d} ${y}Z`, ...attributes });
  }
  if (point.is_host) return svg("rect", { x: x - radius - 0.5, y: y - radius - 0.5, width: 2 * radius + 1, height: 2 * radius + 1, ...attributes });
  return svg("circle", { cx: x, cy: y, r: radius, ...attributes });
}

export function ink(point) {
  return seriesColour(point.is_pick ? 2 : point.is_host ? 1 : 0);
}
