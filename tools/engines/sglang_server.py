#!/usr/bin/env python3
"""SGLang's own Rust HTTP server and bootstrap registry, with a stand-in for the scheduler and no model.

Real: everything that speaks HTTP (parsing, templates, tokenizer, streams, errors, /abort_request, the registry's /route).
Played by this file, after SGLang's sources (disaggregation/common/conn.py, prefill.py, decode.py): a prefill rank
registers, waits for the decode rank that names the same room, computes, hands over; a decode rank asks the registry,
finds the prefill rank of the room, and has nothing to say before that rank has handed over. What is handed over is a
digest of the prompt, and every token of the answer follows from it: a decode rank that got no KV, or that of another
prompt, cannot give the answer that a server without disaggregation gives.

Prints one line a room, `ROOM number side outcome prompt_tokens`, with `--kv-port` one line a prompt, `PROMPT tokens cached`, and `OPEN 1` or `OPEN 0` when the first request comes or the last is gone.

With `--kv-port`, the pages of the prefix cache are published as KV events in SGLang's form. Nothing is evicted.

usage: sglang_server.py --root SGLANG_ROOT --model DIR --port P [--mode null|prefill|decode] [--dp-rank 0 --dp-size 1]
                        [--rank-port P] [--host 127.0.0.1] [--page 16] [--tokens-per-s 200] [--prefill-us 20] [--kv-port P]
       a rank listens on port + rank, its room partner on rank-port + rank, its events come from kv-port + rank;
       needs CPython 3.11 and msgspec, and pyzmq for events
"""

import argparse
import array
import hashlib
import importlib.util
import ipaddress
import json
import os
import queue
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import msgspec

FAKE_HOST = "2.2.2.2"
REGISTRY_TRIES = 15
# Positions in the array that the Rust frontend hands to the scheduler (managers/io_struct.py, TokenizedGenerateReqInput).
RID, SAMPLING, HOST, PORT, ROOM, ROUTED_RANK, PREFILL_RANK = 1, 8, 25, 26, 27, 30, 31
MAX_NEW_TOKENS = 0


class Request:
    """One prompt of one request, as the scheduler sees it."""

    def __init__(self, header, tokens):
        self.rid = header[RID]
        self.tokens = tokens
        self.host, self.port, self.room = header[HOST], header[PORT], header[ROOM]
        self.prefill_rank = header[PREFILL_RANK]
        self.tokens_max = max(1, min(int(header[SAMPLING][MAX_NEW_TOKENS] or 128), 512))
        self.digest = hashlib.sha256(tokens.tobytes()).hexdigest()
        self.cached = 0
        self.sent = 0
        self.seed = None
        self.peer = None
        self.until = None

    def next_token(self):
        """Ids of printable pieces of the tests' tokenizer."""
        self.sent += 1
        return 300 + (self.seed * 31 + self.sent * self.sent * 17) % 1500


def start_frontend(given):
    path = f"{given.root}/sglang/srt/rust_extensions/_server.cpython-311-x86_64-linux-gnu.so"
    spec = importlib.util.spec_from_file_location("_server", path)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    mode = getattr(extension.DisaggregationMode, given.mode.capitalize())
    # A real server says its API port here when the registry is part of the frontend, and the default on a decode server.
    registry_port = given.port if given.mode == "prefill" else 8998
    deployment = {"disaggregation_bootstrap_port": registry_port, "dp_size": given.dp_size, "dp_rank": given.dp_rank, "page_size": given.page}
    events = None
    if given.kv_port:
        events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": given.kv_port, "topic": "", "block_size": given.page, "dp_size": given.dp_size}
    launch = {
        "model_path": given.model, "served_model_name": "tiny", "disaggregation_mode": given.mode, "disaggregation_bootstrap_port": registry_port,
        "dp_size": given.dp_size, "page_size": given.page, "kv_events": events, "status": "ready", "max_total_num_tokens": 100_000,
        "max_req_input_len": 8000, "enable_http2": False,
    }  # fmt: skip
    model = extension.ModelConfig(
        context_len=8192, vocab_size=given.vocabulary, is_multimodal=False, model_type="llama", default_sampling_params=extension.DefaultSamplingParams()
    )  # fmt: skip
    return extension.Server(
        extension.ServerArgs(
            model_path=given.model, served_model_name="tiny", tokenizer_path=given.model, revision=None, load_format="auto", weight_version="default",
            hicache_storage_backend=None, hicache_storage_backend_extra_config=None, hicache_storage_prefetch_policy="best_effort",
            hicache_write_policy="write_through", host=given.host, port=given.port, grpc_port=None, log_level="warning", log_level_http=None,
            chat_template=None, default_chat_template_kwargs="{}", tool_call_parser="qwen25" if given.kv_port else None, reasoning_parser=None,
            stream_response_default_include_usage=False, tokenizer_worker_num=1, detokenizer_worker_num=1, skip_tokenizer_init=False,
            skip_server_warmup=True, health_generate_headers={}, default_priority_value=None, enable_request_header_overrides=True,
            incremental_streaming_output=False, disaggregation_mode=mode, model_config=model, preferred_sampling_params=None,
            default_max_new_tokens=128, lora_ids={}, enable_strict_thinking=False, limit_mm_data_per_request=[], allow_auto_truncate=False,
            enable_return_hidden_states=False, num_reserved_tokens=0, tokenizer_model_max_length=8192, version="0.5.23", max_total_num_tokens=100_000,
            deployment_info=json.dumps(deployment), launch_server_info=json.dumps(launch), load_snapshot_path=None, load_snapshot_dp_size=0,
            load_snapshot_dp_rank=0, accelerator="none", num_accelerators=1, metrics=None,
        ),
        port_offset=given.dp_rank,
    )  # fmt: skip


