"""Memory of attention with local windows and a global token, at 4,096 and 16,384 tokens, against attention of all with all.

python benchmarks/local_global_memory.py [--lengths 4096 16384] [--layers 2]

For each mixer and length a process of its own runs one training step (forward and backward) of layers of Longformer's width
on the CPU, float32, and the most memory that torch's allocator held meanwhile, weights and gradients left out, is read off
the profiler's records. Full attention is computed as torch's math form does it, which keeps the scores; the fused form keeps
none, and its row says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

WIDTH, HEADS = 768, 12
KINDS = {
    "local_global": {"kind": "local_global", "attention_window": 512, "global_projections": True},
    "gqa, fused": {"kind": "gqa", "num_kv_heads": HEADS},
    "gqa, scores kept": {"kind": "gqa", "num_kv_heads": HEADS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_step(args.child[0], int(args.child[1]), args.layers)))
        return
    print(f"{'mixer':18}" + "".join(f"{length:>12,} tokens" for length in args.lengths) + f"{'grows':>10}")
    for kind in KINDS:
        lengths = args.lengths if kind != "gqa, scores kept" else [length // 4 for length in args.lengths]
        found = [_measured(kind, length, args.layers) for length in lengths]
        note = "" if lengths == args.lengths else f"   at {' and '.join(f'{length:,}' for length in lengths)} tokens"
        cells = "".join(f"{number / 2**20:>15,.0f} MiB" for number in found)
        print(f"{kind:18}{cells}{found[-1] / found[0]:>9.2f}x{note}")


def _measured(kind: str, length: int, layers: int) -> int:
    words = [sys.executable, "-W", "ignore", __file__, "--layers", str(layers), "--child", kind, str(length)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def _step(kind: str, length: int, layers: int) -> int:
    """Peak bytes of one training step beside weights and gradients."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    import archc
    from archc.spec.load import loads_spec

    mixer = json.dumps({**KINDS[kind], "num_heads": HEADS, "head_dim": WIDTH // HEADS})
    spec = f"""
spec_version: 1
name: memory
tokenizer: {{kind: external, vocab_size: 64}}
embedding: {{hidden_size: {WIDTH}}}
position: none
norm: {{kind: layer_norm, eps: 1e-5}}
mixers: {{attn: {mixer}}}
encoder: {{num_layers: {layers}, block: post_norm, mixer: attn, ffn: none}}
"""
    model = archc.build(loads_spec(spec), device="cpu", seed=0)
    ids = torch.zeros(1, length, dtype=torch.int64)
    alive: dict[int, int] = {}
    most = [0]

    class Counter(TorchDispatchMode):
        """Sums the storages that are alive, each once."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple | list) else (result,):
                if isinstance(each, torch.Tensor):
                    self._see(each.untyped_storage())
            return result

        def _see(self, storage: torch.UntypedStorage) -> None:
            import weakref

            key = storage._cdata
            if key not in alive:
                alive[key] = storage.nbytes()
                weakref.finalize(storage, alive.pop, key, None)
                most[0] = max(most[0], sum(alive.values()))

    backend = SDPBackend.MATH if kind == "gqa, scores kept" else SDPBackend.FLASH_ATTENTION
    with Counter(), sdpa_kernel([backend, SDPBackend.MATH]):
        model(ids).sum().backward()
    return most[0]


if __name__ == "__main__":
    main()
