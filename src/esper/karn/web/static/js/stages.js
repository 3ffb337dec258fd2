// Words and colours of the stages of seeds, which the server knows.

import { ask } from "./api.js";

let look = [];

export async function loadStages() {
  look = await ask("/api/stages");
}

export function allStages() {
  return look;
}

export function stageWord(name) {
  return look.find((one) => one.stage === name)?.name ?? name.toLowerCase();
}

export function stageColour(name) {
  return look.find((one) => one.stage === name)?.colour ?? "#888888";
}

// Class of text on the colour of a stage.
export function inkOn(name) {
  const [red, green, blue] = stageColour(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue >= 140 ? "on-light" : "on-dark";
}
