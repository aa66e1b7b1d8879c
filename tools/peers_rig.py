"""What `tools/peers` starts: the load with the stub workers, the routers, and the engines that fill an index.

The routers run on the first core, everything else on the last. As root all but the engines have real-time priority, so that
other programs do not delay them.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from rig import ROOT, START_S_MAX, Missing, binary, free_ports, get, samples, total

CORES = sorted(os.sched_getaffinity(0))
ROUTER_CORE, LOAD_CORE = CORES[0], CORES[-1]
MODEL_DIR = os.environ.get("MODEL_DIR") or os.path.join(ROOT, "tests", "data", "tokenizer")
WORKERS = 4

NGINX = """daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr crit; worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 1h;
  client_max_body_size 8m; client_body_buffer_size 1m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream workers {{ {servers} keepalive 2048; keepalive_requests 1000000000; keepalive_timeout 1h; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering {buffering};
      proxy_read_timeout 1h; }}
  }}
}}
"""
# Without `http-no-delay` an event waits up to 200 ms for the next.
HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend all
  bind 127.0.0.1:{port} backlog 4096
  default_backend workers
backend workers
  balance roundrobin
{servers}
"""


def on_core(core, argv):
    """Pinned, and before other programs where the user may ask for that."""
    return ["taskset", "-c", str(core), *(["chrt", "-r", "10"] if os.geteuid() == 0 else []), *argv]


def processes(pid):
    """The process and its children."""
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                found += [one for child in children.read().split() for one in processes(int(child))]
    except OSError:
        pass
    return found


