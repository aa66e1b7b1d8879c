// The line of figures: each a number, its course over two minutes, and where it comes from.

import { count, make, mark, percent, put, quantile, rate, seconds, sum, sumOf } from "./figures.js";

const POINTS_MAX = 120;
const DRAWN_HEIGHT = 44;

const requests = (one) => sumOf(one.requests_total);
const refused = (one) => sumOf(one.rejected_total);

/** Name, metric, and what is shown: a value, a text, a second line. */
const FIGURES = [
  {
    name: "Answered/s",
    tip: "Rate of forebay_requests_total less forebay_rejected_total, over 5 s",
    total: ["requests_total", (recent) => requests(recent.newest)],
    read: (recent) => recent.rate((one) => requests(one) - refused(one)),
    show: rate,
    note: (recent) => `${count(requests(recent.newest))} since the start`,
  },
  {
    name: "Time to first token",
    tip: "p50 and p99 of forebay_ttft_seconds of all models, over 10 s: from the end of a request "
      + "to the first byte of its stream",
    read: (recent) => quantile(recent.stage("first_token"), 0.5),
    show: seconds,
    note: (recent) => `p99 ${seconds(quantile(recent.stage("first_token"), 0.99))}`,
    unit: "p50",
  },
  {
    name: "In flight",
    tip: "Sum of forebay_in_flight",
    total: ["in_flight", (_, snapshot) => sum(snapshot.ranks.in_flight)],
    read: (_, snapshot) => sum(snapshot.ranks.in_flight),
    show: count,
    note: (_, snapshot) => (snapshot.usablePlaces === null
      ? "no limit on every rank"
      : `of ${count(snapshot.usablePlaces)} usable places`),
  },
  {
    name: "Queued",
    tip: "Sum of forebay_queue_depth",
    total: ["queue_depth", (_, snapshot) => sum(snapshot.pools.map((p) => p.queue_depth))],
    read: (_, snapshot) => sum(snapshot.pools.map((pool) => pool.queue_depth)),
    show: count,
    note: (_, snapshot) => {
      const open = snapshot.pools.filter((pool) => pool.open).length;
      return open ? `${open} rejection window${open > 1 ? "s" : ""} open` : "no window open";
    },
  },
  {
    name: "Refused/s",
    tip: "Rate of forebay_rejected_total, over 5 s",
    total: ["rejected_total", (recent) => refused(recent.newest)],
    read: (recent) => recent.rate(refused),
    show: rate,
    note: (recent) => `${count(refused(recent.newest))} since the start`,
  },
  {
    name: "Prompt in cache",
    tip: "Growth of forebay_overlap_bytes_total over that of forebay_prompt_bytes_total, over "
      + "30 s: the share of prompts that the chosen rank held",
    total: ["overlap_bytes_total", (recent) => recent.newest.totals.overlap_bytes_total],
    read: (recent) => share(recent, "overlap_bytes_total"),
    show: percent,
    note: (recent) => {
      const guessed = share(recent, "guessed_bytes_total");
      return guessed >= 0.005 ? `and ${percent(guessed)} guessed` : "by KV events";
    },
    max: 1,
  },
];

function share(recent, part) {
  const [whole] = recent.growth((one) => one.totals.prompt_bytes_total, 30_000);
  const [held] = recent.growth((one) => one.totals[part], 30_000);
  return whole > 0 ? Math.min(held / whole, 1) : null;
}

class Figure {
  constructor(entry) {
    this.entry = entry;
    this.points = [];
    this.card = make("article", "figure");
    this.card.title = entry.tip;
    const line = make("p", "value");
    this.value = make("b", "", "–");
    line.append(this.value, make("small", "", entry.unit ?? ""));
    this.note = make("p", "note", " ");
    this.drawn = make("div", "spark");
    this.drawn.setAttribute("aria-hidden", "true");
    this.card.append(make("h3", "", entry.name), line, this.note, this.drawn);
  }

  /** Adds a point of the course. */
  add(recent, snapshot) {
    const value = this.entry.read(recent, snapshot);
    this.points.push(value);
    if (this.points.length > POINTS_MAX) this.points.shift();
    return value;
  }

  update(recent, snapshot) {
    const { entry } = this;
    put(this.value, entry.show(this.add(recent, snapshot)));
    put(this.note, entry.note(recent, snapshot));
    if (entry.total) mark(this.card, entry.total[0], entry.total[1](recent, snapshot));
    if (!document.hidden) this.draw();
  }

  draw() {
    const width = this.drawn.clientWidth;
    if (!width) return;
    const gap = Array(POINTS_MAX - this.points.length).fill(null);
    const data = [[...Array(POINTS_MAX).keys()], [...gap, ...this.points]];
    if (!this.plot) {
      this.plot = new uPlot(options(width, this.entry.max), data, this.drawn);
      return;
    }
    if (this.plot.width !== width) this.plot.setSize({ width, height: DRAWN_HEIGHT });
    this.plot.setData(data);
  }

  /** In other colors. */
  renew() {
    this.plot?.destroy();
    this.plot = undefined;
    this.draw();
  }
}

function options(width, max) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const range = (_, low, high) => [0, max ?? Math.max(high ?? 0, low ?? 0, 1e-9) * 1.15];
  return {
    width,
    height: DRAWN_HEIGHT,
    padding: [2, 0, 2, 0],
    cursor: { show: false },
    legend: { show: false },
    axes: [{ show: false }, { show: false }],
    scales: { x: { time: false, range: [0, POINTS_MAX - 1] }, y: { range } },
    series: [
      {},
      {
        stroke: color("--accent"),
        fill: color("--accent-soft"),
        width: 1.5,
        points: { show: false },
      },
    ],
  };
}

export class Figures {
  constructor(place) {
    this.all = FIGURES.map((entry) => new Figure(entry));
    place.append(...this.all.map((figure) => figure.card));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.all.forEach((figure) => figure.renew()),
    );
  }

  update(recent, snapshot) {
    for (const figure of this.all) figure.update(recent, snapshot);
  }

  /** Adds a moment before the page was opened. */
  remember(recent, snapshot) {
    for (const figure of this.all) figure.add(recent, snapshot);
  }

  /** A new process counts from 0. */
  forget() {
    for (const figure of this.all) figure.points = [];
  }
}