def host_port(host, port):
    """`host:port`, an IPv6 address in brackets whether it came in them or not, as SGLang's NetworkAddress writes it."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return f"[{bare}]:{port}" if ipaddress.ip_address(bare).version == 6 else f"{bare}:{port}"
    except ValueError:
        return f"{bare}:{port}"


def ask(url, method="GET", body=None):
    request = urllib.request.Request(url, body and json.dumps(body).encode(), {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read()
        return json.loads(text) if text[:1] == b"{" else text


def send_line(peer, message):
    peer.sendall(json.dumps(message).encode() + b"\n")


class Events:
    """SGLang's publisher of KV events: ZMQ, batches numbered from 0."""

    def __init__(self, given):
        import zmq

        self.given, self.number = given, 0
        self.socket = zmq.Context.instance().socket(zmq.PUB)
        self.socket.bind(f"tcp://*:{given.kv_port + given.dp_rank}")

    def stored(self, keys, parent, tokens):
        """New pages of one prompt, the first below `parent`."""
        event = ["BlockStored", [page_hash(key) for key in keys], parent and page_hash(parent), tokens, self.given.page, None, "GPU"]
        batch = msgspec.msgpack.encode([time.time(), [event], self.given.dp_rank])
        self.socket.send_multipart([b"", self.number.to_bytes(8, "big"), batch])
        self.number += 1


def page_hash(key):
    return int.from_bytes(key[:8], "big", signed=True)


