// The fleet: workers with their ranks as rows, of which only those in sight are elements, and a map
// with a cell for each rank.

import { call, confirm, fault, say } from "./calls.js";
import { count, make, mark, percent, put, seconds, short, sum } from "./figures.js";

const OPEN_RANKS_MAX = 40;
const MAP_RANKS_MIN = 24;

/** Glyph, words and weight of each state; heavier ones stand first among problems. */
const STATES = {
  up: ["●", "up", 0],
  replaying: ["◔", "catching up", 1],
  busy: ["!", "engine refuses", 3],
  breaker: ["⊘", "paused", 4],
  registering: ["…", "registering", 2],
  draining: ["◐", "draining", 3],
  unused: ["○", "unused", 3],
  unusable: ["!", "not usable", 4],
  unknown: ["?", "not reached", 4],
  down: ["✕", "down", 5],
};

/** States in which a worker gets requests, and states in which a reason says why not. */
const IN_USE = new Set(["up", "replaying", "busy"]);
const OUT_OF_USE = new Set(["down", "unused", "unusable", "unknown", "breaker"]);

const FEEDS = {
  live: ["●", "live"],
  connecting: ["✕", "lost"],
  replaying: ["◔", "replaying"],
  unverified: ["◔", "unverified"],
  mismatch: ["!", "wrong tokenizer"],
};

export class Fleet {
  constructor(places) {
    this.places = places;
    this.workers = [];
    this.toggled = new Set();
    this.pool = [];
    this.rows = [];
    places.find.addEventListener("input", () => this.arrange());
    places.sort.addEventListener("change", () => this.arrange());
    places.scroll.addEventListener("scroll", () => this.fill(), { passive: true });
    new ResizeObserver(() => this.fill()).observe(places.scroll);
    new ResizeObserver(() => this.drawMap()).observe(places.map.parentElement);
    places.canvas.addEventListener("click", (event) => this.jump(event));
    places.space.addEventListener("click", (event) => this.pressed(event));
    places.scroll.addEventListener("keydown", (event) => this.key(event));
  }

  update(snapshot) {
    if (snapshot.whole) {
      this.fixed = snapshot.whole;
      this.generation = snapshot.generation;
    }
    // Columns of another fleet do not fit; a whole snapshot comes.
    if (!this.fixed || snapshot.generation !== this.generation) return;
    this.ranks = snapshot.ranks;
    this.workers = this.read(this.fixed, snapshot.ranks);
    this.arrange();
    this.drawMap();
    this.summary();
  }

  /** Places of the ranks that get requests; null if one of the ranks has no limit. */
  usablePlaces() {
    const usable = this.workers.flatMap((row) => row.of).filter((rank) => IN_USE.has(rank.state));
    return usable.every((rank) => rank.places) ? sum(usable.map((rank) => rank.places)) : null;
  }

  /** Rows of workers, each with the rows of its ranks. */
  read(fixed, figures) {
    const workers = new Map(fixed.workers.map((worker) => [worker.index, { ...worker, of: [] }]));
    fixed.ranks.worker.forEach((index, place) => {
      const worker = workers.get(index);
      if (worker) worker.of.push(rankRow(worker, place, fixed.ranks, figures));
    });
    return [...workers.values()].map(workerRow);
  }

  /** Sorts, filters and flattens. */
  arrange() {
    const wanted = this.places.find.value.trim().toLowerCase();
    const by = this.places.sort.value;
    const found = this.workers.filter((row) => !wanted || row.words.includes(wanted));
    const weight = {
      name: () => 0,
      state: (row) => -STATES[row.state][2] || (row.hasTrouble ? -1 : 0),
      in_flight: (row) => -row.in_flight,
      waiting: (row) => -(row.waiting ?? 0),
      prefill: (row) => -row.prefill,
      ttft: (row) => -(row.ttft ?? 0),
      kv: (row) => -(row.kv ?? 0),
    }[by];
    const names = new Intl.Collator("en", { numeric: true });
    const order = (a, b) => weight(a) - weight(b) || names.compare(a.name, b.name);
    found.sort(order);
    const areOpen = sum(this.workers.map((row) => row.of.length)) <= OPEN_RANKS_MAX;
    this.rows = [];
    for (const row of found) {
      row.isOpen = row.of.length > 1 && areOpen !== this.toggled.has(row.name);
      this.rows.push(row);
      if (row.isOpen) this.rows.push(...(by === "name" ? row.of : [...row.of].sort(order)));
    }
    this.fill();
  }

