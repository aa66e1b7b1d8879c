"""Random weights for the tiny Llama of vllm_server.LLAMA, large enough that an answer depends on the whole prompt.

usage: tiny_weights.py MODEL_DIR        (with the Python of a vLLM environment; writes model.safetensors)
"""

import json
import sys

import torch
from safetensors.torch import save_file


def main(folder):
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    random = torch.Generator().manual_seed(7)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=random) * 0.05

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": torch.ones(hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for part in "qkvo":
            tensors[f"{name}.self_attn.{part}_proj.weight"] = matrix(hidden, hidden)
        for part in ("gate", "up"):
            tensors[f"{name}.mlp.{part}_proj.weight"] = matrix(inner, hidden)
        tensors[f"{name}.mlp.down_proj.weight"] = matrix(hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(hidden)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(sys.argv[1])
