"""A fleet of simulated engines with many ranks and clients that ask, for the live page and `forebay top`. Standard library only."""

import contextlib
import glob
import http.client
import json
import os
import random
import threading
import time
import urllib.request

from rig import ROOT, get

MODEL = "Qwen3-8B"
MODEL_DIR = os.path.join(ROOT, "tests", "data", "tokenizer")
# Below the ports that the kernel hands out by itself; an engine uses one for each rank, and 100 further on as many.
EVENTS_PORT_FIRST = 12_000


def ask(url, prompt, tokens, model="m"):
    body = {"model": model, "max_tokens": tokens, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    fields = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), fields)
    with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(request, timeout=60) as answer:
        while answer.read(4096):
            pass


class Load:
    """Clients that ask, until they are stopped."""

    def __init__(self, url, clients, tokens=24, pause_s=0.0, model="m"):
        self.on, self.model = True, model
        self.threads = [threading.Thread(target=self.work, args=(url, n, tokens, pause_s)) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def work(self, url, seed, tokens, pause_s):
        chance = random.Random(seed)
        while self.on:
            topic = chance.randrange(12)
            ask(url, f"topic {topic} " * 300 + f"question {chance.random()}", tokens, self.model)
            time.sleep(pause_s)

    def stop(self):
        self.on = False
        for thread in self.threads:
            thread.join()


def worker_states(admin):
    return {worker["name"]: worker["draining"] for worker in json.loads(get(admin + "/workers")[1])["workers"]}


def fleet(rig, ranks):
    """Engines with that many ranks together, and the router before them."""
    count = 4 if ranks <= 32 else 6
    engines = []
    for place in range(count):
        each = ranks // count
        base = EVENTS_PORT_FIRST + place * 200
        flags = ["--model", MODEL, "--model-dir", MODEL_DIR, "--ranks", str(each)]
        flags += ["--itl-ms", "25", "--concurrency", "8", "--kv-blocks", "2000", "--prefill-tokens-per-s", "20000"]
        events = ["--kv-events", f"tcp://127.0.0.1:{base}", "--replay", f"tcp://127.0.0.1:{base + 100}"]
        engines.append(rig.engine(*flags, *events))
    flags = ["--rank-concurrency-max", "8", "--queue-mode", "pool", "--model-dir", MODEL_DIR]
    router = rig.router([engine.url for engine in engines], *flags)
    return engines, router


def post(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    fields = {} if body is None else {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, fields, method="POST"), timeout=5) as answer:
        return answer.read()


def cpu_ns(pid):
    """Time on a CPU of each thread."""
    threads = {}
    for folder in glob.glob(f"/proc/{pid}/task/*"):
        with open(f"{folder}/comm", encoding="utf-8") as comm, open(f"{folder}/schedstat", encoding="ascii") as stat:
            threads[f"{comm.read().strip()} {os.path.basename(folder)}"] = int(stat.read().split()[0])
    return threads
