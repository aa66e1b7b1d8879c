"""A scripted engine's KV events for the proofs in tools/: a PUB and a ROUTER socket, and a process behind them that can
die, come back, lose batches and forget; and the view that a router has of them. Standard library only.
"""

import collections
import contextlib
import os
import random
import socket
import struct
import tempfile
import threading
import time

from rig import LOGS, total

BLOCK = 16
BLOCKS_PER_BATCH = 50
END = 2**64 - 1
PATIENCE_S = 60


def frames(*parts):
    """A ZMTP message."""
    out = b""
    for at, part in enumerate(parts):
        more = at + 1 < len(parts)
        head = struct.pack(">BB", more, len(part)) if len(part) < 256 else struct.pack(">BQ", more | 2, len(part))
        out += head + part
    return out


TOKENS = {token: b"\xcd" + struct.pack(">H", token) for token in range(200, 2_000)}


def text(value):
    return bytes([0xA0 + len(value)]) + value.encode()


def words(hashes):
    return b"\xdc" + struct.pack(">H", len(hashes)) + b"".join(b"\xcf" + struct.pack(">Q", value) for value in hashes)


def stored(hashes, tokens):
    """A BlockStored event of a whole prompt, positional."""
    return (
        b"\x96" + text("BlockStored") + words(hashes)
        + b"\xc0\xdd" + struct.pack(">I", len(tokens)) + b"".join(TOKENS[token] for token in tokens)
        + bytes([BLOCK]) + b"\xc0"
    )


class Process:
    """What a publishing engine process remembers: all its batches, and who listens."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.next = 0
        self.batches = collections.deque(maxlen=10_000)
        self.prompts = collections.deque()
        self.peers = []
        self.lock = threading.Lock()

    @property
    def held(self):
        """Blocks in its cache."""
        return len(self.prompts) * BLOCKS_PER_BATCH

    def batch(self, lose=False):
        """Stores one prompt and publishes it, or loses it on the way."""
        hashes = [self.random.getrandbits(64) for _ in range(BLOCKS_PER_BATCH)]
        tokens = self.random.choices(range(200, 2_000), k=BLOCKS_PER_BATCH * BLOCK)
        self.prompts.append(hashes)
        self.publish(stored(hashes, tokens), lose)

    def evict(self, lose=False):
        """Drops the oldest prompt, its last block first."""
        if self.prompts:
            self.publish(b"\x92" + text("BlockRemoved") + words(self.prompts.popleft()[::-1]), lose)

    def clear(self, lose=False):
        """Drops everything."""
        self.prompts.clear()
        self.publish(b"\x91" + text("AllBlocksCleared"), lose)

    def publish(self, event, lose):
        payload = b"\x92\xcb" + struct.pack(">d", time.time()) + b"\x91" + event
        with self.lock:
            number, self.next = struct.pack(">Q", self.next), self.next + 1
            self.batches.append((number, payload))
            for peer in [] if lose else self.peers:
                with contextlib.suppress(OSError):
                    peer.sendall(frames(b"", number, payload))


class Sockets:
    """The two addresses of a rank, on which one process after the other answers."""

    def __init__(self, process):
        self.process = process
        self.open = []
        self.ports = []
        for serve in (self.publish, self.replay):
            listener = socket.create_server(("127.0.0.1", 0))
            self.ports.append(listener.getsockname()[1])
            threading.Thread(target=self.accept, args=(listener, serve), daemon=True).start()

    def accept(self, listener, serve):
        while True:
            peer, _ = listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open.append(peer)
            threading.Thread(target=self.guarded, args=(serve, peer), daemon=True).start()

    @staticmethod
    def guarded(serve, peer):
        with contextlib.suppress(OSError, EOFError), peer:
            serve(peer, peer.makefile("rb"))

    def cut(self, process=None):
        """Every connection ends, as with the process; another one may take its place."""
        self.process.peers.clear()
        self.process = process or self.process
        for peer in self.open:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    @staticmethod
    def greet(peer, reader, kind):
        peer.sendall(b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(48))
        if len(reader.read(64)) < 64:
            raise EOFError
        body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        peer.sendall(bytes([4, len(body)]) + body)
        Sockets.frame(reader)

    @staticmethod
    def frame(reader):
        head = reader.read(2)
        if len(head) < 2:
            raise EOFError
        return reader.read(head[1])

    def publish(self, peer, reader):
        self.greet(peer, reader, b"PUB")
        self.frame(reader)
        with self.process.lock:
            self.process.peers.append(peer)
        reader.read()

    def replay(self, peer, reader):
        self.greet(peer, reader, b"ROUTER")
        _, start = self.frame(reader), self.frame(reader)
        with self.process.lock:
            wanted = [batch for batch in self.process.batches if batch[0] >= start]
        for number, payload in wanted:
            peer.sendall(frames(b"", b"", number, payload))
        peer.sendall(frames(b"", b"", struct.pack(">Q", END), b""))
        reader.read()


class View:
    """A router that follows the rank."""

    def __init__(self, rig, sockets, with_replay=True):
        live, replay = (f'["tcp://127.0.0.1:{port}"]' for port in sockets.ports)
        os.makedirs(LOGS, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=LOGS, delete=False) as file:
            file.write(
                'policy = "kv"\nmodel_dir = "tests/data/tokenizer"\n[health]\nenabled = false\n[[worker]]\n'
                f'url = "http://127.0.0.1:1"\nmodels = ["m"]\nkv_events = {live}\n'
                + (f"replay = {replay}\n" if with_replay else "")
            )
        self.router = rig.router([], "--config", file.name)
        self.sockets = sockets
        self.wait(lambda: sockets.process.peers, "subscribed")

    def entries(self):
        """Blocks in the index. The root that they hang from is one more entry while there are any."""
        return max(0, total(f"{self.router.admin}/metrics", "forebay_index_entries") - 1)

    @staticmethod
    def wait(ready, what):
        """Seconds until `ready()`."""
        begin = time.monotonic()
        while not ready():
            if time.monotonic() - begin > PATIENCE_S:
                raise SystemExit(f"not within {PATIENCE_S} s: {what}")
            time.sleep(0.001)
        return time.monotonic() - begin

    def forgotten(self, new):
        return self.wait(lambda: self.entries() <= new, "old blocks are forgotten")

    def whole(self):
        return self.wait(lambda: self.entries() == self.sockets.process.held, "the view is whole")
