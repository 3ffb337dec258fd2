// Pictures of the page as files: an SVG with its style inside, and a painting of it on a canvas. The
// policy of the pages lets no image be made from data, so shapes are painted one by one.

import { svg } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "paint-order",
  "font-family", "font-size", "font-weight", "text-anchor"];
const UNSEEN = new Set(["title", "desc"]);

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

// A copy with the colours of the theme; `title` above it, the entries of its legend below.
export function standalone({ pieces, width, height }, title, entries, { ground, ink }) {
  const text = (said) => svg("text", { x: 12, y: 22, fill: ink, "font-size": 15, "font-family": "system-ui, sans-serif" }, said);
  const whole = height + 40 + entries.length * 18;
  const entry = ({ text: said, swatch }, y) => [...(swatch ? [copied({ picture: swatch, x: 12, y: y - 11, ...sizeOf(swatch) })] : []),
    svg("text", { x: textLeft(swatch), y, fill: ink, "font-size": 12, "font-family": "system-ui, sans-serif" }, said)];
  const root = svg("svg", { xmlns: NAMESPACE, width, height: whole, viewBox: `0 0 ${width} ${whole}` },
    svg("rect", { width, height: whole, fill: ground }), text(title), ...pieces.map((piece) => copied({ ...piece, y: piece.y + 32 })),
    ...entries.flatMap((one, i) => entry(one, height + 48 + i * 18)));
  return new XMLSerializer().serializeToString(root);
}

function copied({ picture, x, y, width, height }) {
  const copy = picture.cloneNode(true);
  inline(picture, copy);
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, String(value));
  return copy;
}

// Where the text of an entry of a legend begins.
export function textLeft(swatch) {
  return swatch ? Math.max(48, 20 + sizeOf(swatch).width) : 12;
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

export function paintDrawing(context, { pieces }) {
  for (const { picture, x, y } of pieces) {
    context.save();
    context.translate(x, y);
    paintSvg(context, picture);
    context.restore();
  }
}

// Paints an SVG of lines, circles, rectangles, polylines, paths and texts.
export function paintSvg(context, picture) {
  for (const child of picture.children) paint(context, child);
}

function paint(context, node) {
  if (UNSEEN.has(node.tagName)) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden") return;
  context.save();
  context.globalAlpha *= Number(style.opacity);
  const moved = node.transform?.baseVal.consolidate()?.matrix;
  if (moved) context.transform(moved.a, moved.b, moved.c, moved.d, moved.e, moved.f);
  if (node.tagName === "text") paintText(context, node, style);
  else if (node.tagName === "g" || node.tagName === "svg") for (const child of node.children) paint(context, child);
  else paintShape(context, pathOf(node), style);
  context.restore();
}

function paintShape(context, path, style) {
  if (!path) return;
  if (style.fill !== "none") {
    context.save();
    context.globalAlpha *= Number(style.fillOpacity);
    context.fillStyle = style.fill;
    context.fill(path);
    context.restore();
  }
  if (style.stroke === "none") return;
  context.strokeStyle = style.stroke;
  context.lineWidth = parseFloat(style.strokeWidth);
  context.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(/[ ,]+/).map(parseFloat));
  context.stroke(path);
}

function paintText(context, node, style) {
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.textAlign = { middle: "center", end: "right" }[style.textAnchor] ?? "left";
  context.fillStyle = style.fill;
  const [x, y] = ["x", "y"].map((name) => Number(node.getAttribute(name) ?? 0));
  if (style.stroke !== "none") {
    context.strokeStyle = style.stroke;
    context.lineWidth = parseFloat(style.strokeWidth);
    context.strokeText(ownText(node), x, y);
  }
  context.fillText(ownText(node), x, y);
}

// Without that of its tooltip.
function ownText(node) {
  return [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.data).join("");
}

function pathOf(node) {
  const at = (name) => Number(node.getAttribute(name) ?? 0);
  const path = new Path2D(node.tagName === "path" ? node.getAttribute("d") ?? "" : undefined);
  switch (node.tagName) {
    case "line": path.moveTo(at("x1"), at("y1")); path.lineTo(at("x2"), at("y2")); return path;
    case "rect": path.rect(at("x"), at("y"), at("width"), at("height")); return path;
    case "circle": path.arc(at("cx"), at("cy"), at("r"), 0, 2 * Math.PI); return path;
    case "polyline": case "polygon":
      [...node.points].forEach(({ x, y }, i) => (i ? path.lineTo(x, y) : path.moveTo(x, y)));
      if (node.tagName === "polygon") path.closePath();
      return path;
    case "path": return path;
    default: return null;
  }
}
