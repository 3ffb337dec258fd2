// Light or dark, as the system has it.

export function onTheme(listener) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Colour and dash of the series at a place: they differ without colour, too.
export const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 4], [1, 4], [6, 2, 2, 2]];
export const SERIES_COLOURS = 8;

// From the second time that a colour is used on, its dash is another.
export function dashOf(place) {
  return DASHES[(place + Math.floor(place / SERIES_COLOURS)) % DASHES.length];
}

export function seriesColour(place) {
  return colour(`--series-${place % SERIES_COLOURS}`);
}
