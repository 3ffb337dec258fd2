// Builds elements. Text is only ever set as text, never parsed as HTML.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A name that may break after its double underscores.
export function breakable(name) {
  return name.split(/(?<=__)/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

// Changes the text only if it differs, so that screen readers do not repeat it.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

export function main() {
  return document.getElementById("main");
}
