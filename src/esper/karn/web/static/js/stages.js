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