  fill() {
    const { scroll, space, table } = this.places;
    const height = parseFloat(getComputedStyle(scroll).getPropertyValue("--row")) || 48;
    space.style.height = `${Math.max(this.rows.length, 1) * height}px`;
    table.setAttribute("aria-rowcount", this.rows.length + 1);
    const first = Math.max(0, Math.floor(scroll.scrollTop / height) - 2);
    const shown = Math.ceil(scroll.clientHeight / height) + 4;
    const rows = this.rows.slice(first, first + shown);
    while (this.pool.length < rows.length) {
      const row = new Row();
      this.pool.push(row);
      space.append(row.element);
    }
    this.pool.forEach((element, place) => element.show(rows[place], first + place, height));
    put(this.places.none, this.rows.length ? "" : "No worker fits.");
  }

  summary() {
    const ranks = this.workers.flatMap((row) => row.of);
    const counts = new Map();
    for (const row of this.workers) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    const states = [...counts].sort(([a], [b]) => STATES[a][2] - STATES[b][2]);
    const words = states.map(([state, n]) => `${STATES[state][0]} ${n} ${STATES[state][1]}`);
    const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
    const all = `${many(this.workers.length, "worker")}, ${many(ranks.length, "rank")}`;
    put(this.places.summary, [all, ...words].join(" · "));
  }

  async pressed(event) {
    const button = event.target.closest("button");
    const row = button && this.rows[Number(button.closest(".row").dataset.place)];
    if (!row) return;
    if (button.classList.contains("toggle")) {
      if (!this.toggled.delete(row.name)) this.toggled.add(row.name);
      this.arrange();
      return;
    }
    await drain(row.worker ?? row);
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.target !== this.places.scroll || !steps[event.key]) return;
    event.preventDefault();
    const height = parseFloat(getComputedStyle(this.places.scroll).getPropertyValue("--row"));
    this.places.scroll.scrollTop += steps[event.key] * height;
  }

  /** Cells of the map, in the order of the workers. */
  drawMap() {
    const { map, canvas } = this.places;
    const cells = this.workers.flatMap((row) => row.of);
    map.hidden = cells.length < MAP_RANKS_MIN;
    if (map.hidden || document.hidden) return;
    const [wide, high, gap, scale] = [13, 20, 3, window.devicePixelRatio || 1];
    const width = map.clientWidth;
    const perLine = Math.max(1, Math.floor((width + gap) / (wide + gap)));
    const lines = Math.ceil(cells.length / perLine);
    const height = lines * (high + gap) - gap;
    if (canvas.width !== width * scale || canvas.height !== height * scale) {
      [canvas.width, canvas.height] = [width * scale, height * scale];
      canvas.style.height = `${height}px`;
    }
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name);
    const draw = canvas.getContext("2d");
    draw.setTransform(scale, 0, 0, scale, 0, 0);
    draw.clearRect(0, 0, width, height);
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    draw.font = "bold 13px system-ui, sans-serif";
    cells.forEach((cell, place) => {
      const x = (place % perLine) * (wide + gap);
      const y = Math.floor(place / perLine) * (high + gap);
      const glyph = { down: "×", unusable: "!", unknown: "?", draining: "–", unused: "–",
        breaker: "!", busy: "!" };
      const isUp = !glyph[cell.state];
      const isDrained = cell.state === "draining" || cell.state === "unused";
      draw.fillStyle = color(isUp ? "--track" : isDrained ? "--warn-soft" : "--bad-soft");
      draw.fillRect(x, y, wide, high);
      const fill = Math.round(high * cell.fill);
      draw.fillStyle = color(isUp ? "--accent" : isDrained ? "--warn" : "--bad");
      draw.fillRect(x, y + high - fill, wide, fill);
      if (isUp) return;
      draw.fillStyle = color("--text");
      draw.fillText(glyph[cell.state], x + wide / 2, y + high / 2 + 1);
    });
    this.cells = { all: cells, perLine, wide: wide + gap, high: high + gap };
  }

  /** To the row of a cell. */
  jump(event) {
    const { perLine, wide, high, all } = this.cells;
    const column = Math.min(Math.floor(event.offsetX / wide), perLine - 1);
    const cell = all[Math.floor(event.offsetY / high) * perLine + column];
    if (!cell) return;
    const row = cell.worker;
    if (!row.isOpen && row.of.length > 1) {
      if (!this.toggled.delete(row.name)) this.toggled.add(row.name);
      this.arrange();
    }
    const height = this.places.space.clientHeight / Math.max(this.rows.length, 1);
    const isIt = (one) => one === cell || (one === row && row.of.length === 1);
    const place = this.rows.findIndex((one) => isIt(one) || one.key === cell.key);
    this.places.scroll.scrollTop = Math.max(0, (place - 1) * height);
  }
}

