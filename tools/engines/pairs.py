"""Real engines in pairs of prefill and decode, for tools/disaggregation: how each is started, what it tells about
requests that were handed over, and what a router's configuration says about it.
"""

import collections
import json
import os
import shutil
import signal
import subprocess

import rig
from engines import vllm_server

SERVER = os.path.join(rig.ROOT, "tools", "engines", "sglang_server.py")


def toml(workers, threshold_tokens, fallback):
    """A configuration with these workers; every wait in it is short enough for a proof that ends by itself."""
    blocks = []
    for worker in workers:
        lines = [f"{key} = {json.dumps(value)}" for key, value in worker.items()]
        blocks.append("\n".join(["[[worker]]", *lines]))
    blocks.append(f'[disaggregation]\nuncached_tokens_min = {threshold_tokens}\nfallback = "{fallback}"\nprefill_timeout = "20s"')
    blocks.append('[timeouts]\nfirst_byte = "20s"\nstream_idle = "20s"')
    return "\n\n".join(blocks) + "\n"


class Sglang:
    """SGLang's Rust frontend with a stand-in scheduler: a prefill server, one with two ranks, two decode servers and
    one that does both."""

    name = "sglang"
    unit = "prompts"
    recovers = True
    gives_up_s = 30  # Longest wait of a decode engine for KV, SGLang's own is 300. More than the router's of 20 s.

    def __init__(self, started_by):
        self.rig = started_by
        self.model_dir = vllm_server.model_dir("sglang", vllm_server.LLAMA)
        self.prefill = [self.start("prefill", ranks) for ranks in (1, 2)]
        self.decode = [self.start("decode"), self.start("decode")]
        self.plain = self.start("null")
        self.reference = self.plain[0].url
        for running in self.servers():
            running.wait_for("SGLang /health", lambda running=running: rig.get(f"{running.url}/health")[0] == 200)

    def servers(self):
        return [*self.prefill[0], *self.prefill[1], *self.decode[0], *self.decode[1], *self.plain]

    def start(self, mode, ranks=1, ports=None):
        """The listeners of one server, one a rank."""
        ports = ports or vllm_server.ports_in_a_row(2 * ranks)
        python = f"{rig.needed_env('SGLANG_VENV', 'made by tools/engines/setup FOLDER frontend')}/bin/python"
        started = []
        for rank in range(ranks):
            argv = [
                python, SERVER, "--root", rig.needed_env("SGLANG_ROOT", "made by tools/engines/setup FOLDER frontend"), "--model", self.model_dir,
                "--mode", mode, "--port", str(ports), "--rank-port", str(ports + ranks), "--dp-size", str(ranks), "--dp-rank", str(rank),
                "--room-timeout-s", str(self.gives_up_s),
            ]  # fmt: skip
            running = self.rig.start(f"sglang-{mode}-{ports + rank}", argv)
            running.url, running.ports, running.mode = f"http://127.0.0.1:{ports + rank}", ports, mode
            started.append(running)
        return started

    def workers(self, whole):
        """`whole`: with a worker that does both, for requests below a threshold."""
        taken = [*self.prefill[0], *self.prefill[1], *self.decode[0], *self.decode[1], *(self.plain if whole else [])]
        return [{"url": running.url, "engine": "sglang"} for running in taken]

    def rooms(self, mode, outcome):
        """{room: how often} that servers of this kind have told of."""
        told = collections.Counter()
        for running in self.rig.started:
            if getattr(running, "mode", None) != mode:
                continue
            for line in running.log_text().splitlines():
                if line.startswith("ROOM ") and line.split()[3] == outcome:
                    told[int(line.split()[1])] += 1
        return told

    def handed(self):
        """Prompts that decode servers got from prefill servers."""
        return sum(self.rooms("decode", "received").values())

    def computed_by_decode(self):
        """Prompts that a decode server computed itself: it has no way to."""
        return 0

    def wrong(self):
        """Rooms that were no meeting of exactly two."""
        given, got = self.rooms("prefill", "handed"), self.rooms("decode", "received")
        return [room for room in given | got if given[room] != 1 or got[room] != 1]

    def used(self):
        """How many prompts each prefill rank has handed over."""
        return {running.url: running.log_text().count(" prefill handed ") for server in self.prefill for running in server}

    def cut(self):
        """Requests that ended before their time: rooms, on either side."""
        return sum(len(self.rooms(mode, "aborted")) for mode in ("prefill", "decode"))

    def idle(self):
        """Whether the last word of every server that runs is that it has no request."""
        return all("OPEN 1" not in running.log_text().rpartition("OPEN 0")[2] for running in self.servers() if running.child.poll() is None)

    def kill_prefill(self, which=0):
        self.kill(self.prefill[which])

    def kill_decode(self):
        self.kill(self.decode[0])

    def kill(self, server):
        for running in server:
            running.child.kill()
            running.child.wait()

    def restart_prefill(self):
        ports = self.prefill[0][0].ports
        self.prefill[0] = self.start("prefill", 1, ports)
        for running in self.prefill[0]:
            running.wait_for("SGLang /health", lambda running=running: rig.get(f"{running.url}/health")[0] == 200)
        return self.prefill[0][0].url

    def stop(self):
        """The rig stops what it started."""


