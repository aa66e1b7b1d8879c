// The explain box: a request, where it would go, and why.

import { fault, sendText } from "./calls.js";
import { count, make, percent, short } from "./figures.js";

const SHOWN_MAX = 12;

const BECAUSE = {
  only_candidate: "it is the only candidate",
  sticky: "it holds most of the prompt",
  holder_too_busy: "another rank holds more, but its wait is longer than the prefill it saves",
  chance: "no rank holds any of it, and several cost the same",
  cheapest: "it costs least, and no rank holds any of the prompt",
  session_kept: "it is the anchor of the session",
  session_moved: "the anchor of the session has no room, or too much to do",
  cheapest_pair: "with its prefill rank it is the cheapest pair",
  no_pair_has_room: "no pair has room",
};

const EXAMPLE = {
  model: "",
  messages: [{ role: "user", content: "Hello" }],
};

export class Explain {
  constructor({ body, path, button, answer }) {
    Object.assign(this, { body, path, button, answer });
    button.addEventListener("click", () => this.ask());
    body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.ask();
    });
  }

  /** An example with a model that is there, until something is typed. */
  suggest(model, mode) {
    this.mode = mode;
    if (this.body.value || !model) return;
    this.body.value = JSON.stringify({ ...EXAMPLE, model }, null, 2);
  }

  async ask() {
    this.button.disabled = true;
    try {
      const path = `/debug/overlap?endpoint=${encodeURIComponent(this.path.value)}`;
      const answer = await sendText(path, this.body.value);
      const shown = answer.ok ? explained(answer.json, this.mode) : [wrong(fault(answer))];
      this.answer.replaceChildren(...shown);
    } catch {
      this.answer.replaceChildren(wrong("The router does not answer."));
    }
    this.button.disabled = false;
  }
}

const wrong = (text) => make("p", "wrong", `✕ ${text}`);

function explained(said, mode) {
  const rank = said.chosen;
  const verdict = make("p", "verdict");
  if (rank) {
    verdict.append("Goes to ", make("b", "", `${rank.worker}, rank ${rank.dp_rank}`));
    const why = BECAUSE[said.because] ?? `of the policy ${said.because}`;
    verdict.append(`, because ${why}${said.by_chance ? " (one of several by chance)" : ""}.`);
  } else if (said.waits_for) {
    const { worker, dp_rank } = said.waits_for;
    verdict.append("Waits in the queue for room on ", make("b", "", `${worker}, rank ${dp_rank}`));
    verdict.append(": every other rank costs more.");
  } else {
    const why = said.none_because ?? said.route_refused ?? "none fits";
    const waits = said.none_because === "no rank has room" && mode !== "off";
    verdict.append(`Goes to no rank now: ${why}.${waits ? " It waits in the queue." : ""}`);
  }
  const parts = [`policy ${said.policy}`, `model ${said.model}`];
  if (said.prefill_chosen) {
    const { worker, dp_rank } = said.prefill_chosen;
    parts.push(`prefill on ${worker}, rank ${dp_rank}`);
  }
  const { bytes, not_matched } = said.prompt;
  parts.push(not_matched ? `not matched: ${not_matched}` : `prompt ${count(bytes)} bytes`);
  return [verdict, make("p", "note", parts.join(" · ")), table(said)];
}

function stateOf(rank) {
  if (rank.draining) return "◐ draining";
  if (rank.state === "unused") return "○ unused";
  if (rank.state !== "up") return `✕ ${rank.state}`;
  if (!rank.breaker_admits) return "⊘ paused";
  return rank.has_room ? "● has room" : "! full";
}

function table(said) {
  const isChosen = (rank) => rank.rank === said.chosen?.rank;
  const isUsable = (rank) => rank.breaker_admits && rank.state === "up" && !rank.draining;
  const ranks = [...said.ranks].sort((a, b) =>
    isChosen(b) - isChosen(a) || isUsable(b) - isUsable(a) || a.cost - b.cost);
  const made = make("table", "ranks");
  const head = make("tr");
  const names = ["Rank", "Holds", "To compute", "Queued", "Cost", "State"];
  head.append(...names.map((name) => Object.assign(make("th", "", name), { scope: "col" })));
  const top = make("thead");
  top.append(head);
  const rows = make("tbody");
  for (const rank of ranks.slice(0, SHOWN_MAX)) {
    const row = make("tr", isChosen(rank) ? "chosen" : "");
    const name = `${isChosen(rank) ? "➜ " : ""}${rank.worker}, ${rank.dp_rank}`;
    const held = said.prompt.bytes ? rank.weighed_overlap_bytes / said.prompt.bytes : 0;
    const guess = rank.guess ? " guessed" : "";
    const state = stateOf(rank);
    const cells = [
      name,
      `${percent(held)}${guess}`,
      `${short(rank.uncached_tokens)} tokens`,
      `${short(rank.cost_parts.queued_tokens)} tokens`,
      short(rank.cost),
      state,
    ];
    row.append(...cells.map((text) => make("td", "", text)));
    rows.append(row);
  }
  made.append(top, rows);
  const more = ranks.length - SHOWN_MAX;
  if (more > 0) made.append(make("caption", "", `and ${count(more)} more ranks`));
  return made;
}
