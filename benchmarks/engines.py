"""Engines that run one model, each behind the same two calls. Runs in the peers' environment; archc isn't imported here.

``prefill(ids)`` reads a prompt into empty caches, ``decode(steps)`` goes on from it one token a call, as often as asked, always
from the same place where the caches allow. Caches are bound once where the file takes one buffer for past and present.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
import torch

Array = np.ndarray
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def _apart(path: Path) -> list[str]:
    """Caches of an archc file whose past and present must not be one buffer; nothing in a peer's folder."""
    contract = path.parent / "archc.json"
    if not contract.exists():
        return []
    caches = json.loads(contract.read_text())["caches"]
    return [cache["input"] for cache in caches if not cache["in_place"]]


def parts(ids: Array, chunk: int) -> list[Array]:
    """A prompt (1, seq) in chunks, whole where chunk is 0."""
    starts = range(0, ids.shape[1], chunk) if chunk else [0]
    return [np.ascontiguousarray(ids[:, start : start + chunk] if chunk else ids) for start in starts]


class Engine(Protocol):
    """What the rounds call."""

    def prefill(self, ids: Array) -> Array: ...
    def resume(self) -> None: ...
    def decode(self, tokens: Array) -> Array: ...


def session(model: Path | bytes, threads: int, *, profile: str = "") -> ort.InferenceSession:
    """A file on the CPU provider; ``profile`` is the prefix of a trace to write."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxEngine:
    """A file of archc, mobius or onnxruntime-genai's builder, IO-bound; the calling convention is read off its inputs."""

    def __init__(
        self, path: Path, *, threads: int, capacity: int, vocab: int, chunk: int = 0, profile: str = ""
    ) -> None:
        self._chunk = chunk
        self.session = session(path, threads, profile=profile)
        self._capacity, self._vocab = capacity, vocab
        given = {value.name: value for value in self.session.get_inputs()}
        self._given = set(given)
        self._pasts = [name for name in given if name.startswith("past_key_values")]
        self._logits = self.session.get_outputs()[0]
        self._pruned = self._logits.shape[1] == 1
        self._length = 0
        # ai.onnx Attention with a past joins it to the new rows, so that the present is a tensor of another length.
        self._grows = "position_ids" in given and not self._own(given)
        self._buffers = {name: self._buffer(given[name]) for name in self._pasts}
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._buffers.items()}
        self._mask = np.ones(capacity + 1, np.int64)
        self._bindings: dict[tuple[int, int], tuple[Any, dict[str, Array], Array]] = {}
        # Where archc's file reads a past after the present is written, two small buffers take turns.
        self._others = {name: np.zeros_like(self._buffers[name]) for name in _apart(path)}
        self._second = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._others.items()}
        self._turn = 0

    def _own(self, given: Any) -> bool:
        return "past_length" in given

    def _buffer(self, value: Any) -> Array:
        growing = [isinstance(dim, str) and dim.startswith(("past_seq", "capacity")) for dim in value.shape]
        rows = 0 if self._grows else self._capacity
        sizes = {"kv_cache_dim": 64}
        shape = [
            1 if i == 0 else rows if grows else dim if isinstance(dim, int) else sizes[dim]
            for i, (dim, grows) in enumerate(zip(value.shape, growing, strict=True))
        ]
        return np.zeros(shape, _NUMPY[value.type])

    def prefill(self, ids: Array) -> Array:
        """Logits (1, seq or 1, vocab) of a prompt (1, seq), or of its last chunk, in emptied caches."""
        self._length = 0
        for array in (*self._buffers.values(), *self._others.values()):
            array.fill(0)
        if self._grows:
            self._values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._buffers.items()}
        y = np.zeros(0)
        for part in parts(ids, self._chunk):
            y = self._run(part)
        self._prompt, self._after = self._length, dict(self._values)
        return y

    def resume(self) -> None:
        """Back to the end of the prompt; recurrent states are left where they are, which costs the same."""
        self._length, self._values = self._prompt, dict(self._after)

    def decode(self, tokens: Array) -> Array:
        """Logits (1, 1, vocab) after the last of tokens (steps,), which are fed one by one."""
        y = np.zeros(0)
        for token in tokens:
            y = self._run(token.reshape(1, 1))
        return y

    def _run(self, ids: Array) -> Array:
        seq = ids.shape[1]
        binding, feeds, logits = self._bound(seq)
        feeds["input_ids"][:] = ids
        if "past_length" in feeds:
            feeds["past_length"][:], feeds["seq_length"][:] = self._length, seq
            feeds["kv_length"][:], feeds["max_length"][:] = self._length + seq, self._length + seq
        if "position_ids" in feeds:
            feeds["position_ids"][:] = np.arange(self._length, self._length + seq)
        if "attention_mask" in self._given:
            binding.bind_cpu_input("attention_mask", self._mask[: self._length + seq].reshape(1, -1))
        if self._grows:  # an output that was bound once keeps the shape of its first run
            for name, value in self._values.items():
                binding.bind_ortvalue_input(name, value)
                binding.bind_output(name.replace("past_key_values", "present"), "cpu")
        self.session.run_with_iobinding(binding)
        if self._grows:
            found = binding.get_outputs()
            self._values = dict(zip(self._pasts, found[1:], strict=True))
        self._length += seq
        return logits

    def _bound(self, seq: int) -> tuple[Any, dict[str, Array], Array]:
        """The binding for this many tokens, made once: caches in place, small inputs in buffers that are overwritten."""
        turn = self._turn
        if self._second:
            self._turn = 1 - turn
        if (seq, turn) in self._bindings:
            return self._bindings[seq, turn]
        binding = self.session.io_binding()
        logits = np.zeros((1, 1 if self._pruned else seq, self._vocab), np.float32)
        binding.bind_ortvalue_output(self._logits.name, ort.OrtValue.ortvalue_from_numpy(logits))
        shapes = {"input_ids": (1, seq), "position_ids": (1, seq)}
        lengths = dict.fromkeys(("past_length", "seq_length", "kv_length", "max_length"), (1,))
        feeds = {
            name: np.zeros(shape, np.int64) for name, shape in {**shapes, **lengths}.items() if name in self._given
        }
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name in self._pasts:
            present = name.replace("past_key_values", "present")
            if not self._grows:
                pair = (self._values[name], self._second.get(name, self._values[name]))
                binding.bind_ortvalue_input(name, pair[turn])
                binding.bind_ortvalue_output(present, pair[1 - turn])
        self._bindings[seq, turn] = binding, feeds, logits
        return self._bindings[seq, turn]

    def cache_bytes(self) -> int:
        """Bytes of all caches as they are now."""
        return sum(value.numpy().nbytes for value in self._values.values())


