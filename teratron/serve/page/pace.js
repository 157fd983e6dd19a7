// How fast the tokens of an answer come. A connection delivers several at once, and the clocks of pages are coarse: only
// the time between two deliveries says anything.
class Pace {
  constructor() { [this.tokens, this.deliveries] = [0, []]; }

  // `now`: the time of the delivery in milliseconds.
  add(tokens, now) {
    if (!tokens) return;
    this.tokens += tokens;
    if (this.deliveries.at(-1)?.time === now) this.deliveries.at(-1).tokens += tokens;
    else this.deliveries.push({time: now, tokens});
  }

  get first() { return this.deliveries[0]?.time; }
  get seconds() { return this.deliveries.length ? (this.deliveries.at(-1).time - this.first) / 1000 : 0; }

  // Tokens per second after the first delivery; null where that is too short to be measured. `total`: the server's number
  // of tokens, where some brought no text.
  speed(total = this.tokens) {
    if (this.seconds < 0.02) return null;
    return (this.tokens - this.deliveries[0].tokens) / this.seconds * total / this.tokens;
  }

  // [seconds, tokens per second] over windows; empty for a short answer.
  curve() {
    const window = Math.max(0.25, this.seconds / 40), points = [];
    if (this.seconds < 4 * window) return points;
    let from = 0, tokens = 0;
    for (const delivery of this.deliveries) {
      tokens += delivery.tokens;
      for (; this.deliveries[from].time <= delivery.time - window * 1000; ++from) tokens -= this.deliveries[from].tokens;
      const at = (delivery.time - this.first) / 1000;
      if (at >= window) points.push([at, tokens / window]);
    }
    return points;
  }
}
