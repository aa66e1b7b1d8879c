#!/usr/bin/env python3
"""vLLM's own KV-cache manager of hybrid models and its ZMQ publisher, without a model.

Everything that decides what is cached, served and announced is vLLM's code; this file plays the scheduler: it asks what is
cached, allocates prefill chunks and generated tokens, frees, and publishes after each step, for several requests at once.
It begins with SIGUSR1.

usage: kv_managers.py --groups NAME --events P --rows FILE [--requests 300] [--blocks 400] [--seed 1]
       NAME   one of the keys of GROUPS
       FILE   a line for each request: nanoseconds since 1970, rank, tokens that were cached, cache salt, prompt tokens
"""

import argparse
import random
import signal
import time

import torch
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.request import Request

CONTEXT_TOKENS = 2048


def full(block):
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=torch.float32)


def window(block, tokens):
    return SlidingWindowSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=torch.float32, sliding_window=tokens)


def state(block, mode):
    return MambaSpec(block_size=block, shapes=((block, 128),), dtypes=(torch.float32,), mamba_cache_mode=mode)


# Groups of a model in the order of vLLM.
GROUPS = {
    "gemma3": [*[window(32, 128)] * 5, full(32)],
    "gpt-oss": [window(16, 128), full(16)],
    "full-first": [full(16), window(16, 512), window(16, 512)],
    "two-windows": [full(16), window(16, 64), window(16, 256)],
    "mamba": [*[state(64, "all")] * 3, full(64)],
    "mamba-align": [*[state(64, "align")] * 3, full(64)],
    "window-and-mamba": [full(32), window(32, 128), state(32, "all")],
}


class Engine:
    """One rank with the requests that run on it."""

    def __init__(self, given):
        specs = GROUPS[given.groups]
        self.block = max(spec.block_size for spec in specs)
        groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(self.block, sha256)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=given.blocks, kv_cache_tensors=[], kv_cache_groups=groups), max_model_len=CONTEXT_TOKENS,
            scheduler_block_size=self.block, hash_block_size=self.block, enable_caching=True, enable_kv_cache_events=True,
        )  # fmt: skip
        self.splits = given.groups.endswith("align")
        self.publisher = ZmqEventPublisher(0, endpoint=f"tcp://*:{given.events}", topic="kv")
        self.random = random.Random(given.seed)
        self.rows = open(given.rows, "w", encoding="utf-8")
        self.prompts = [self.tokens(self.random.randint(20, 500)) for _ in range(10)]
        self.talks = []
        self.running = []
        self.number = 0

    def tokens(self, count):
        return [self.random.randrange(2000) for _ in range(count)]

    def publish(self):
        if hasattr(self.manager, "new_step_starts"):
            self.manager.new_step_starts()
        events = self.manager.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def prompt(self):
        if self.talks and self.random.random() < 0.6:
            before = self.random.choice(self.talks)
            # Another answer than the one before, or the same.
            before = before[: self.random.choice([len(before), self.random.randint(1, len(before))])]
        else:
            before = self.random.choice(self.prompts)
        return before + self.tokens(self.random.choice([0, 1, 40, self.random.randint(1, 300)]))

    def start(self):
        tokens = self.prompt()[: CONTEXT_TOKENS - 200]
        self.number += 1
        asked = Request(str(self.number), tokens, SamplingParams(max_tokens=100), None, block_hasher=self.hasher)
        # What was published before has come when this is noted.
        time.sleep(0.05)
        at_ns = time.time_ns()
        found, cached, *_ = self.manager.get_computed_blocks(asked)
        self.rows.write(f"{at_ns}\t0\t{cached}\t\t{' '.join(map(str, tokens))}\n")
        time.sleep(0.001)
        first = True
        while asked.num_computed_tokens < len(tokens):
            begun = asked.num_computed_tokens + (cached if first else 0)
            count = min(len(tokens) - begun, self.random.choice([256, 512]))
            if self.splits and begun + count < len(tokens):
                count -= (begun + count) % self.block
            if not self.step(asked, count, cached if first else 0, found if first else None):
                return self.end(asked)
            asked.num_computed_tokens = begun + count
            first = False
            self.publish()
        self.running.append(asked)

    def step(self, asked, count, cached=0, found=None):
        for _ in range(len(self.running) + 1):
            if self.manager.allocate_slots(asked, count, cached, found) is not None:
                return True
            if self.running:
                self.end(self.running.pop(0))
        return False

    def decode(self, asked):
        for _ in range(self.random.randint(1, 90)):
            asked.append_output_token_ids(self.random.randrange(2000))
            if not self.step(asked, 1):
                break
            asked.num_computed_tokens += 1
            self.publish()
        self.end(asked)

    def end(self, asked):
        self.manager.free(asked)
        whole = list(asked.all_token_ids)
        if len(whole) < CONTEXT_TOKENS - 500:
            self.talks = [*self.talks[-30:], whole]

    def run(self, requests):
        for _ in range(requests):
            self.start()
            while self.running and self.random.random() < 0.6:
                self.decode(self.running.pop(self.random.randrange(len(self.running))))
            if self.random.random() < 0.004:
                while self.running:
                    self.end(self.running.pop())
                self.manager.reset_prefix_cache()
                self.publish()
        self.rows.close()
        time.sleep(1)
        self.publisher.shutdown()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--groups", choices=GROUPS, required=True)
    options.add_argument("--events", type=int, required=True)
    options.add_argument("--rows", required=True)
    options.add_argument("--requests", type=int, default=300)
    options.add_argument("--blocks", type=int, default=400)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    engine = Engine(given)
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    engine.run(given.requests)


if __name__ == "__main__":
    main()
