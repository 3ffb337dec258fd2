// Light, dark, or as the system has it; the choice is kept in this browser.

const KEY = "esper-theme";

export function startTheme() {
  const select = document.getElementById("theme");
  const stored = read();
  apply(stored);
  select.value = stored;
  select.addEventListener("change", () => {
    apply(select.value);
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // storage is off: the choice lasts as long as the page
    }
    announce();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
}

export function onTheme(listener) {
  document.addEventListener("esper-theme", listener);
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

function announce() {
  document.dispatchEvent(new Event("esper-theme"));
}

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function read() {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : "";
  } catch {
    return "";
  }
}
