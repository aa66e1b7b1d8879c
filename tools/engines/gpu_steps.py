"""How long the steps of a model of 8 billion parameters take on one GPU: PyTorch, BF16, random weights, each step one CUDA graph.

The shape is that of Llama 3.1 8B. Prompts are computed in chunks behind a context; sequences decode in one batch. What an engine
does between steps is not in it. Prints one JSON line per step: tokens, attended pairs, context tokens, ms.

usage: python3 gpu_steps.py [--quick]        (needs torch with CUDA, 60 GB of GPU memory)
"""

import json
import statistics
import sys

import torch
from torch.nn import functional

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 32, 4096, 14336, 32, 8, 128, 128256
KV_TOKENS_MAX = 262_144
CHUNKS = ((16, 0), (64, 0), (128, 0), (256, 0), (512, 0), (1024, 0), (2048, 0), (4096, 0), (8192, 0))
BEHIND = ((128, 2048), (128, 16384), (512, 8192), (2048, 8192), (2048, 32768), (8192, 8192), (8192, 24576), (8192, 57344))
BATCHES = (1, 4, 16, 32, 64, 128, 256)
CONTEXTS = (128, 1024, 4096, 16384)


def weight(rows, columns):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 0.02


@torch.compile(dynamic=True)
def normed(x, scale):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale


@torch.compile(dynamic=True)
def rotated(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


@torch.compile(dynamic=True)
def gated(x):
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


class Model:
    def __init__(self):
        query = HEADS * HEAD
        self.layers = [
            {
                "qkv": weight(query + 2 * KV_HEADS * HEAD, HIDDEN), "out": weight(HIDDEN, query), "gate": weight(2 * INNER, HIDDEN),
                "down": weight(HIDDEN, INNER), "norm": torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16),
            }
            for _ in range(LAYERS)
        ]  # fmt: skip
        self.head = weight(VOCABULARY, HIDDEN)
        # One room for the KV of all layers would not fit: layers share a quarter of it, which is larger than any cache.
        self.room = torch.randn(2, 8 * KV_TOKENS_MAX * KV_HEADS * HEAD, device="cuda", dtype=torch.bfloat16)

    def kv(self, layer, batch, tokens):
        size = batch * tokens * KV_HEADS * HEAD
        begin = (layer % 8) * size
        return (part[begin : begin + size].view(batch, KV_HEADS, tokens, HEAD) for part in self.room)

    def step(self, x, batch, tokens, context, cos, sin):
        """`batch` sequences of `tokens` new tokens each, behind `context` tokens."""
        everything = context + tokens
        for place, layer in enumerate(self.layers):
            keys, values = self.kv(place, batch, everything)
            qkv = functional.linear(normed(x, layer["norm"]), layer["qkv"]).view(batch, tokens, HEADS + 2 * KV_HEADS, HEAD)
            query, key, value = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=2)
            query, key = rotated(query, cos, sin), rotated(key, cos, sin)
            keys[:, :, context:] = key.transpose(1, 2)
            values[:, :, context:] = value.transpose(1, 2)
            if tokens == 1:
                # The heads that share KV are rows of one query: KV is read once.
                query = query.view(batch, KV_HEADS, HEADS // KV_HEADS, HEAD)
                found = functional.scaled_dot_product_attention(query, keys, values).reshape(batch, 1, HIDDEN)
            else:
                # The mask ends at the lower right corner: each token sees the context and those before it.
                attend = torch.ops.aten._scaled_dot_product_flash_attention
                found = attend(query.transpose(1, 2), keys, values, 0.0, True)[0]
                found = found.transpose(1, 2).reshape(batch, tokens, HIDDEN)
            x = x + functional.linear(found, layer["out"])
            x = x + functional.linear(gated(functional.linear(normed(x, layer["norm"]), layer["gate"])), layer["down"])
        return functional.linear(x[:, -1], self.head).argmax(-1)


def timed_ms(model, batch, tokens, context, times):
    x = torch.randn(batch, tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    cos, sin = (torch.randn(1, tokens, 1, HEAD // 2, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            model.step(x, batch, tokens, context, cos, sin)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.step(x, batch, tokens, context, cos, sin)
    took = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end))
    return statistics.median(took)


def main():
    quick = "--quick" in sys.argv
    torch._dynamo.config.recompile_limit = 512
    torch._dynamo.config.cache_size_limit = 512
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    with torch.inference_mode():
        model = Model()
        steps = [(1, tokens, context) for tokens, context in (*CHUNKS, *BEHIND)]
        steps += [(batch, 1, context) for batch in BATCHES for context in CONTEXTS if batch * (context + 1) <= KV_TOKENS_MAX]
        for batch, tokens, context in steps[:: 6 if quick else 1]:
            ms = timed_ms(model, batch, tokens, context, 5 if tokens * batch > 2048 else 15)
            attended = tokens * (context + tokens / 2) if tokens > 1 else 0
            read = batch * context if tokens == 1 else 0
            print(json.dumps({"batch": batch, "tokens": batch * tokens, "attended": attended, "context": read, "ms": round(ms, 4)}), flush=True)


if __name__ == "__main__":
    main()
