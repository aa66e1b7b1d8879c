"""vLLM's own KV-cache managers of hybrid models: what the index tells of each prompt, and what the manager found in its cache."""

import gzip
import os
import signal
import time

import rig
from engines.radix_check import replayed_exactly
from engines.vllm_server import ports_in_a_row

KINDS = ["gemma3", "gpt-oss", "full-first", "two-windows", "mamba", "mamba-align", "window-and-mamba"]
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kv_managers.py")


def capture(folder, groups, requests):
    """Leaves a recording and the requests beside it; returns what was cached of each."""
    venv = rig.needed_env("VLLM_VENV", "a venv with vLLM for the CPU, made by tools/engines/setup")
    events = ports_in_a_row(1)
    path = os.path.join(folder, f"vllm-0.32.0-managers-hybrid-{groups}")
    with rig.Rig() as started:
        argv = [f"{venv}/bin/python", "-W", "ignore", SCRIPT, "--groups", groups, "--events", str(events)]
        argv += ["--rows", f"{path}.rows", "--requests", str(requests)]
        engine = started.start(f"managers-{groups}", argv, {"PATH": f"{venv}/bin:{os.environ['PATH']}"})
        engine.wait_for("the manager", lambda: "ready" in engine.log_text())
        argv = [rig.binary(), "record", "--out", f"{path}.kvrec", "--from", f"tcp://127.0.0.1:{events}"]
        recording = started.start(f"record-{groups}", argv)
        recording.wait_for("the recording", lambda: "recording" in recording.log_text())
        # The publisher tells nobody of its subscribers.
        time.sleep(1.5)
        engine.child.send_signal(signal.SIGUSR1)
        engine.child.wait(60 + requests)
        recording.child.send_signal(signal.SIGINT)
        recording.child.wait(30)
    with open(f"{path}.rows", encoding="utf-8") as file:
        rows = file.read()
    os.remove(f"{path}.rows")
    with gzip.GzipFile(f"{path}.requests.gz", "wb", mtime=0) as out:
        out.write(rows.encode())
    return [int(row.split("\t")[2]) for row in rows.splitlines()]


def check(given, score):
    for groups in KINDS:
        cached = capture(given.captures, groups, given.chats * 2)
        hits = sum(1 for tokens in cached if tokens)
        print(f"managers of {groups}: {len(cached)} requests, {hits} of them with a hit")
        score.check(f"managers of {groups}: requests", len(cached) == given.chats * 2 and hits > 20, f"{len(cached)}, {hits}")
    good, why = replayed_exactly(given.captures)
    score.check("managers: the recordings give the same cached tokens, exactly", good, why)
