"""A right fused step: one custom operator around `fused_step.cpp`, which the test has compiled beside this file."""

import ctypes
from pathlib import Path

import torch

NAMES = ("q", "k", "v", "o", "gate", "up", "down", "attention_norm", "mlp_norm")


def build(config, weights):
    library = ctypes.CDLL(str(Path(__file__).with_name("fused_step.so")))
    wide = {}
    for name, tensor in weights.items():
        scale = weights.get(f"{name}.scale")
        wide[name] = tensor if scale is None else (tensor.float() * scale).to(torch.bfloat16)
    kept = [wide[f"{layer}.{name}"].contiguous() for layer in range(config.layers) for name in NAMES]
    kept += [wide["norm"].contiguous(), wide["embedding"].contiguous()]
    pointers = (ctypes.c_void_p * len(kept))(*(tensor.data_ptr() for tensor in kept))
    half = [2 * i / config.head_dim for i in range(config.head_dim // 2)]
    out = torch.empty(config.batch, config.vocab)

    @torch.library.custom_op("grading_test::fused_right", mutates_args=("k", "v", "logits"))
    def fused(token_ids: torch.Tensor, k: torch.Tensor, v: torch.Tensor, logits: torch.Tensor, position: int) -> None:
        sizes = (ctypes.c_int * 8)(config.layers, config.hidden, config.ffn, config.heads, config.kv_heads,
                                   config.head_dim, config.vocab, k.shape[3])  # fmt: skip
        angles = (ctypes.c_float * len(half))(*(position * config.rope_theta**-power for power in half))
        token = ctypes.cast(token_ids.data_ptr(), ctypes.POINTER(ctypes.c_int64))[0]
        library.decode_step(
            pointers, sizes, angles, ctypes.c_int64(token), ctypes.c_void_p(k.data_ptr()),
            ctypes.c_void_p(v.data_ptr()), position, ctypes.c_float(config.norm_eps),
            ctypes.c_void_p(logits.data_ptr()),
        )  # fmt: skip

    def step(token_ids, cache):
        fused(token_ids, cache.k, cache.v, out, cache.length)
        return out

    step.kept = kept  # the library has their addresses only
    return step