class Vllm:
    """Two complete vLLM servers for the CPU: KV goes over NIXL and UCX, the answers are the model's own."""

    name = "vllm"
    unit = "prompt tokens"
    recovers = True
    gives_up_s = 0
    connector = {"kv_connector": "NixlConnector"}

    def __init__(self, started_by):
        self.rig = started_by
        self.model_dir = folder = self.weights()
        self.sides = rig.free_ports(2)
        self.prefill, self.decode = (self.server(folder, role, port) for role, port in zip(("kv_producer", "kv_consumer"), self.sides))
        self.prefill.wait()
        self.decode.wait()
        # Its cache holds only what it computed itself.
        self.reference = self.prefill.url

    def weights(self):
        folder = vllm_server.model_dir("pairs", vllm_server.LLAMA)
        python = f"{rig.needed_env('VLLM_VENV', 'made by tools/engines/setup FOLDER')}/bin/python"
        script = os.path.join(rig.ROOT, "tools", "engines", "tiny_weights.py")
        subprocess.run([python, "-W", "ignore", script, folder], check=True)
        return folder

    def server(self, folder, role, side_port):
        transfer = {**self.connector, "kv_role": role, "kv_buffer_device": "cpu"}
        if role == "kv_consumer":
            transfer.pop("engine_id", None)
        env = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            "UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo",
            # Without it there is no executor in the engine's own process, and the one in a process of its own sleeps for
            # seconds now and then on a busy machine: it loses a wake-up.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }  # fmt: skip
        flags = ["--kv-transfer-config", json.dumps(transfer), "--enable-request-id-headers", "--distributed-executor-backend", "uni"]
        return vllm_server.Vllm(self.rig, vllm_server.LLAMA, 1, 256, 2048, folder=folder, flags=flags, env=env)

    def workers(self, whole):
        roles = ((self.prefill, "prefill"), (self.decode, "decode"))
        return [{"url": server.url, "engine": "vllm", "role": role} for server, role in roles]

    def source(self, server, name):
        return rig.total(f"{server.url}/metrics", "vllm:prompt_tokens_by_source_total", source=name)

    def handed(self):
        """Prompt tokens that decode got from prefill."""
        return self.source(self.decode, "external_kv_transfer")

    def computed_by_decode(self):
        return self.source(self.decode, "local_compute")

    def wrong(self):
        return []

    def used(self):
        return {self.prefill.url: sum(self.prefill.served())}

    def idle(self):
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return all(rig.total(f"{server.url}/metrics", name) == 0 for server in (self.prefill, self.decode) for name in names)

    def kill_prefill(self):
        self.prefill.kill()

    def restart_prefill(self):
        self.prefill.start()
        self.prefill.wait()
        return self.prefill.url

    def stop(self):
        for server in (self.prefill, self.decode):
            if server.running.child.poll() is None:
                os.killpg(server.running.child.pid, signal.SIGKILL)


class Push(Vllm):
    """The same with NixlPushConnector: decode is told where prefill is, and both are asked at once."""

    name = "push"
    # Decode keeps the dead connection of an engine id, and here the id cannot change: vLLM wants decode started again too.
    recovers = False
    connector = {"kv_connector": "NixlPushConnector", "engine_id": "prefill-of-the-pair"}

    def workers(self, whole):
        prefill, decode = super().workers(whole)
        known = {"kv_flow": "push", "kv_engine_id": self.connector["engine_id"], "kv_host": "127.0.0.1", "kv_port": self.sides[0]}
        return [{**prefill, **known}, decode]
