// The menu of a figure that saves it: as PNG, as SVG where it is one, and its numbers as CSV.

import { el } from "./dom.js";
import { drawingOf, paintDrawing, paintSvg, sizeOf, standalone, textLeft } from "./svg_copy.js";
import { colour } from "./theme.js";

const SCALE = 2; // pixels of a PNG per pixel of the page
const HEAD = 34;
const LINE = 18;

export class SaveMenu {
  // `figure`: what has `heading`, `plot` and `csv()`.
  constructor(figure) {
    this.figure = figure;
    this.png = this.item("PNG", () => this.savePng());
    this.svg = this.item("SVG", () => this.saveSvg());
    this.csv = this.item("CSV", () => this.saveCsv());
    this.node = el("details", { class: "save", toggle: () => this.opened(), keydown: (event) => this.key(event), focusout: (event) => this.left(event) },
      el("summary", { "aria-label": `Save ${figure.heading.textContent}` }, "Save"),
      el("div", { class: "menu" }, this.png, this.svg, this.csv));
  }

  item(name, save) {
    return el("button", { type: "button", click: () => { this.node.open = false; save(); } }, name);
  }

  opened() {
    if (!this.node.open) return;
    const { plot } = this.figure;
    const isShown = !plot.hidden;
    this.svg.hidden = !isShown || !drawingOf(plot);
    this.png.hidden = !isShown || !(drawingOf(plot) || plot.querySelector("canvas"));
    this.csv.hidden = !this.figure.source;
  }

  key(event) {
    if (event.key !== "Escape" || !this.node.open) return;
    this.node.open = false;
    this.node.querySelector("summary").focus();
  }

  left(event) {
    if (!this.node.contains(event.relatedTarget)) this.node.open = false;
  }

  name(ending) {
    const page = document.querySelector("h1")?.textContent ?? "esper";
    const words = `${page}-${this.figure.heading.textContent}`.toLowerCase();
    return `${words.replace(/[^\w.]+/g, "-").replace(/^[-.]+|-+$/g, "").slice(0, 100)}.${ending}`;
  }

  saveSvg() {
    const { plot, heading } = this.figure;
    const look = { ground: colour("--panel"), ink: colour("--ink") };
    download(this.name("svg"), "image/svg+xml", standalone(drawingOf(plot), heading.textContent, legendOf(plot), look));
  }

  saveCsv() {
    const { columns, rows } = this.figure.csv();
    const lines = [columns.map((column) => column.label), ...rows].map((row) => row.map(csvCell).join(","));
    download(this.name("csv"), "text/csv", `${lines.join("\n")}\n`);
  }

  // The picture with its title and its legend, on the ground of the theme.
  savePng() {
    const { plot, heading } = this.figure;
    const drawing = drawingOf(plot);
    const { width, height } = drawing ?? sizeOf(plot.querySelector("canvas"));
    const entries = legendOf(plot);
    const canvas = document.createElement("canvas");
    const tall = HEAD + height + 10 + entries.length * LINE;
    [canvas.width, canvas.height] = [width * SCALE, tall * SCALE];
    const context = canvas.getContext("2d");
    context.scale(SCALE, SCALE);
    context.fillStyle = colour("--panel");
    context.fillRect(0, 0, width, tall);
    write(context, heading.textContent, 12, 22, "600 15px system-ui, sans-serif");
    context.save();
    context.translate(0, HEAD);
    if (drawing) paintDrawing(context, drawing);
    else context.drawImage(plot.querySelector("canvas"), 0, 0, width, height);
    context.restore();
    entries.forEach(({ text, swatch }, i) => entry(context, text, swatch, HEAD + height + i * LINE));
    canvas.toBlob((blob) => download(this.name("png"), "image/png", blob));
  }
}

function entry(context, text, swatch, top) {
  context.save();
  context.translate(12, top);
  if (swatch) paintSvg(context, swatch);
  context.restore();
  write(context, text, textLeft(swatch), top + 11, "12px system-ui, sans-serif");
}

function write(context, text, x, y, font) {
  context.font = font;
  context.fillStyle = colour("--ink");
  context.fillText(text, x, y);
}

function legendOf(plot) {
  return [...plot.querySelectorAll(".legend li")].map((entry) => ({ text: entry.textContent, swatch: entry.querySelector("svg") }));
}

// A cell that a spreadsheet takes for text or a number, never for a formula.
export function csvCell(value) {
  const text = typeof value === "string" ? value : value?.textContent ?? "";
  const isFormula = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text));
  const safe = isFormula ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
