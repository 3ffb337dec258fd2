// The layers of a network as boxes in order, as high as they are wide.

import { el, svg } from "./dom.js";
import { shorten } from "./format.js";

const WIDE = 82;
const SLIM = 22;
const GAP = 12;
const MIDDLE = 62;
const HEIGHT = 152;

export function drawLayers(layers) {
  const parts = [];
  let x = 4;
  layers.forEach((layer, i) => {
    if (i) parts.push(svg("line", { x1: x - GAP, x2: x, y1: MIDDLE, y2: MIDDLE, class: "flow" }));
    parts.push(...(layer.outputs ? wide(layer, x) : slim(layer, x)));
    x += (layer.outputs ? WIDE : SLIM) + GAP;
  });
  const picture = svg("svg", { width: x, height: HEIGHT, role: "img", "aria-label": layers.map(spoken).join(", then ") }, ...parts);
  return el("div", { class: "layers", tabindex: 0, role: "region", "aria-label": "Layers in order" }, picture);
}

const reach = (width) => Math.min(58, 14 + 5 * Math.log2(1 + width)); // half of the height of a side

function wide({ name, inputs, outputs, note }, x) {
  const [left, right] = [reach(inputs), reach(outputs)];
  const text = (content, y, kind) => svg("text", { x: x + WIDE / 2, y, "text-anchor": "middle", class: kind }, content);
  const end = MIDDLE + Math.max(left, right);
  return [
    svg("path", { d: `M${x} ${MIDDLE - left}L${x + WIDE} ${MIDDLE - right}V${MIDDLE + right}L${x} ${MIDDLE + left}Z`, class: "layer" }),
    text(shorten(name, 12), MIDDLE - 3, "label"), text(`${inputs} → ${outputs}`, MIDDLE + 13, "label"),
    ...note.split(", ").filter(Boolean).slice(0, 2).map((one, i) => text(one, end + 15 + 14 * i, "note-text")),
  ];
}

// What has no width of its own.
function slim({ name, note }, x) {
  const [middle, said] = [x + SLIM / 2, note ? `${name} ${note}` : name];
  return [
    svg("rect", { x, y: MIDDLE - 52, width: SLIM, height: 104, rx: 5, class: "operation" }),
    svg("text", { x: middle, y: MIDDLE, transform: `rotate(-90 ${middle} ${MIDDLE})`, "text-anchor": "middle", "dominant-baseline": "central" },
      shorten(said, 16)),
  ];
}

function spoken({ name, inputs, outputs, note }) {
  return [name, outputs ? `${inputs} to ${outputs}` : "", note].filter(Boolean).join(" ");
}
