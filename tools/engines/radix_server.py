#!/usr/bin/env python3
"""SGLang's own RadixCache, event recorder and ZMQ publisher behind a few HTTP paths, without a model.

Everything that decides what is cached and what is announced is SGLang's code; this file plays the scheduler: it
matches, locks, evicts at the pool's size, inserts after the prefill and again at the end, and publishes after each
step, for several requests at once. One tree and one publisher per data-parallel rank.

    GET  /health /server_info /v1/models /model_info    what a router asks an SGLang server
    POST /work?requests=N                   serves N random requests; answers when all events are handed over
    POST /flush                             empties every tree, as /flush_cache does
    GET  /view                              what the trees hold now, one line a node in preorder:
                                            rank, pages before the node, cache salt, LoRA name, its tokens

usage: PYTHONPATH=SGLANG_ROOT radix_server.py --port P --events P --replay P [--ranks 2] [--page 16] [--seed 1]
"""

import argparse
import collections
import http.server
import json
import random
import time
import types
import urllib.parse
from array import array

from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.events import KvEventLoraNames
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

# Ids of single bytes in tests/data/tokenizer, so that one text is one list of tokens.
TOKENS = range(0, 64)
LORA_ID = "0123456789abcdef" * 2
# (extra_key, cache_salt), and how often. "plain-x" has no name in SGLang's events: its blocks look like the first's.
NAMESPACES = [(None, None)] * 12 + [(None, "tenant-a"), (None, "tenant-b"), ("plain-x", None), (LORA_ID, None)]


class NoPool:
    """The tree's values are never read, so there is nothing to free."""

    device = "cpu"

    def free_segment(self, values, start_pos=0):
        pass

    def free(self, values):
        pass


