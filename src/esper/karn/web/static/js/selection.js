// Which network of a search is looked at: the one owner for all its plots and the card.

export class Selection {
  constructor() {
    this.active = null; // label of the network under the pointer or the focus
    this.pinned = null;
    this.fallback = null; // shown where nobody points
    this.listeners = [];
  }

  get shown() {
    return this.active ?? this.pinned ?? this.fallback;
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  activate(label) {
    if (label === this.active) return;
    this.active = label;
    this.announce();
  }

  pin(label) {
    if (label === this.pinned) return;
    this.pinned = label;
    this.announce();
  }

  toggle(label) {
    this.pin(label === this.pinned ? null : label);
  }

  announce() {
    for (const listener of this.listeners) listener(this);
  }
}
