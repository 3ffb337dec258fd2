// What is known of a run, from the messages of its feed.

const SERIES = ["rounds", "learner", "speed", "actions", "anomalies"];
const LISTS = ["frontier", "lineage", "best", "curves", "notes", "contenders", "log"];
const REPLACED = [...LISTS, "run", "curves_total", "log_total"];
const MAX_EVENTS = 200;
const MAX_POINTS = 4000;

export class RunData {
  constructor() {
    this.run = null;
    this.reset();
  }

  reset() {
    this.setup = null;
    this.problems = {};
    for (const name of [...SERIES, ...LISTS, "events"]) this[name] = [];
    this.curves_total = this.log_total = 0;
  }

  // `first`: the message holds everything.
  apply(message, first) {
    if (first) this.reset();
    for (const name of REPLACED) if (message[name] !== undefined) this[name] = message[name];
    if (message.setup && message.setup[0]) this.setup = message.setup[0];
    for (const name of SERIES) if (message[name]) this[name] = merged(this[name], message[name]);
    if (message.events) this.addEvents(message.events);
    if (message.problems) this.problems = message.problems;
  }

  addEvents(events) {
    const key = (event) => `${event.time} ${event.round} ${event.text}`;
    const known = new Set(this.events.map(key));
    this.events = [...this.events, ...events.filter((event) => !known.has(key(event)))]
      .slice(-MAX_EVENTS);
  }
}

// Points by round; the new ones replace those from their first round on.
export function merged(points, added) {
  if (!added.length) return points;
  const kept = points.filter((point) => point.round < added[0].round);
  const all = [...kept, ...added];
  return all.length <= MAX_POINTS ? all : all.filter((_, i) => i % 2 === 0 || i > all.length - 100);
}