class Rank:
    """One tree with the requests that run on it."""

    def __init__(self, given, number):
        names = KvEventLoraNames()
        names.register(types.SimpleNamespace(lora_id=LORA_ID, extra_key=LORA_ID), "adapter")
        self.page = given.page
        self.capacity_tokens = given.tokens
        self.random = random.Random(given.seed * 1000 + number)
        self.tree = RadixCache(CacheInitParams(
            disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=NoPool(), page_size=given.page,
            enable_kv_cache_events=True, kv_event_lora_names=names, is_eagle=given.eagle, dynamo_kv_event_format=given.dynamo,
        ))  # fmt: skip
        self.publisher = ZmqEventPublisher(
            number, endpoint=f"tcp://*:{given.events}", replay_endpoint=f"tcp://*:{given.replay}",
            buffer_steps=given.buffer, topic="sg",
        )  # fmt: skip
        self.running = []
        self.prompts = [self.tokens(self.random.randint(10, 160)) for _ in range(12)]
        self.talks = collections.deque(maxlen=64)
        self.count = collections.Counter()
        self.publish()

    def tokens(self, count):
        return [self.random.choice(TOKENS) for _ in range(count)]

    def publish(self):
        events = self.tree.kv_events.take()
        if events:
            self.count["batches"] += 1
            self.count["events"] += len(events)
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def key(self, tokens, names):
        return RadixKey(array("q", tokens), extra_key=names[0], cache_salt=names[1])

    def start(self):
        if self.talks and self.random.random() < 0.5:
            names, before = self.random.choice(self.talks)
        else:
            names, before = self.random.choice(NAMESPACES), self.random.choice(self.prompts)
        prompt = before + self.tokens(self.random.randint(1, 80))
        found = self.tree.match_prefix(MatchPrefixParams(key=self.key(prompt, names))).last_device_node
        self.tree.inc_lock_ref(found)
        over = self.held_tokens() + len(prompt) - self.capacity_tokens
        if over > 0:
            self.count["evictions"] += 1
            self.tree.evict(EvictParams(num_tokens=over))
        node = self.insert(prompt, names)
        self.tree.dec_lock_ref(found)
        self.tree.inc_lock_ref(node)
        self.running.append((prompt, names, node))

    def finish(self):
        prompt, names, node = self.running.pop(self.random.randrange(len(self.running)))
        whole = prompt + self.tokens(self.random.randint(0, 60))
        self.insert(whole, names)
        self.tree.dec_lock_ref(node)
        if len(whole) < 480:
            self.talks.append((names, whole))

    def insert(self, tokens, names):
        key = self.key(tokens, names)
        self.tree.insert(InsertParams(key=key))
        return self.tree.match_prefix(MatchPrefixParams(key=key)).last_device_node

    def held_tokens(self):
        return self.tree.evictable_size() + self.tree.protected_size()

    def work(self, count):
        for _ in range(count):
            while self.running and (len(self.running) >= 6 or self.random.random() < 0.5):
                self.finish()
                self.publish()
            self.start()
            self.publish()
        while self.running:
            self.finish()
            self.publish()

    def flush(self):
        self.tree.reset()
        self.talks.clear()
        self.publish()

    def view(self, number):
        """Every node with the pages before it. Namespaces that events cannot tell apart are merged by the reader."""
        waiting = [(child, 0) for child in self.tree.root_node.children.values()]
        while waiting:
            node, depth = waiting.pop()
            lora = "adapter" if node.key.extra_key == LORA_ID else ""
            tokens = " ".join(str(token) for token in node.key.raw_token_ids()[: len(node.key)])
            yield f"{number}\t{depth}\t{node.key.cache_salt or ''}\t{lora}\t{tokens}\n"
            after = depth + len(node.key) // self.page
            waiting += [(child, after) for child in node.children.values()]


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, text, status=200, kind="application/json"):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        given, ranks = self.server.given, self.server.ranks
        path = urllib.parse.urlparse(self.path).path
        if path == "/health":
            self.reply("")
        elif path == "/model_info":
            self.reply(json.dumps({"model_path": "tiny", "is_generation": True}))
        elif path == "/v1/models":
            card = {"id": "tiny", "object": "model", "owned_by": "sglang", "root": "tiny", "parent": None}
            self.reply(json.dumps({"object": "list", "data": [card]}))
        elif path in ("/server_info", "/get_server_info"):
            events = {
                "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": given.events, "topic": "sg",
                "block_size": given.page, "dp_size": given.ranks, "replay_endpoint_port_base": given.replay,
            }  # fmt: skip
            self.reply(json.dumps({"served_model_name": "tiny", "page_size": given.page, "dp_size": given.ranks,
                                   "kv_events": events, "max_total_num_tokens": given.tokens, "version": "0.5.23"}))  # fmt: skip
        elif path == "/view":
            self.reply("".join(line for number, rank in enumerate(ranks) for line in rank.view(number)), kind="text/plain")
        else:
            self.reply("{}", 404)

    def do_POST(self):
        ranks = self.server.ranks
        asked = urllib.parse.urlparse(self.path)
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if asked.path == "/work":
            count = int(urllib.parse.parse_qs(asked.query)["requests"][0])
            for number, rank in enumerate(ranks):
                rank.work(count // len(ranks) + (number < count % len(ranks)))
        elif asked.path == "/flush":
            for rank in ranks:
                rank.flush()
        else:
            self.reply("{}", 404)
            return
        self.reply(json.dumps([{**rank.count, "tokens": rank.held_tokens()} for rank in ranks]))

    def log_message(self, *_):
        pass


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--events", type=int, required=True, help="port of rank 0; the next ones follow")
    options.add_argument("--replay", type=int, required=True, help="the same for replays")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--page", type=int, default=16)
    options.add_argument("--tokens", type=int, default=12_000, help="KV pool of one rank")
    options.add_argument("--buffer", type=int, default=10_000, help="batches kept for replays")
    options.add_argument("--eagle", action="store_true", help="pages of token pairs, as with EAGLE; a view has the first of each pair")
    options.add_argument("--dynamo", action="store_true", help="events with block ids of their own for every extra_key")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", given.port), Answers)
    server.given, server.ranks = given, [Rank(given, number) for number in range(given.ranks)]
    server.serve_forever()


if __name__ == "__main__":
    main()
