// Pictures of the page as files: an SVG with its style inside.

import { svg } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "paint-order",
  "font-family", "font-size", "font-weight", "text-anchor"];
export const HEAD = 32; // above a picture, with its title
const LINE = 18;
const NOT_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;

// The drawings of a figure with their places, row below row as on the page; not the small ones of its
// legend. null: there is none.
export function drawingOf(plot) {
  const rows = [...plot.querySelectorAll(".picture-row")].map((row) => [...row.querySelectorAll(":scope > svg")]);
  const found = rows.length ? rows : [[...plot.querySelectorAll("svg[role=img], svg[role=group]")].slice(0, 1)];
  const drawing = { pieces: [], width: 0, height: 0 };
  for (const row of found) {
    let [left, tall] = [0, 0];
    for (const picture of row) {
      const { width, height } = sizeOf(picture);
      drawing.pieces.push({ picture, x: left, y: drawing.height, width, height });
      left += width;
      tall = Math.max(tall, height);
    }
    drawing.width = Math.max(drawing.width, left);
    drawing.height += tall;
  }
  return drawing.pieces.length ? drawing : null;
}

// A copy with the colours of the theme; `title` above it, the entries of its legend below. Without
// pieces their place is left free.
export function standalone({ pieces, width, height }, title, entries, { ground, ink }) {
  const text = (said, x, y, size) => svg("text", { x, y, fill: ink, "font-size": size, "font-family": "system-ui, sans-serif" }, said);
  const whole = height + HEAD + 8 + entries.length * LINE;
  const entry = ({ text: said, swatch }, y) => [...(swatch ? [copied({ picture: swatch, x: 12, y: y - 11, ...sizeOf(swatch) })] : []),
    text(said, swatch ? Math.max(48, 20 + sizeOf(swatch).width) : 12, y, 12)];
  const root = svg("svg", { xmlns: NAMESPACE, width, height: whole, viewBox: `0 0 ${width} ${whole}` },
    svg("rect", { width, height: whole, fill: ground }), text(title, 12, 22, 15), ...pieces.map((piece) => copied({ ...piece, y: piece.y + HEAD })),
    ...entries.flatMap((one, i) => entry(one, height + HEAD + 16 + i * LINE)));
  const xml = new XMLSerializer().serializeToString(root).replace(NOT_XML, "\uFFFD");
  return { text: xml, width, height: whole };
}

function copied({ picture, x, y, width, height }) {
  const copy = picture.cloneNode(true);
  inline(picture, copy);
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, String(value));
  return copy;
}

export function sizeOf(picture) {
  const { width, height } = picture.getBoundingClientRect();
  return { width: Math.round(width), height: Math.round(height) };
}

function inline(from, to) {
  const style = getComputedStyle(from);
  for (const name of KEPT) to.setAttribute(name, style.getPropertyValue(name));
  for (const name of ["class", "style", "tabindex", "role"]) to.removeAttribute(name);
  [...from.children].forEach((child, i) => inline(child, to.children[i]));
}
