// Colours by identity: a run, a policy or a slot keeps its place on a page, whoever comes or goes.

import { SERIES_COLOURS } from "./theme.js";

const places = new Map();

// Places of names of one kind that are shown together; new ones take colours that are free.
export function placesOf(kind, names) {
  const held = (name) => places.get(`${kind} ${name}`);
  const taken = new Set(names.map(held).filter((place) => place !== undefined));
  const colours = new Set([...taken].map((place) => place % SERIES_COLOURS));
  for (const name of names) {
    if (held(name) !== undefined) continue;
    let place = 0;
    const isFree = () => !taken.has(place) && (colours.size >= SERIES_COLOURS || !colours.has(place % SERIES_COLOURS));
    while (!isFree()) place += 1;
    places.set(`${kind} ${name}`, place);
    taken.add(place);
    colours.add(place % SERIES_COLOURS);
  }
  return names.map(held);
}

// Gives every series the place of its label.
export function withPlaces(kind, series) {
  const found = placesOf(kind, series.map((one) => one.label));
  return series.map((one, i) => ({ ...one, place: found[i] }));
}