class EagerEngine:
    """transformers' model in torch, eager, with its own growing cache."""

    def __init__(self, checkpoint: Path, *, last_only: bool, chunk: int = 0) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="sdpa")
        self._model.eval()
        self._keep, self._chunk = 1 if last_only else 0, chunk
        self._held: Any = None

    @torch.inference_mode()
    def prefill(self, ids: Array) -> Array:
        """Logits (1, seq or 1, vocab) of a prompt (1, seq), or of its last chunk."""
        self._held, y = None, np.zeros(0)
        for part in parts(ids, self._chunk):
            done = self._model(torch.from_numpy(part), cache=self._held, use_cache=True, logits_to_keep=self._keep)
            self._held, y = done.cache, done.logits.numpy()
        return y

    def resume(self) -> None:
        """Its cache only grows; a few dozen tokens over some hundred make no difference that could be seen."""

    @torch.inference_mode()
    def decode(self, tokens: Array) -> Array:
        """Logits (1, 1, vocab) after the last of tokens (steps,)."""
        y: Any = None
        for token in tokens:
            y = self._model(torch.tensor([[int(token)]]), cache=self._held, use_cache=True).logits
        return y.numpy()


class RuntimeEngine:
    """onnxruntime-genai's own runtime over its builder's file: greedy search, its buffers and its sampling."""

    def __init__(self, folder: Path, *, threads: int, capacity: int) -> None:
        import onnxruntime_genai as genai

        config = genai.Config(str(folder))
        options = {"intra_op_num_threads": threads, "log_severity_level": 3}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._genai, self._model = genai, genai.Model(config)
        self._capacity = capacity
        self._generator: Any = None

    def _new(self, ids: Array) -> Any:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._capacity, min_length=self._capacity, do_sample=False)
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(ids[0].astype(np.int32))
        return generator

    def prefill(self, ids: Array) -> Array:
        """Logits of the last token (1, 1, vocab); the file computes all of them."""
        self._generator, self._ids = self._new(ids), ids
        return np.asarray(self._generator.get_logits()).reshape(1, -1, self._vocab())[:, -1:]

    def _vocab(self) -> int:
        return np.asarray(self._generator.get_logits()).shape[-1]

    def resume(self) -> None:
        """A new prompt; the first token only takes what the prompt has computed, so it is drawn here."""
        self._generator = self._new(self._ids)
        self._generator.generate_next_token()

    def decode(self, tokens: Array) -> Array:
        """As many tokens of its own choice as tokens has."""
        for _ in tokens:
            self._generator.generate_next_token()
        return np.full((1, 1, 1), np.nan, np.float32)


class Bandwidth:
    """Bytes a second at which this machine reads memory now: the sum of 400 MiB, faster here than torch's product by a vector."""

    BYTES = 400 << 20

    def __init__(self) -> None:
        self._numbers = torch.ones(self.BYTES // 4)

    def measure(self) -> None:
        self._numbers.sum()


class Gemm:
    """FLOPs a second of onnxruntime's own large float32 matrix product here and now: the limit of a prompt.

    Not torch's, which reaches two thirds of it on some processors.
    """

    SIZE = 2048
    FLOPS = 2 * SIZE**3

    def __init__(self, threads: int) -> None:
        weight = onnx.numpy_helper.from_array(np.ones((self.SIZE, self.SIZE), np.float32), "w")
        ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [self.SIZE, self.SIZE]) for n in "xy"]
        node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = onnx.helper.make_graph([node], "gemm", ends[:1], ends[1:], [weight])
        opsets = [onnx.helper.make_opsetid("", 24)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        self._session = session(model.SerializeToString(), threads)
        self._feeds = {"x": np.ones((self.SIZE, self.SIZE), np.float32)}

    def measure(self) -> None:
        self._session.run(None, self._feeds)
