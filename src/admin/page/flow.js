// What stands beside the fleet: queues and windows, stages, answers and refusals, events.

import { call, confirm, fault, say } from "./calls.js";
import { count, make, mark, put, quantile, rate, seconds } from "./figures.js";

const OPENED_BY = { here: "by a full queue", hand: "by hand", elsewhere: "by another replica" };
const EVENTS_MAX = 200;

export class Pools {
  constructor(place) {
    this.place = place;
    this.all = new Map();
  }

  update(snapshot) {
    const seen = new Set();
    for (const pool of snapshot.pools) {
      seen.add(pool.pool);
      if (!this.all.has(pool.pool)) {
        const made = new PoolCard();
        this.all.set(pool.pool, made);
        this.place.append(made.element);
      }
      this.all.get(pool.pool).show(pool);
    }
    for (const [number, card] of this.all) {
      if (seen.has(number)) continue;
      card.element.remove();
      this.all.delete(number);
    }
  }
}

class PoolCard {
  constructor() {
    this.element = make("article", "pool");
    const head = make("div", "bar");
    this.name = make("h3");
    this.button = make("button");
    this.button.type = "button";
    this.button.addEventListener("click", () => turn(this.pool));
    head.append(this.name, this.button);
    this.state = make("p", "window");
    this.state.title = "forebay_window_open, forebay_window_openings_total";
    this.queue = make("p", "note");
    this.queue.title = "forebay_queue_depth, forebay_drain_rate";
    this.element.append(head, this.state, this.queue);
  }

  show(pool) {
    this.pool = pool;
    const leg = pool.leg === "prefill" ? " (prefill)" : "";
    put(this.name, `${pool.models[0] ?? "no model"}${leg}`);
    this.name.title = pool.models.join(", ");
    const by = pool.by.map((by) => OPENED_BY[by]).join(", ");
    const left = seconds(pool.open_ms / 1000);
    const times = pool.openings === 1 ? "once" : `${count(pool.openings)} times`;
    const before = pool.openings ? `opened ${times} so far` : "never opened";
    const words = pool.open ? `■ window open ${by}, ${left} left: ${pool.cause}` : `□ window closed, ${before}`;
    put(this.state, words);
    this.element.classList.toggle("open", pool.open);
    const ends = pool.drain_rate === null ? "" : ` · ${rate(pool.drain_rate)} end per second`;
    put(this.queue, `${count(pool.queue_depth)} queued · ${count(pool.ranks)} ranks${ends}`);
    const labels = pool.leg === "prefill" ? { leg: "prefill" } : { leg: "" };
    mark(this.queue, "queue_depth", pool.queue_depth, { model: pool.models[0] ?? "", ...labels });
    put(this.button, pool.open ? "Close window" : "Open window…");
  }
}

/** Opens or closes the window of a pool. */
async function turn(pool) {
  const model = pool.models[0];
  const asked = pool.open
    ? { title: `Close the window of ${model}?`, text: "Requests are admitted again.", go: "Close" }
    : {
        title: `Open the window of ${model}?`,
        text: "New requests get a 429, until the time is over or the window is closed.",
        go: "Open",
        withTime: true,
      };
  const chosen = await confirm(asked);
  if (chosen === null) return;
  const body = pool.open ? { model, close: true } : { model, open: chosen };
  const answer = await call("POST", "/admin/window", body);
  const done = `The window of ${model} is ${pool.open ? "closed" : `open for ${chosen}`}.`;
  say(answer.ok ? done : `${model}: ${fault(answer)}`, !answer.ok);
}

const STAGES = {
  parse: "Parse",
  render: "Render",
  index: "Match",
  select: "Select",
  queue: "Queue",
  dispatch: "Until sent",
  prefill_hop: "Prefill hop",
  decode_lag: "Decode lag",
  first_byte: "First byte",
  total: "Whole answer",
};

export class Stages {
  constructor(place) {
    this.rows = Object.entries(STAGES).map(([stage, name]) => {
      const row = make("tr");
      row.title = `forebay_stage_seconds{stage="${stage}"}`;
      const head = make("th", "", name);
      head.scope = "row";
      const cells = [make("td"), make("td"), make("td")];
      row.append(head, ...cells);
      place.append(row);
      return { stage, row, cells };
    });
  }

  update(recent) {
    for (const { stage, row, cells } of this.rows) {
      const seen = recent.stage(stage);
      const isUsed = recent.newest.stage_seconds.stages[stage]?.count > 0;
      row.hidden = !isUsed && (stage === "prefill_hop" || stage === "decode_lag");
      const perSecond = seen?.seconds > 0 ? seen.count / seen.seconds : null;
      put(cells[0], rate(perSecond));
      put(cells[1], seconds(quantile(seen, 0.5)));
      put(cells[2], seconds(quantile(seen, 0.99)));
    }
  }
}

