// The round and the member that the figures show; the address of the page keeps them.

export class Chosen {
  constructor() {
    const asked = new URLSearchParams(location.search);
    this.round = whole(asked.get("round"), 1);
    this.member = whole(asked.get("member"), 0);
    this.listeners = [];
  }

  // `round` from 0, null: the newest; `member` null: the best.
  set(change) {
    Object.assign(this, change);
    const asked = new URLSearchParams(location.search);
    keep(asked, "round", this.round === null ? null : this.round + 1);
    keep(asked, "member", this.member);
    const query = asked.toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    for (const listener of this.listeners) listener();
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  query() {
    return `round=${this.round ?? ""}&member=${this.member ?? ""}`;
  }
}

function keep(asked, name, value) {
  if (value === null) asked.delete(name);
  else asked.set(name, value);
}

function whole(text, least) {
  return /^\d{1,9}$/.test(text ?? "") && Number(text) >= least ? Number(text) - least : null;
}
