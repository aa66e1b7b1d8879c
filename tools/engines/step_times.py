"""How long the steps of an engine take, measured from outside, and the figures of `forebay simulate --engine` that fit them.

A step takes `fixed + max(tokens, knee) * token + attended * attention + context * kv_read`. `attended`: pairs of a prompt's
token and a token before it. `context`: tokens whose KV the sequences that decode read. A step of fewer tokens than `knee` is
bound by reading the weights. A request takes `request` outside of its steps.
"""

import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse

# Ids of a tokenizer that are words.
IDS = (300, 900)
FIGURES = ("request", "fixed", "token", "attention", "kv_read")
KNEES = (0, *(2 ** (power / 4) for power in range(0, 45)))


class NotTogether(Exception):
    """The first streams ended before the last had begun to decode."""


def streamed(url, model, prompt, tokens, at=None, timeout=300):
    """(when it was sent, when each event came, usage) of a completion. `at`: when to send it."""
    where = urllib.parse.urlsplit(url)
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    link = http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)
    link.connect()
    time.sleep(max(0.0, (at or 0) - time.monotonic()))
    sent = time.monotonic()
    link.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    answer = link.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{url}: {answer.status}: {answer.read()[:300]!r}")
    came, usage = [], {}
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if event["choices"] and event["choices"][0]["text"] is not None and len(came) < tokens:
            came.append(time.monotonic())
    link.close()
    return sent, came, usage


def prompt(random_, tokens):
    return [random_.randint(*IDS) for _ in range(tokens)]


def chunks(tokens, step_tokens, cached=0):
    """(tokens, attended) of each step of a prompt that is alone."""
    done = cached
    while done < tokens:
        chunk = min(step_tokens, tokens - done)
        yield chunk, chunk * (done + chunk / 2)
        done += chunk


class Observation:
    """What one measured time is made of: `requests`, and the steps as (tokens, attended, context)."""

    def __init__(self, what, ms, requests, steps):
        self.what, self.ms, self.requests, self.steps = what, ms, requests, list(steps)

    def features(self, knee):
        dense = sum(max(tokens, knee) for tokens, _, _ in self.steps)
        attended, context = (sum(step[place] for step in self.steps) for place in (1, 2))
        return [self.requests, len(self.steps), dense, attended, context]


def prompts_alone(url, model, lengths, step_tokens, times, random_):
    """Times to the first token of prompts that nobody has seen, one after the other."""
    for length in lengths:
        took = []
        for _ in range(times):
            sent, came, _ = streamed(url, model, prompt(random_, length), 1)
            took.append((came[0] - sent) * 1_000)
        steps = ((tokens, attended, 0) for tokens, attended in chunks(length, step_tokens))
        yield Observation(f"prompt of {length}", statistics.mean(took), 1, steps)


def decoding(url, model, batches, contexts, tokens, random_):
    """Times between tokens of so many streams at once, behind prompts of these lengths."""
    for batch in batches:
        for context in contexts:
            came = [None] * batch

            def ask(place, words):
                came[place] = streamed(url, model, words, tokens)[1]

            words = [prompt(random_, context) for _ in range(batch)]
            threads = [threading.Thread(target=ask, args=(place, words[place])) for place in range(batch)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # Only while all of them decode.
            begin, end = max(times[0] for times in came), min(times[-1] for times in came)
            gaps, before = [], []
            for times in came:
                inside = [(place, at) for place, at in enumerate(times) if begin <= at <= end]
                gaps += [after[1] - at[1] for at, after in zip(inside, inside[1:])]
                before += [context + place for place, _ in inside[1:]]
            if len(gaps) < batch * 4:
                raise NotTogether(f"{batch} streams behind {context} tokens did not decode together for long enough")
            step = (batch, 0, batch * statistics.mean(before))
            yield Observation(f"{batch} streams behind {context}", statistics.mean(gaps) * 1_000, 0, [step])


def solved(rows, values):
    """Least squares without negative figures."""
    kept = list(range(len(rows[0])))
    while kept:
        matrix = [[sum(row[a] * row[b] for row in rows) for b in kept] + [sum(row[a] * value for row, value in zip(rows, values))] for a in kept]
        for at in range(len(kept)):
            pivot = max(range(at, len(kept)), key=lambda row: abs(matrix[row][at]))
            matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
            if abs(matrix[at][at]) < 1e-12:
                matrix[at][at] = 1e-12
            for row in range(len(kept)):
                if row != at:
                    part = matrix[row][at] / matrix[at][at]
                    matrix[row] = [value - part * above for value, above in zip(matrix[row], matrix[at])]
        found = [matrix[at][-1] / matrix[at][at] for at in range(len(kept))]
        least = min(range(len(kept)), key=found.__getitem__)
        if found[least] >= 0:
            return [found[kept.index(place)] if place in kept else 0.0 for place in range(len(rows[0]))]
        kept.pop(least)
    return [0.0] * len(rows[0])


def fitted(observations):
    """({figure: ms}, knee, relative errors): the knee with the least squares of the relative errors."""
    best = None
    for knee in KNEES:
        raw = [observation.features(knee) for observation in observations]
        scales = [max(abs(row[at]) for row in raw) or 1.0 for at in range(len(FIGURES))]
        rows = [[value / scale / observation.ms for value, scale in zip(row, scales)] for row, observation in zip(raw, observations)]
        found = [value / scale for value, scale in zip(solved(rows, [1.0] * len(rows)), scales)]
        errors = [sum(value * figure for value, figure in zip(row, found)) / observation.ms - 1 for row, observation in zip(raw, observations)]
        square = sum(error * error for error in errors)
        if best is None or square < best[0]:
            best = (square, dict(zip(FIGURES, found)), knee, errors)
    return best[1:]


def table(observations, errors):
    rows = ["| what | measured, ms | fit over measured |", "|---|---|---|"]
    rows += [f"| {observation.what} | {observation.ms:.1f} | {1 + error:.2f} |" for observation, error in zip(observations, errors)]
    return "\n".join(rows)


def toml(figures, knee, step_tokens, sequences):
    """The file of `forebay simulate --engine`."""
    ns = {name: round(ms * 1e6, 3) for name, ms in figures.items()}
    return (
        f"request_ns = {ns['request']}\nstep_tokens_max = {step_tokens}\nsequences_max = {sequences}\n\n[step]\n"
        f"fixed_ns = {ns['fixed']}\ntoken_ns = {ns['token']}\nattention_ns = {ns['attention']}\n"
        f"weights_ns = {round(knee * ns['token'], 3)}\nkv_read_ns = {ns['kv_read']}\n"
    )
