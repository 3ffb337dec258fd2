// What the slots of a member hold at a step, from the life lines of its seeds.

import { number } from "./format.js";

const HELD = new Set(["GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "PLANTED"]);
const WORKS = new Set(["BLENDING", "HOLDING", "FOSSILIZED", "PLANTED"]);

// { seed, stage, alpha, measured } of a slot when `step` steps are done; null: it is empty.
export function slotAt(growth, slot, step) {
  for (const seed of growth.seeds) {
    if (seed.slot !== slot) continue;
    const place = seed.stages.findIndex((span) => span.first <= step && (span.end === null || step < span.end));
    if (place < 0) continue;
    const span = seed.stages[place];
    const isHeld = HELD.has(span.stage);
    return {
      seed, stage: span.stage, isHeld, alpha: WORKS.has(span.stage) ? alphaAt(seed.stages, place, step) : 0,
      measured: isHeld ? seed.measured.findLast((one) => one.at <= step) ?? null : null,
    };
  }
  return null;
}

// Recorded where stages begin; in between a ramp, of which only the ends are known.
function alphaAt(stages, place, step) {
  const { stage, first, end, alpha } = stages[place];
  const after = stages[place + 1]?.alpha;
  if (stage !== "BLENDING" || end === null || after === null || after === undefined || alpha === null) return alpha;
  return alpha + ((after - alpha) * (step - first)) / (end - first || 1);
}

export function paramsAt(growth, step) {
  return growth.added_params[step] ?? 0;
}

export function pointAt(growth, step) {
  return growth.points.find((point) => point.at === step) ?? null;
}

// Of the step that was done last.
export function rateAt(growth, step) {
  return growth.rates.find((rate) => rate.at === step) ?? null;
}

// `0.05`, and that of seeds where it is another one.
export function rateText(rate) {
  if (!rate) return "";
  return rate.seed === rate.host ? number(rate.host, 3) : `${number(rate.host, 3)} (seeds ${number(rate.seed, 3)})`;
}

// Steps at which something happened, in order.
export function changes(growth) {
  return [...new Set(growth.happened.map((one) => one.at))].sort((a, b) => a - b);
}

// `+8.0 ± 1.1 points`, as the sentences of the server have it.
export function pointsText(measured) {
  if (!measured) return "";
  const value = `${measured.value < 0 ? "−" : "+"}${Math.abs(100 * measured.value).toFixed(1)}`;
  return measured.se === null ? `${value} points` : `${value} ± ${(100 * measured.se).toFixed(1)} points`;
}