def busy_s():
    """Seconds that the cores have worked, steal included."""
    with open("/proc/stat", encoding="ascii") as stat:
        columns = [int(column) for column in stat.readline().split()[1:]]
    return sum(columns[at] for at in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")


def others_share(seconds=0.25):
    """How much of all cores others use now; the caller's own processes are idle."""
    before, start = busy_s(), time.monotonic()
    time.sleep(seconds)
    return (busy_s() - before) / (time.monotonic() - start) / os.cpu_count()


def post(port, text="hi"):
    """Status of a chat; 0 when nothing answered."""
    body = json.dumps({"model": "bench", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Load:
    """The program `peers` of benches/peers: workers on `ports`, and clients."""

    def __init__(self):
        command = ["cargo", "build", "--quiet", "--profile", "dist", "--locked", "--package", "forebay-peers"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit("peers: the build of benches/peers failed")
        program = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "dist", "peers")
        self.child = subprocess.Popen(on_core(LOAD_CORE, [program]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = free_ports(WORKERS)
        self.ask(listen={"ports": self.ports})

    def ask(self, **command):
        self.child.stdin.write(json.dumps(command) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit("peers: the load has ended")
        return json.loads(line)

    def stop(self):
        self.child.stdin.close()
        self.child.wait(30)


class Awake:
    """An idle-class loop on the router's core. The core does not halt, so that waking it costs all routers the same."""

    def __enter__(self):
        self.child = subprocess.Popen(["taskset", "-c", str(ROUTER_CORE), "chrt", "-i", "0", "sh", "-c", "while :; do :; done"])
        return self.child.pid

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


class Peer:
    """A router in front of the workers. `exact`: it forwards bodies as they are."""

    exact, metrics, known = True, None, False

    def __init__(self, name):
        self.name = name

    def missing(self):
        """What is not installed, or nothing."""
        return ""

    def start(self, rig, load, folder):
        """Starts it, waits for an answer through it."""
        (self.port,) = free_ports(1)
        self.running = rig.start(f"peers-{self.name.replace(':', '-')}", on_core(ROUTER_CORE, self.argv(load, folder)))
        self.running.wait_for("answers", lambda: post(self.port) == 200)

    def fill(self, load, kinds):
        """Lets it know the prompts."""

    def pids(self):
        return processes(self.running.child.pid)


class Direct(Peer):
    """No router: the ceiling of the load."""

    def start(self, rig, load, folder):
        self.port = load.ports[0]

    def pids(self):
        return []


class Nginx(Peer):
    """Reads a body before it sends it, as a router must that looks at the body; `nginx-unbuffered` does not."""

    def missing(self):
        return "" if shutil.which("nginx") else "nginx is not installed"

    def argv(self, load, folder):
        path = os.path.join(folder, "nginx.conf")
        servers = " ".join(f"server 127.0.0.1:{port};" for port in load.ports)
        with open(path, "w", encoding="ascii") as conf:
            buffering = "off" if self.name.endswith("unbuffered") else "on"
            conf.write(NGINX.format(folder=folder, servers=servers, port=self.port, buffering=buffering))
        return ["nginx", "-p", folder, "-c", path, "-e", "stderr"]


class Haproxy(Peer):
    def missing(self):
        return "" if shutil.which("haproxy") else "haproxy is not installed"

    def argv(self, load, folder):
        path = os.path.join(folder, "haproxy.cfg")
        servers = "\n".join(f"  server w{port} 127.0.0.1:{port} pool-max-conn -1" for port in load.ports)
        with open(path, "w", encoding="ascii") as conf:
            conf.write(HAPROXY.format(servers=servers, port=self.port))
        return ["haproxy", "-db", "-f", path]


class Floor(Peer):
    """benches/floor: a proxy on monoio that decides nothing."""

    def argv(self, load, folder):
        target = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "floor")
        manifest = os.path.join(ROOT, "benches", "floor", "Cargo.toml")
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", manifest, "--target-dir", target]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit("peers: the build of benches/floor failed")
        return [os.path.join(target, "release", "floor"), str(self.port), *map(str, load.ports)]


class Venv(Peer):
    """sglang-router and vllm-router, from the environment PEERS_VENV. They write bodies anew."""

    exact = False
    # cache_aware of vllm-router has the engines tokenize each prompt; round_robin is the cheapest that it can do.
    PROGRAMS = {"sglang": ("sglang-router", ["launch"], "cache_aware", "warn"), "vllm": ("vllm-router", [], "round_robin", "warning")}

    def program(self):
        return os.path.join(os.environ.get("PEERS_VENV", "/nonexistent"), "bin", self.PROGRAMS[self.name][0])

    def missing(self):
        return "" if os.access(self.program(), os.X_OK) else f"{self.program()} is not there, see PEERS_VENV"

    def argv(self, load, folder):
        _, words, policy, level = self.PROGRAMS[self.name]
        (metrics,) = free_ports(1)
        urls = [f"http://127.0.0.1:{port}" for port in load.ports]
        argv = [self.program(), *words, "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy, "--log-level", level]
        return [*argv, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--worker-urls", *urls]


class Forebay(Peer):
    """A build of the router. With `known`, engines that publish events stand beside the workers, and the router routes to the
    workers by the events. Policy `kv` without it learns prompts from the requests that the router itself has sent."""

    def __init__(self, name, program, policy, known=False):
        super().__init__(name)
        self.program, self.policy, self.known = program, policy, known

    def start(self, rig, load, folder):
        admin, *events = free_ports(1 + WORKERS)
        self.metrics = f"http://127.0.0.1:{admin}/metrics"
        self.admin, self.events = admin, [f"tcp://127.0.0.1:{port}" for port in events]
        # Fresh engines for each router: an engine publishes a block once.
        self.engines = [self.engine(rig, endpoint) for endpoint in self.events] if self.known else []
        super().start(rig, load, folder)
        if self.known:
            # What an engine publishes before the router has subscribed is lost to the index: other prompts go first.
            self.running.wait_for("KV events of all engines", self.hears_all)
            self.blocks_before = self.rank_blocks()

    def engine(self, rig, endpoint):
        (port,) = free_ports(1)
        argv = [binary(), "engine", "--listen", f"127.0.0.1:{port}", "--model-dir", MODEL_DIR, "--kv-events", endpoint]
        argv += ["--kv-blocks", "1000000", "--concurrency", "256", "--prefill-tokens-per-s", "1000000000", "--itl-ms", "0"]
        running = rig.start(f"peers-engine-{port}", argv)
        running.port = port
        return running.wait_for("engine /health", lambda: get(f"http://127.0.0.1:{port}/health")[0] == 200)

    def rank_blocks(self):
        return {labels["worker"]: value for labels, value in samples(self.metrics, "forebay_kv_rank_blocks")}

    def hears_all(self):
        for engine in self.engines:
            engine.asked = getattr(engine, "asked", 0) + 1
            post(engine.port, f"{engine.asked} before the fill " * 20)
        return sum(blocks > 0 for blocks in self.rank_blocks().values()) == WORKERS

    def argv(self, load, folder):
        argv = [self.program, "serve", "--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}", "--cores", str(ROUTER_CORE)]
        argv += ["--health", "off", "--log-level", "warn", "--policy", self.policy, "--model-dir", MODEL_DIR, "--engine", "vllm" if self.known else "openai"]
        for port, endpoint in zip(load.ports, self.events, strict=True):
            argv += ["--worker", f"http://127.0.0.1:{port}", *(["--kv-events", endpoint] if self.known else [])]
        return argv

    def fill(self, load, kinds):
        """Sends the very prompts of the runs to the engines, and waits until the index holds their blocks."""
        for kind in kinds if self.known else []:
            for engine in self.engines:
                result = load.ask(run={"pace": "fill", "port": engine.port, "connections": 16, "asleep": True, **kind})
                if result.get("statuses") != {"200": kind["prompts"]}:
                    raise SystemExit(f"peers: the fill failed: {result}")
        end, seen = time.monotonic() + START_S_MAX, -1
        while self.known and (seen != (now := total(self.metrics, "forebay_kv_events_total", kind="stored", result="applied")) or not now):
            if time.monotonic() > end:
                raise SystemExit("peers: the events of the fill do not reach the index, or never end")
            seen = now
            time.sleep(0.2)
        blocks = {value - self.blocks_before[worker] for worker, value in self.rank_blocks().items()} if self.known else ()
        if len(blocks) > 1:
            raise SystemExit(f"peers: the ranks hold {sorted(blocks)} blocks of the same prompts: events of the fill were lost")
        for engine in self.engines:
            subprocess.run(["taskset", "-acp", str(LOAD_CORE), str(engine.child.pid)], check=True, capture_output=True)

    def matched(self):
        """Bytes of prompts that events matched, and all."""
        return [total(self.metrics, f"forebay_{name}_bytes_total") for name in ("overlap", "prompt")]


def peers(builds):
    """All peers by name. `builds`: more programs of Forebay by name."""
    known = [Direct("direct"), Floor("floor"), Nginx("nginx"), Nginx("nginx-unbuffered"), Haproxy("haproxy"), Venv("sglang"), Venv("vllm")]
    for prefix, program in [("", binary()), *((f"{name}:", path) for name, path in builds.items())]:
        if not os.access(program, os.X_OK):
            raise Missing(f"{program} is no program")
        known += [Forebay(f"{prefix}round_robin", program, "round_robin"), Forebay(f"{prefix}kv", program, "kv", known=True)]
        known += [Forebay(f"{prefix}guesses", program, "kv")]
    return {peer.name: peer for peer in known}