function rankRow(worker, place, fixed, figures) {
  const at = (name) => figures[name]?.[place] ?? null;
  const limit = at("rank_places_max") || fixed.running_max[place] || 0;
  const state = rankState(worker, at);
  const kv = at("reported_kv_usage");
  const load = limit ? (at("in_flight") ?? 0) / limit : (kv ?? 0);
  return {
    key: `${worker.name} ${fixed.dp_rank[place]}`,
    name: `rank ${fixed.dp_rank[place]}`,
    labels: { worker: worker.name, dp_rank: fixed.dp_rank[place] },
    note: at("fault") ?? `${fixed.role[place]} · block ${fixed.block_size[place] || "–"}`,
    state,
    limit,
    places: at("rank_places_max"),
    in_flight: at("in_flight") ?? 0,
    waiting: at("reported_waiting"),
    prefill: at("prefill_tokens") ?? 0,
    streams: at("ttft_1m_streams") ?? 0,
    ttft: at("ttft_1m_mean_seconds"),
    kv,
    blocks: at("kv_rank_blocks"),
    blocksMax: fixed.kv_blocks[place],
    feed: at("feed"),
    fault: at("fault"),
    fill: Math.min(Math.max(load, 0), 1),
    of: [],
  };
}

function rankState(worker, at) {
  const state = workerState(worker);
  if (state !== "up") return state;
  if (at("breaker_open")) return "breaker";
  return at("rank_busy") ? "busy" : "up";
}

function workerState(worker) {
  if (worker.draining) return "draining";
  if (worker.state === "up" && worker.waits_for) return "registering";
  if (worker.state === "unknown" && worker.answers) return "unusable";
  return STATES[worker.state] ? worker.state : "unknown";
}

function duties(worker) {
  const models = worker.models.join(", ");
  const role = worker.role === "both" || worker.role === "unknown" ? "" : worker.role;
  return [role, models].filter(Boolean).join(" · ");
}

function workerRow(worker) {
  const { of } = worker;
  const known = (name) => of.map((rank) => rank[name]).filter((value) => value !== null);
  const add = (name) => (known(name).length ? sum(known(name)) : null);
  const kv = known("kv");
  const streams = sum(of.map((rank) => rank.streams));
  const feeds = [...new Set(known("feed"))];
  const own = workerState(worker);
  const faults = of.map((rank) => rank.fault).filter(Boolean);
  const share = of.length > 1 ? `${faults.length} of ${of.length} ranks: ` : "";
  const fault = faults.length ? share + faults[0] : "";
  const error = [worker.error, worker.error && worker.help].filter(Boolean).join("; ");
  const reason = error || fault || worker.waits_for || "";
  const troubled = of.filter((rank) => rank.state !== "up");
  const row = {
    ...worker,
    key: worker.name,
    labels: { worker: worker.name },
    duties: duties(worker),
    reason,
    note: reason || duties(worker),
    tip: `${worker.name}\n${worker.url}\n${worker.engine}, role ${worker.role}\n`
      + `models ${worker.models.join(", ")}${worker.waits_for ? `\n${worker.waits_for}` : ""}`
      + (error ? `\n${own === "up" ? "" : "not up: "}${error}` : "")
      + (fault ? `\n${fault}` : ""),
    state: own === "up" && of.length === 1 ? of[0].state : own,
    hasTrouble: troubled.length > 0,
    limit: of.every((rank) => rank.limit) ? sum(of.map((rank) => rank.limit)) : 0,
    in_flight: add("in_flight") ?? 0,
    waiting: add("waiting"),
    prefill: add("prefill") ?? 0,
    streams,
    ttft: streams ? sum(of.map((rank) => rank.ttft * rank.streams)) / streams : null,
    kv: kv.length ? sum(kv) / kv.length : null,
    blocks: add("blocks"),
    blocksMax: sum(of.map((rank) => rank.blocksMax)),
    feed: feeds.length > 1 ? `${feeds.filter((feed) => feed !== "live")[0]}` : (feeds[0] ?? null),
    count: of.length,
  };
  for (const rank of of) rank.worker = row;
  row.words = [row.name, row.note, row.url, row.engine, row.role, STATES[row.state][1],
    ...new Set(of.map((rank) => STATES[rank.state][1]))].join(" ").toLowerCase();
  return row;
}

