// The page: one stream feeds all parts.

import { askToken, follow } from "./calls.js";
import { Figures } from "./charts.js";
import { Explain } from "./explain.js";
import { Recent, percent, put, span, sumOf } from "./figures.js";
import { Fleet } from "./fleet.js";
import { Chips, Events, Pools, Stages, Tenants } from "./flow.js";

/** Time over which refusals count. */
const REFUSALS_MS = 10_000;

const find = (id) => document.getElementById(id);

const recent = new Recent();
const figures = new Figures(find("figures"));
const fleet = new Fleet({
  find: find("fleet-find"),
  sort: find("fleet-sort"),
  scroll: find("fleet-scroll"),
  space: find("fleet-space"),
  table: find("fleet-table"),
  summary: find("fleet-summary"),
  map: find("map"),
  canvas: find("map-canvas"),
  none: find("fleet-none"),
});
const pools = new Pools(find("pools"));
const stages = new Stages(find("stages"));
const codes = new Chips(find("codes"), {
  metric: "forebay_requests_total",
  label: "code",
  none: "no request yet",
});
const reasons = new Chips(find("reasons"), {
  metric: "forebay_rejected_total",
  label: "reason",
  tip: "see the page Errors of the manual",
  none: "nothing refused",
});
const tenants = new Tenants(find("tenants"), find("tenants-rows"));
const events = new Events(find("events"));
const explain = new Explain({
  body: find("explain-body"),
  path: find("explain-path"),
  button: find("explain-button"),
  answer: find("explain-answer"),
});

function onSnapshot(snapshot) {
  const isOther = recent.isOther(snapshot);
  if (isOther) {
    recent.forget();
    figures.forget();
    events.forget();
    events.add("link", "the router was started anew", Date.now());
  }
  // The minute before the page was opened. A page that is open already has it.
  if (!recent.newest) {
    for (const past of snapshot.history ?? []) {
      if (past.uptime_ms >= snapshot.uptime_ms) break;
      recent.push(past);
      figures.remember(recent, past);
    }
  }
  recent.push(snapshot);
  head(snapshot);
  fleet.update(snapshot);
  figures.update(recent, { ...snapshot, usablePlaces: fleet.usablePlaces() });
  pools.update(snapshot);
  stages.update(recent);
  codes.update(snapshot.requests_total);
  reasons.update(snapshot.rejected_total, (reason) =>
    recent.rate((one) => one.rejected_total[reason] ?? 0, REFUSALS_MS));
  tenants.update(recent);
  events.update(snapshot.events);
  document.body.dataset.uptime = snapshot.uptime_ms;
}

function head(snapshot) {
  const { whole, reasons: why, replicas } = snapshot;
  if (whole) {
    put(find("version"), whole.version);
    put(find("policy"), whole.policy);
    explain.suggest(whole.workers.flatMap((worker) => worker.models)[0], whole.queue_mode);
  }
  put(find("uptime"), span(snapshot.uptime_ms));
  const others = replicas ? `${replicas.replicas.length + 1}` : "alone";
  const lost = replicas?.peers ? "peer lost" : "NATS lost";
  put(find("replicas"), replicas && !replicas.connected ? lost : others);
  const stalled = snapshot.stalled.filter(Boolean).length;
  const reason = stalled ? [...why, `${stalled} shards stalled`] : why;
  const [state, word] = STATES[snapshot.state];
  const all = [...reason, ...snapshot.concerns, ...snapshot.orders, ...refusals()];
  const text = all.length ? `${word}: ${all.join("; ")}` : word;
  put(find("ready"), text);
  find("ready").className = `ready ${state}`;
  const name = { bad: "✕ Forebay", warn: "▲ Forebay", held: "■ Forebay" }[state] ?? "Forebay";
  if (document.title !== name) document.title = name;
}

/** Class and text of each state of `/readyz`. */
const STATES = {
  "not ready": ["bad", "✕ Not ready"],
  degraded: ["warn", "▲ Degraded"],
  refusing: ["held", "■ Refusing"],
  ready: ["", "● Ready"],
};

/**
 * The share of requests in the last seconds that were refused, with the most frequent reason. The
 * share is no part of the state: clients may be at fault, or an operator may have ordered it.
 */
function refusals() {
  const [refused] = recent.growth((one) => sumOf(one.rejected_total), REFUSALS_MS);
  const [answered] = recent.growth((one) => sumOf(one.requests_total), REFUSALS_MS);
  if (refused <= 0) return [];
  const of = (reason) => recent.growth((one) => one.rejected_total[reason] ?? 0, REFUSALS_MS)[0];
  const names = Object.keys(recent.newest.rejected_total);
  const most = names.reduce((best, name) => (of(name) > of(best) ? name : best));
  return [`${percent(refused / Math.max(answered, refused))} of requests refused, ${most}`];
}

const LINKS = {
  lost: "✕ connection lost, trying again",
  busy: "✕ open in too many places, trying again",
  "needs a token": "✕ needs a token",
};

function onLink(isUp, why) {
  const link = find("link");
  put(link, isUp ? "● live" : LINKS[why]);
  link.classList.toggle("bad", !isUp);
  document.body.classList.toggle("stale", !isUp);
  document.body.dataset.link = isUp ? "up" : why;
}

find("token-button").addEventListener("click", () => askToken());
follow({ onSnapshot, onLink });
