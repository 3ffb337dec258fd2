// The menu of a figure that saves it: as PNG, as SVG where it is one, and its numbers as CSV.

import { el } from "./dom.js";
import { drawingOf, HEAD, sizeOf, standalone } from "./svg_copy.js";
import { colour } from "./theme.js";

const SVG = "image/svg+xml";
const SCALE = 2; // pixels of a PNG per pixel of the page

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

  // The picture with its title and its legend, on the ground of the theme.
  picture(drawing) {
    const { plot, heading } = this.figure;
    return standalone(drawing, heading.textContent, legendOf(plot), { ground: colour("--panel"), ink: colour("--ink") });
  }

  saveSvg() {
    download(this.name("svg"), SVG, this.picture(drawingOf(this.figure.plot)).text);
  }

  saveCsv() {
    const { columns, rows } = this.figure.csv();
    const lines = [columns.map((column) => column.label), ...rows].map((row) => row.map(csvCell).join(","));
    download(this.name("csv"), "text/csv", `${lines.join("\n")}\n`);
  }

  async savePng() {
    const { plot } = this.figure;
    const drawing = drawingOf(plot);
    const curves = plot.querySelector("canvas");
    const { text, width, height } = this.picture(drawing ?? { pieces: [], ...sizeOf(curves) });
    const canvas = el("canvas", { width: width * SCALE, height: height * SCALE });
    const context = canvas.getContext("2d");
    context.scale(SCALE, SCALE);
    context.drawImage(await loaded(text), 0, 0, width, height);
    if (!drawing) context.drawImage(curves, 0, HEAD, ...Object.values(sizeOf(curves)));
    canvas.toBlob((blob) => download(this.name("png"), "image/png", blob));
  }
}

async function loaded(text) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: SVG }));
  await image.decode();
  URL.revokeObjectURL(image.src);
  return image;
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
