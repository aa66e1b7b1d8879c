"""The cases of tools/policies: traces, fleets and loads, and where a trace comes from.

Scenarios are made by the simulator. A trace of a file is looked up in the folders of --traces, or is written by a generator here.
"""

import dataclasses
import itertools
import json
import lzma
import os
import pathlib
import random

import rig

# Loads in percent at which a scenario goes from easy to full. A scenario of sessions slows down with the fleet.
SCENARIOS = {"chats": (100, 400), "shared": (50, 100, 180, 210), "agents": (50, 100, 150, 200), "documents": (30, 50, 80, 120)}
FILE_LOADS = (30, 50, 70, 85, 95)
# Where a frontier is looked at: a fleet that is busy and not full.
FRONTIER = {"shared": 180, "agents": 100, "documents": 80}
FILE_FRONTIER = 85

CONVERSATION = "conversation_trace.jsonl"
ENGINES = os.path.join(rig.ROOT, "benches", "engines")
MADE = pathlib.Path(rig.ROOT, "target", "policies")


@dataclasses.dataclass(frozen=True)
class Case:
    """A trace on a fleet, at some loads. `workers` of None: that of the command line."""

    name: str
    trace: str
    loads: tuple
    workers: int | None = None
    arguments: tuple = ()
    frontier: int | None = None


# Cases that no rule was tuned on, see `K8` of docs/benchmarks/policies.md.
MATRIX = (
    # The default cache: 427,000 tokens a rank, as an H100 has them beside an 8B model.
    Case("conv-h100-caches", CONVERSATION, (50, 70, 80, 100), 8),
    # The first 1,000 requests of Mooncake's older trace, as NVIDIA Dynamo has them.
    Case("moon1000", "moon1000.jsonl", (30, 50, 80, 100), 8),
    # Long chats of many users, as of the benchmark of the vLLM production stack.
    Case("mrqa", "mrqa.jsonl", (100, 200, 300), 8),
    # 164,000 tokens a rank: a GPU of 40 GB, or a larger model.
    Case("conv-tiny-caches", CONVERSATION, (30, 60, 80), 8, ("--kv-blocks", "320")),
    Case("conv-64-b200", CONVERSATION, (50, 80, 100), 64, ("--engine", os.path.join(ENGINES, "b200.toml"))),
    # Sessions of coding agents, recorded by kv-cache-tester: 79,000 prompt tokens in the mean, each turn after the turn before.
    Case("agents", "kvct_big.jsonl", (100, 300, 500), 8),
    # ServeGen's m-small: short prompts, and nothing shared.
    Case("short-16", "sg_m-small.csv", (30, 60, 80, 95), 16),
)


def scenarios(names):
    return [Case(name, f"generate:{name}", SCENARIOS[name], frontier=FRONTIER.get(name)) for name in names]


def of_file(path):
    name = os.path.splitext(os.path.basename(path))[0].replace("_trace", "")
    return Case(name, path, FILE_LOADS, frontier=FILE_FRONTIER)


def found(name, folders):
    """The path of a trace: made here, or in one of the folders, packed or not. None: it is not there."""
    if name == "mrqa.jsonl":
        return made(name, multi_round_qa)
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob(name)):
            return str(path)
        for path in sorted(folder.rglob(name + ".xz")):
            return made(name, lambda packed=path: lzma.decompress(packed.read_bytes()).decode())
    return None


def made(name, text):
    MADE.mkdir(parents=True, exist_ok=True)
    path = MADE / name
    path.write_text(text(), encoding="utf-8")
    return str(path)


def multi_round_qa(users=400, rounds=10, shared=1_000, history=20_000, question=100, answer=100, start_gap_s=2, think_s=15, seed=1):
    """Sessions of users with a long history each behind one system prompt, ten questions each. Starts and think times are by chance."""
    chance, numbers, block = random.Random(seed), itertools.count(1), 64
    system = list(itertools.islice(numbers, shared // block))
    lines, start_s = [], 0.0
    for user in range(users):
        start_s += chance.expovariate(1 / start_gap_s)
        full, tokens, turns = list(system), shared + history, []
        for turn in range(rounds):
            tokens += question
            full += itertools.islice(numbers, tokens // block - len(full))
            part = [next(numbers)] if tokens % block else []
            think = chance.expovariate(1 / think_s)
            turns.append({"t": start_s + 10 * turn, "think_time": think, "in": tokens, "out": answer, "hash_ids": full + part})
            tokens += answer
        lines.append(json.dumps({"id": str(user), "block_size": block, "requests": turns}) + "\n")
    return "".join(lines)