/** Counts as chips, for example of status codes. */
export class Chips {
  constructor(place, { metric, label, tip, none }) {
    Object.assign(this, { place, metric, label, tip, none });
  }

  /** Total of each name, and where `perSecond` is given, its rate now. */
  update(counts, perSecond = () => 0) {
    const wanted = Object.entries(counts).sort(([, a], [, b]) => b - a);
    if (!wanted.length) {
      this.place.replaceChildren(make("li", "", this.none));
      return;
    }
    if (this.place.childElementCount !== wanted.length) {
      this.place.replaceChildren(...wanted.map(() => make("li")));
    }
    wanted.forEach(([name, value], place) => {
      const chip = this.place.children[place];
      const now = perSecond(name);
      put(chip, `${name}  ${count(value)}${now > 0 ? `, now ${rate(now)}/s` : ""}`);
      chip.classList.toggle("now", now > 0);
      const tip = this.tip ? ` · ${this.tip}` : "";
      chip.title = `${this.metric}{${this.label}="${name}"}${tip}`;
      mark(chip, this.metric.replace("forebay_", ""), value, { [this.label]: name });
    });
  }
}

const TENANT_RESULTS = ["answered", "refused", "invalid", "failed", "left"];
const TENANTS_MS = 10_000;

/** Requests of each tenant now, by result. Hidden in a router without tenants. */
export class Tenants {
  constructor(panel, place) {
    Object.assign(this, { panel, place });
    this.rows = new Map();
  }

  update(recent) {
    const tenants = Object.keys(recent.newest.tenants ?? {});
    this.panel.hidden = tenants.length === 0;
    for (const [name, { row }] of this.rows) {
      if (tenants.includes(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    for (const name of tenants) {
      const { cells } = this.rows.get(name) ?? this.add(name);
      TENANT_RESULTS.forEach((result, place) => {
        // A router without tenants has no counts of them. A tenant without requests has 0.
        const read = (one) => one.tenants && (one.tenants[name]?.[result] ?? 0);
        const now = recent.rate(read, TENANTS_MS);
        put(cells[place], rate(now));
        const isWrong = result === "refused" || result === "failed";
        cells[place].classList.toggle("wrong", isWrong && now > 0);
        const labels = { tenant: name, result };
        mark(cells[place], "tenant_requests_total", read(recent.newest), labels);
      });
    }
  }

  add(name) {
    const row = make("tr");
    const head = make("th", "", name);
    head.scope = "row";
    const cells = TENANT_RESULTS.map((result) => {
      const cell = make("td");
      cell.title = `forebay_tenant_requests_total{tenant="${name}",result="${result}"}`;
      return cell;
    });
    row.append(head, ...cells);
    this.place.append(row);
    this.rows.set(name, { row, cells });
    return this.rows.get(name);
  }
}

const GLYPHS = {
  joined: "+", left: "−", up: "●", down: "✕", drain: "◐", undrain: "●", unused: "○", used: "●",
  feed: "≈", lost: "!", opened: "■", closed: "□", reload: "↻", link: "○", ejected: "⊘",
  readmitted: "●", failing: "!", serving: "●", suspected: "!", cleared: "≈",
};

export class Events {
  constructor(place) {
    this.place = place;
    this.forget();
  }

  update(events) {
    for (const event of events) {
      const known = this.known.get(event.id);
      if (known?.number >= event.number) continue;
      const { kind, text, number } = event;
      const line = known?.line ?? this.add(kind, text, Date.now() - event.age_ms);
      put(line.lastChild, text);
      this.known.set(event.id, { number, line });
    }
    while (this.known.size > EVENTS_MAX) this.known.delete(this.known.keys().next().value);
  }

  add(kind, text, at) {
    const line = make("li", kind);
    const time = make("time", "", new Date(at).toLocaleTimeString("en-GB"));
    time.dateTime = new Date(at).toISOString();
    const glyph = make("span", "glyph", GLYPHS[kind] ?? "·");
    glyph.setAttribute("aria-hidden", "true");
    line.append(time, glyph, make("span", "", text));
    this.place.prepend(line);
    while (this.place.childElementCount > EVENTS_MAX) this.place.lastChild.remove();
    return line;
  }

  /** Another process counts its events from 1. */
  forget() {
    this.known = new Map();
  }
}