/** One element that shows one row after the other. */
class Row {
  constructor() {
    this.element = make("div", "row");
    this.element.setAttribute("role", "row");
    const cell = (name) => {
      const made = make("span", name);
      made.setAttribute("role", "cell");
      this.element.append(made);
      return made;
    };
    const who = cell("who");
    this.toggle = make("button", "toggle");
    this.toggle.type = "button";
    this.name = make("b");
    this.note = make("small");
    const names = make("span", "names");
    names.append(this.name, this.note);
    who.append(this.toggle, names);
    this.state = cell("state");
    this.reason = cell("reason");
    this.load = meter(cell("load"));
    this.waiting = cell("number waiting");
    this.prefill = cell("number prefill");
    this.ttft = cell("number ttft");
    this.kv = meter(cell("kv"));
    this.blocks = cell("blocks");
    this.action = make("button", "action");
    this.action.type = "button";
    cell("do").append(this.action);
  }

  show(row, place, height) {
    this.element.hidden = !row;
    if (!row) return;
    const isRank = row.worker !== undefined;
    this.element.dataset.place = place;
    this.element.setAttribute("aria-rowindex", place + 2);
    this.element.style.transform = `translateY(${place * height}px)`;
    this.element.className = `row ${row.state}${isRank ? " rank" : ""}`;
    this.element.title = row.tip ?? "";
    put(this.name, row.name);
    const [glyph, words] = STATES[row.state];
    const trouble = row.hasTrouble && row.state === "up" && row.count > 1;
    const bad = trouble ? row.of.filter((rank) => rank.state !== "up").length : 0;
    // A worker that is out of use has no load to show: its reason takes that place.
    const isOut = !isRank && OUT_OF_USE.has(row.state) && row.in_flight === 0;
    const reason = isOut ? row.reason : "";
    this.element.classList.toggle("wordy", reason !== "");
    put(this.reason, reason);
    const note = reason ? row.duties : row.note;
    put(this.note, row.count > 1 ? `${row.count} ranks · ${note}` : note);
    put(this.state, bad ? `! ${bad} of ${row.count} not up` : `${glyph} ${words}`);
    const load = row.limit ? row.in_flight / row.limit : null;
    const limit = row.limit ? ` of ${count(row.limit)}` : "";
    this.load(load, `${count(row.in_flight)}${limit}`);
    mark(this.element.querySelector(".load"), "in_flight", row.in_flight, row.labels);
    put(this.waiting, count(row.waiting));
    put(this.prefill, short(row.prefill));
    mark(this.prefill, "prefill_tokens", row.prefill, row.labels);
    put(this.ttft, seconds(row.ttft));
    this.ttft.title = `mean of ${count(row.streams)} streams that ended in the last minute`;
    this.kv(row.kv, percent(row.kv));
    const feed = row.feed === null ? "no KV events" : FEEDS[row.feed].join(" ");
    put(this.blocks, row.feed === null ? feed : `${short(row.blocks)} · ${feed}`);
    mark(this.blocks, "kv_rank_blocks", row.blocks, row.labels);
    this.toggle.hidden = isRank || row.count < 2;
    put(this.toggle, row.isOpen ? "▾" : "▸");
    this.toggle.setAttribute("aria-expanded", String(Boolean(row.isOpen)));
    this.toggle.setAttribute("aria-label", `Ranks of ${row.name}`);
    this.action.hidden = isRank;
    put(this.action, row.draining ? "Undrain" : "Drain");
    this.action.setAttribute("aria-label", `${this.action.textContent} ${row.name}`);
  }
}

/** A bar with its text; the text says all. */
function meter(place) {
  const [track, fill, text] = [make("i", "track"), make("i", "fill"), make("span", "text")];
  track.append(fill);
  track.setAttribute("aria-hidden", "true");
  place.append(text, track);
  return (share, words) => {
    put(text, words);
    track.classList.toggle("empty", share === null);
    fill.style.width = `${Math.min(Math.max(share ?? 0, 0), 1) * 100}%`;
    fill.classList.toggle("full", (share ?? 0) >= 0.95);
  };
}

async function drain(row) {
  const { name, draining } = row;
  const text = draining
    ? "The worker takes requests again."
    : "The worker gets nothing new. Requests in flight finish.";
  const verb = draining ? "Undrain" : "Drain";
  if (!(await confirm({ title: `${verb} ${name}?`, text, go: verb }))) return;
  const path = `/workers/${encodeURIComponent(name)}/${verb.toLowerCase()}`;
  const answer = await call("POST", path);
  const done = `${name} ${draining ? "takes requests again" : "drains"}.`;
  say(answer.ok ? done : `${name}: ${fault(answer)}`, !answer.ok);
}
