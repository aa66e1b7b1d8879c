// What the figures are made from: differences of two snapshots, and how numbers are written.

const KEPT_MAX = 130;

/** The last two minutes, without what is known of each rank. */
export class Recent {
  kept = [];

  push(snapshot) {
    const { uptime_ms, totals, requests_total, rejected_total, stage_seconds, tenants } = snapshot;
    this.routerId = snapshot.router_id ?? this.routerId;
    this.kept.push({
      uptime_ms, totals, requests_total, rejected_total, stage_seconds, tenants,
    });
    if (this.kept.length > KEPT_MAX) this.kept.shift();
  }

  /** Whether the snapshot is of another process. A router of an older version has no id. */
  isOther(snapshot) {
    if (!this.newest) return false;
    return snapshot.uptime_ms < this.newest.uptime_ms || snapshot.router_id !== this.routerId;
  }

  forget() {
    this.kept = [];
    this.routerId = undefined;
  }

  get newest() {
    return this.kept.at(-1);
  }

  /** The one that is about so old, and has the figure; the newest if there is none. */
  before(ms, has = () => true) {
    const from = this.newest.uptime_ms - ms - 300;
    return this.kept.find((one) => one.uptime_ms >= from && has(one)) ?? this.newest;
  }

  /**
   * Growth of a figure over the last `ms`, and the seconds that it took. A snapshot in which the
   * figure is undefined has no count of it, and not a count of 0.
   */
  growth(read, ms) {
    const [old, now] = [this.before(ms, (one) => read(one) !== undefined), this.newest];
    return [read(now) - read(old), (now.uptime_ms - old.uptime_ms) / 1000];
  }

  /** Growth per second; null before there are two snapshots. */
  rate(read, ms = 5000) {
    const [growth, seconds] = this.growth(read, ms);
    return seconds > 0 ? growth / seconds : null;
  }

  /** Counts of a stage below the bounds, over the last `ms`. */
  stage(name, ms = 10_000) {
    const [old, now] = [this.before(ms), this.newest];
    const [from, to] = [old.stage_seconds.stages[name], now.stage_seconds.stages[name]];
    if (!to) return null;
    return {
      bounds: to.bounds ?? now.stage_seconds.bounds,
      below: to.below.map((count, place) => count - (from?.below[place] ?? 0)),
      count: to.count - (from?.count ?? 0),
      seconds: (now.uptime_ms - old.uptime_ms) / 1000,
    };
  }
}

export const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);
export const sumOf = (counts) => sum(Object.values(counts));

/** As Prometheus' `histogram_quantile`; null without values. */
export function quantile(stage, share) {
  if (!stage || stage.count <= 0) return null;
  const wanted = share * stage.count;
  const place = stage.below.findIndex((count) => count >= wanted);
  if (place < 0) return stage.bounds.at(-1);
  const [from, below] = place > 0 ? [stage.bounds[place - 1], stage.below[place - 1]] : [0, 0];
  const inside = stage.below[place] - below;
  const part = inside > 0 ? (wanted - below) / inside : 1;
  return from + (stage.bounds[place] - from) * part;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** Large counts with two or three digits. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= unit) {
      const size = name === "k" ? 1e3 : unit;
      return `${(value / size).toPrecision(3).replace(/\.0+$/, "")}${name}`;
    }
  }
  return whole.format(value);
}

export function rate(value) {
  if (value === null) return "–";
  return value >= 100 || value === 0 ? whole.format(value) : value.toFixed(1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10) return `${value.toFixed(0)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(value < 1e-2 ? 1 : 0)} ms`;
  return `${(value * 1e6).toFixed(value < 1e-5 ? 1 : 0)} µs`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(0)} %`;
}

/** How long, in the two largest units. */
export function span(ms) {
  const all = Math.floor(ms / 1000);
  const [days, hours] = [Math.floor(all / 86_400), Math.floor(all / 3600) % 24];
  const minutes = Math.floor(all / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${all % 60} s` : `${all} s`;
}

/** Sets a text only where it changes. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Marks an element as one metric's value, so that a test and a reader find where it is from. */
export function mark(element, metric, value, labels = {}) {
  element.dataset.metric = `forebay_${metric}`;
  element.dataset.value = value ?? "";
  for (const [name, label] of Object.entries(labels)) element.dataset[`label_${name}`] = label;
}

export function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