class Scheduler:
    def __init__(self, given, server):
        self.given = given
        self.server = server
        self.inbox = queue.SimpleQueue()
        self.running = {}
        self.rooms = {}
        self.early = {}
        self.pages = set()
        self.open = False
        self.events = Events(given) if given.kv_port else None

    # What goes back to the frontend.

    def push(self, request, tokens, finish):
        columns = [[request.rid], [finish], [len(request.tokens)], [len(tokens)], [request.cached], [0]]
        self.server.push_decode_result_batch(msgspec.msgpack.encode(columns), [array.array("q", tokens).tobytes()])

    def fail(self, request, status, message):
        self.forget(request)
        self.log(request, f"failed-{status}")
        self.push(request, [], {"type": "abort", "message": message, "status_code": status, "err_type": None})

    def log(self, request, outcome):
        if request.room is not None and request.host != FAKE_HOST:
            print(f"ROOM {request.room} {self.given.mode} {outcome} {len(request.tokens)}", flush=True)

    def forget(self, request):
        self.running.pop(request.rid, None)
        if self.rooms.get(request.room) is request:
            del self.rooms[request.room]
        if request.peer:
            request.peer.close()
            request.peer = None

    # Requests.

    def accept(self, header, tokens):
        request = Request(header, tokens)
        mode, size = self.given.mode, self.given.dp_size
        request.cached = self.cached_tokens(request)
        if self.events:
            # The Rust server's usage has no cached tokens.
            print(f"PROMPT {len(request.tokens)} {request.cached}", flush=True)
        if mode == "null" or request.host == FAKE_HOST:
            self.compute(request)
        elif request.room is None:
            self.fail(request, 400, f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={request.rid!r}")
        elif request.room in self.rooms:
            self.fail(request, 500, f"Duplicate or cancelled bootstrap room {request.room}")
        elif mode == "prefill" and size > 1 and request.prefill_rank is None and request.room % size != self.given.dp_rank:
            self.fail(request, 500, f"follow_bootstrap_room conflict: dispatched to dp_rank {self.given.dp_rank} but bootstrap_room {request.room} implies dp_rank {request.room % size}")
        else:
            self.rooms[request.room] = request
            request.until = time.monotonic() + self.given.room_timeout_s
            if mode == "decode":
                threading.Thread(target=self.find_prefill, args=(request,), daemon=True).start()
            elif request.room in self.early:
                self.meet(request, self.early.pop(request.room))

    def cached_tokens(self, request):
        """Whole pages of the prompt that an earlier one began with; the last token is never taken from there."""
        page, known, parent, new = self.given.page, 0, None, []
        for end in range(page, len(request.tokens) + 1, page):
            key = hashlib.sha256(request.tokens[:end].tobytes()).digest()
            if key in self.pages:
                parent = key
                known = end if known == end - page and end < len(request.tokens) else known
            else:
                self.pages.add(key)
                new.append((key, end))
        if new and self.events:
            begin, end = new[0][1] - page, new[-1][1]
            self.events.stored([key for key, _ in new], parent, request.tokens[begin:end].tolist())
        return known

    def compute(self, request):
        request.seed = int(request.digest[:8], 16)
        request.until = time.monotonic() + (len(request.tokens) - request.cached) * self.given.prefill_us / 1e6
        self.running[request.rid] = request

    # Prefill: two come to a room in any order.

    def listen(self):
        family = socket.AF_INET6 if ":" in self.given.host else socket.AF_INET
        listener = socket.create_server((self.given.host, self.given.rank_port + self.given.dp_rank), family=family, backlog=512)
        while True:
            threading.Thread(target=self.greet, args=(listener.accept()[0],), daemon=True).start()

    def greet(self, peer):
        try:
            hello = json.loads(peer.makefile().readline())
            self.inbox.put(lambda: self.arrive(hello, peer))
        except (OSError, ValueError):
            peer.close()

    def arrive(self, hello, peer):
        request = self.rooms.get(hello["room"])
        if request is None:
            self.early[hello["room"]] = (hello, peer)
        else:
            self.meet(request, (hello, peer))

    def meet(self, request, arrival):
        hello, request.peer = arrival
        if hello["digest"] != request.digest:
            self.fail(request, 500, f"room {request.room}: prefill and decode have different prompts")
        else:
            self.compute(request)

    def register(self):
        """Every rank tells its own registry the whole topology, as SGLang does with its Rust frontend."""
        given = self.given
        for rank in range(given.dp_size):
            row = {
                "attn_tp_size": 1, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": given.dp_size, "attn_dp_rank": rank,
                "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": given.host, "rank_port": given.rank_port + rank,
                "page_size": given.page, "kv_cache_dtype": "auto", "load_balance_method": "follow_bootstrap_room",
                "enable_dsa_cache_layer_split": False, "prefill_http_port": given.port + given.dp_rank,
            }  # fmt: skip
            ask(f"http://{host_port(given.host, given.port + given.dp_rank)}/route", "PUT", row)

    # Decode: the registry, the rank, then what it hands over. Runs in a thread of the request.

    def find_prefill(self, request):
        try:
            request_peer = self.connect(request)
            request.peer = request_peer
            send_line(request_peer, {"room": request.room, "digest": request.digest})
            line = request_peer.makefile().readline()
            if not line:
                time.sleep(self.given.heartbeat_s)
                raise ConnectionError("Lost connection with prefill instance")
            handed = json.loads(line)
            self.inbox.put(lambda: self.receive(request, handed))
        except (OSError, ValueError, KeyError) as error:
            text = f"Decode handshake failed for request rank=0 req.bootstrap_room={request.room} with exception {error}"
            self.inbox.put(lambda: self.rooms.get(request.room) is request and self.fail(request, 500, text))

    def connect(self, request):
        registry = f"http://{host_port(request.host, request.port if request.port is not None else 8998)}/route"
        for attempt in range(REGISTRY_TRIES):
            try:
                topology = ask(f"{registry}?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1")
                break
            except (OSError, urllib.error.HTTPError) as error:
                if attempt + 1 == REGISTRY_TRIES or self.rooms.get(request.room) is not request:
                    raise ConnectionError(f"Could not fetch prefill parallel info from {registry}: {error}") from error
                time.sleep(1.0)
        rank = request.prefill_rank if request.prefill_rank is not None else request.room % topology["dp_size"]
        place = ask(f"{registry}?prefill_dp_rank={rank}&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0")
        return socket.create_connection((place["rank_ip"], place["rank_port"]), timeout=self.given.room_timeout_s)

    def receive(self, request, handed):
        if self.rooms.get(request.room) is not request:
            return
        request.seed, request.cached = handed["seed"], handed["cached"]
        self.log(request, "received")
        request.sent = 1
        self.push(request, [handed["first"]], self.finish_of(request))
        if request.sent < request.tokens_max:
            request.until = 0.0
            self.running[request.rid] = request

    # The loop.

    def finish_of(self, request):
        if request.sent < request.tokens_max:
            return None
        self.forget(request)
        return {"type": "length", "length": request.sent}

    def step(self):
        now = time.monotonic()
        for request in [each for each in self.running.values() if each.until <= now]:
            token = request.next_token()
            if self.given.mode == "prefill" and request.host != FAKE_HOST:
                self.hand_over(request, token)
            else:
                self.push(request, [token], self.finish_of(request))
        for request in [each for each in self.rooms.values() if each.rid not in self.running and each.until <= now]:
            self.fail(request, 500, f"Request {request.room} timed out after {self.given.room_timeout_s}s in KVPoll.Bootstrapping")

    def hand_over(self, request, token):
        try:
            send_line(request.peer, {"seed": request.seed, "first": token, "cached": request.cached})
        except OSError as error:
            self.fail(request, 500, f"Prefill transfer failed for request rank=0 req.bootstrap_room={request.room} with exception {error}")
            return
        self.log(request, "handed")
        self.forget(request)
        self.push(request, [token], {"type": "length", "length": 1})

    def control(self, header):
        if header[0] == "AbortReq":
            for request in [each for each in (*self.running.values(), *self.rooms.values()) if header[2] or each.rid == header[1]]:
                self.log(request, "aborted")
                self.forget(request)
            return
        rid = next((each for each in header[1:] if isinstance(each, str)), None)
        if rid:
            self.server.push_control_result(rid, msgspec.msgpack.encode({"internal_state": {}, "success": True}))

    def run(self):
        if self.given.mode == "prefill":
            threading.Thread(target=self.listen, daemon=True).start()
            threading.Thread(target=self.register, daemon=True).start()
        tick_s = 1 / self.given.tokens_per_s
        due = time.monotonic()
        while True:
            self.server.wait_request(2 if self.running or self.rooms else 20)
            for request in self.server.recv_requests(256):
                header = msgspec.msgpack.decode(request.header)
                tokens = dict(request.buffers).get("input_ids")
                if tokens is None:
                    self.control(header)
                else:
                    self.accept(header, array.array("q", memoryview(tokens).cast("B").tobytes()))
            while not self.inbox.empty():
                self.inbox.get()()
            if time.monotonic() >= due:
                due = time.monotonic() + tick_s
                self.step()
            if self.open != bool(self.running or self.rooms):
                self.open = not self.open
                print(f"OPEN {self.open:d}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--rank-port", type=int, default=0)
    options.add_argument("--mode", choices=["null", "prefill", "decode"], default="null")
    options.add_argument("--dp-rank", type=int, default=0)
    options.add_argument("--dp-size", type=int, default=1)
    options.add_argument("--page", type=int, default=16)
    options.add_argument("--vocabulary", type=int, default=2236)
    options.add_argument("--tokens-per-s", type=float, default=200.0)
    options.add_argument("--prefill-us", type=float, default=20.0, help="a token of a prompt that is not cached")
    options.add_argument("--kv-port", type=int, default=0, help="publish KV events from this port on")
    options.add_argument("--room-timeout-s", type=float, default=60.0, help="SGLang's own is 300")
    options.add_argument("--heartbeat-s", type=float, default=2.0, help="until decode gives a lost prefill rank up; SGLang needs 10")
    given = options.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if given.mode == "prefill" and not given.rank_port:
        options.error("--mode prefill needs --rank-port")
    Scheduler(given, start_frontend(given)).run()


if __name__ == "__main__":
    sys.exit(main())
