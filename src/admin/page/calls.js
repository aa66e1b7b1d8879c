// Calls of the admin API: the stream, and what changes something. The token is in this module's
// memory alone.

let token = "";

const find = (id) => document.getElementById(id);

function headers(more) {
  return token ? { ...more, authorization: `Bearer ${token}` } : { ...more };
}

/** Shows a text to all, and reads it to those who listen. */
export function say(text, isBad = false) {
  const banner = find("banner");
  banner.textContent = text;
  banner.hidden = !text;
  banner.classList.toggle("bad", isBad);
  find("said").textContent = text;
}

/** Opens a dialog, and resolves with what `answer` says once `go` is pressed; else null. */
function open(dialog, { go, cancel, answer }) {
  return new Promise((resolve) => {
    const stop = new AbortController();
    const end = (value) => {
      stop.abort();
      dialog.close();
      resolve(value);
    };
    const on = (element, name, act) =>
      element.addEventListener(name, act, { signal: stop.signal });
    on(go, "click", () => end(answer()));
    on(cancel, "click", () => end(null));
    on(dialog, "cancel", (event) => {
      event.preventDefault();
      end(null);
    });
    on(dialog, "keydown", (event) => {
      if (event.key === "Enter" && event.target.tagName === "INPUT") end(answer());
    });
    dialog.showModal();
  });
}

let asking = null;

/** Asks for the token; false if there is none. One dialog at a time. */
export function askToken(why) {
  asking ??= (async () => {
    find("token-why").textContent =
      why ?? "The token stays in the memory of this page, until you close or reload it.";
    const input = find("token-input");
    input.value = "";
    const given = await open(find("token-dialog"), {
      go: find("token-use"),
      cancel: find("token-cancel"),
      answer: () => input.value.trim(),
    });
    input.value = "";
    if (given !== null) token = given;
    find("token-button").textContent = token ? "Token ✓" : "Token…";
    asking = null;
    return given !== null;
  })();
  return asking;
}

/** Asks whether to go on; the time that was chosen, true, or null. */
export function confirm({ title, text, go, withTime = false }) {
  find("confirm-title").textContent = title;
  find("confirm-text").textContent = text;
  find("confirm-go").textContent = go;
  find("confirm-time-label").hidden = !withTime;
  const answer = () => (withTime ? find("confirm-time").value : true);
  return open(find("confirm-dialog"), {
    go: find("confirm-go"),
    cancel: find("confirm-cancel"),
    answer,
  });
}

/** A call with its answer as JSON. Asks for the token where the router wants one. */
export async function call(method, path, body) {
  for (;;) {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const answer = await send(method, path, text);
    if (answer) return answer;
  }
}

/** The same with a body as its user wrote it. Null: try again, with the token that was given. */
async function send(method, path, body) {
  const type = body === undefined ? {} : { "content-type": "application/json" };
  const answer = await fetch(path, { method, body, headers: headers(type), cache: "no-store" });
  const text = await answer.text();
  if (answer.status === 401 || answer.status === 403) {
    const error = parsed(text).error ?? "The router refuses this call.";
    if (typeof error === "string" && (await askToken(error))) return null;
  }
  return { ok: answer.ok, status: answer.status, json: parsed(text), text };
}

export async function sendText(path, body) {
  for (;;) {
    const answer = await send("POST", path, body);
    if (answer) return answer;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/** What an answer says went wrong. */
export function fault(answer) {
  const error = answer.json.error;
  return error?.message ?? error ?? (answer.text.slice(0, 200) || `status ${answer.status}`);
}

/**
 * Reads the stream for good: `onSnapshot` gets each snapshot, `onLink` whether it flows. After an
 * end it is opened again, at first soon. A stream that is silent counts as ended.
 */
export async function follow({ onSnapshot, onLink }) {
  let waits = 0;
  for (;;) {
    try {
      const answer = await read(() => {
        waits = 0;
        onLink(true);
      }, onSnapshot);
      if (answer === 401 || answer === 403) {
        onLink(false, "needs a token");
        if (!(await askToken("Reading needs a token: that of readers, or the admin token."))) {
          await until(30_000);
        }
        continue;
      }
      onLink(false, answer === 503 ? "busy" : "lost");
    } catch {
      onLink(false, "lost");
    }
    waits = Math.min(waits + 1, 5);
    await until(400 * waits);
  }
}

const SILENCE_MAX_MS = 10_000;

async function read(onOpen, onSnapshot) {
  const stop = new AbortController();
  const { signal } = stop;
  const answer = await fetch("/live", { headers: headers(), cache: "no-store", signal });
  if (!answer.ok) return answer.status;
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const silence = setTimeout(() => stop.abort(), SILENCE_MAX_MS);
    const { done, value } = await reader.read();
    clearTimeout(silence);
    if (done) return 0;
    const parts = (unread + value).split("\n\n");
    unread = parts.pop();
    for (const part of parts) onSnapshot(JSON.parse(part.slice("data: ".length)));
  }
}

const until = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
