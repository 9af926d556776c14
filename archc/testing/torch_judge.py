"""``archc export --verify``: a written file against torch on the same weights, with bounds that the dtype sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from archc.errors import CheckFailedError
from archc.graph.graph import Graph
from archc.ir.size import evaluate
from archc.testing.feeding import Given
from archc.testing.parity import (
    Calls,
    Difference,
    WrittenFile,
    conversations,
    difference,
    still_inputs,
    torch_outputs,
)
from archc.testing.whole import feeds_of, file_rows, passes, torch_rows
from archc.torch_backend.build import build
from archc.torch_backend.weights import materialise, weights_of

FLOAT32_TOLERANCE = 2e-5
"""Largest difference in float32, as a share of torch's largest output: two orders of summation, not two formulas."""
FLOAT16_LEAST, FLOAT16_LEAST_MEAN = 2.0**-8, 2.0**-11
"""Largest and mean difference in float16, eight of its rounding steps and one, where the model's own bounds are less."""
FLOAT16_DISTURBANCE = 2.0**-8
"""Eight times the largest relative error of a rounding to float16, 2^-11."""
DRAWS = 3
BATCH = 2
PROMPT, CHUNK, STEPS = 12, 12, 32
_WINDOW_OUTPUT_BYTES = 1 << 28
"""A prompt is as long as a window only if torch's outputs stay below this."""

Limits = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One way of cutting tokens into calls.

    ``relative`` is ``max_abs`` as a share of the largest output of torch; ``max_limit`` and ``mean_limit`` are what the two
    absolute differences may be, None where integer weights make them what they are.
    """

    way: str
    batch: int
    tokens: int
    max_abs: float
    mean_abs: float
    relative: float
    max_limit: float | None
    mean_limit: float | None

    @property
    def holds(self) -> bool:
        """Whether both differences keep their limits; one that is no number does not."""
        limits = (self.max_abs, self.max_limit), (self.mean_abs, self.mean_limit)
        return all(isfinite(found) and (limit is None or found <= limit) for found, limit in limits)


def judge(file: WrittenFile) -> Sequence[Mapping[str, Any]]:
    """Compare a file with torch in float32 on the weights that the file holds: figures for every way of cutting the tokens.

    In float32 no output may differ by more than 2e-5 of the largest. In float16 the mean difference may be that which torch
    itself makes when the output of every module is off by up to 2^-8 of itself, 8 times what rounding to float16 does, and the
    largest difference twice that one's; the worst of three draws counts. Or 2^-8 and 2^-11 of the largest output, where that
    is more. What float16 may cost depends on the model: on its depth, and on routers that choose another expert where two are
    nearly alike, which is a matter of chance. Differences of a file with integer weights are figures only.

    Raises:
        CheckFailedError: a difference is larger; all figures are in the message.
    """
    is_whole = file.graph.mask == "bidirectional"
    found = list(_whole_comparisons(file) if is_whole else _call_comparisons(file))
    if not all(each.holds for each in found):
        lines = "\n  ".join(described(asdict(each)) for each in found)
        raise CheckFailedError(f"{file.graph.name}: the file's outputs are not torch's ({file.dtype})\n  {lines}")
    return [asdict(each) for each in found]


def _call_comparisons(file: WrittenFile) -> Iterator[Comparison]:
    """Tokens cut into calls; of a decoder with its encoder, a source with padding too."""
    ids, ways = plan(file)
    stills = still_inputs(file.graph)
    # Which calls bring the decoder's tokens has nothing to do with padding of the source.
    fewer = dict([next(iter(ways.items())), list(ways.items())[-1]])
    cuts = {name: {f"{way}, {name}": calls for way, calls in fewer.items()} if name else ways for name in stills}
    # The file has run before torch holds the weights too.
    outputs: dict[str, Sequence[Any]] = {}
    for name, still in stills.items():
        given = {each: value.numpy() for each, value in still.items()}
        outputs |= file.run(conversations(ids, cuts[name]), given=given)
    model = torch_model(file)
    for name, still in stills.items():
        again = partial(torch_outputs, file.graph, model, ids, still)
        whole = again()
        size, limits = float(whole.abs().max()), _limits(file, model, whole, again)
        for way, calls in cuts[name].items():
            apart = difference(outputs[way], calls, whole, prune_head=file.prune_head, length=ids.shape[1])
            yield _comparison(way, len(calls[0]), apart, size, limits)


def _whole_comparisons(file: WrittenFile) -> Iterator[Comparison]:
    """All outputs for rows without padding, and with it on either side."""
    graph = file.graph
    ways = passes(graph, max(1, min(PROMPT + STEPS, file.max_model_len)))
    outputs = file.encode({name: feeds_of(graph, given) for name, given in ways.items()})
    model = torch_model(file)
    for way, given in ways.items():
        want, got = torch_rows(graph, model, given), file_rows(graph, outputs[way], given)
        for name, rows in want.items():
            limits = _limits(file, model, rows, partial(_rows, graph, model, given, name))
            apart = (got[name] - rows).abs()
            found = Difference(float(apart.max()), float(apart.double().mean()), len(rows))
            what = way if len(want) == 1 else f"{name}, {way}"
            yield _comparison(what, given.main.shape[0], found, float(rows.abs().max()), limits)


def _rows(graph: Graph, model: nn.Module, given: Given, name: str) -> Tensor:
    return torch_rows(graph, model, given)[name]


def described(figures: Mapping[str, Any]) -> str:
    """A comparison on one line."""
    allowed = ", ".join(
        f"{what} {figures[key]:.1e}" for what, key in (("max", "max_limit"), ("mean", "mean_limit")) if figures[key]
    )
    return (
        f"{figures['way']}: max {figures['max_abs']:.1e}, mean {figures['mean_abs']:.1e}, {figures['relative']:.1e} of the "
        f"largest; allowed: {allowed or 'what integer weights make of it'}"
    )


def _comparison(way: str, batch: int, found: Difference, size: float, limits: Limits) -> Comparison:
    return Comparison(
        way=way,
        batch=batch,
        tokens=found.tokens,
        max_abs=found.max_abs,
        mean_abs=found.mean_abs,
        relative=found.max_abs / size if size else found.max_abs,
        max_limit=limits[0],
        mean_limit=limits[1],
    )


def plan(file: WrittenFile) -> tuple[Tensor, dict[str, Calls]]:
    """Token ids (batch, length), and the ways to cut them that fit ``max_model_len``.

    The prompt is so long that a window of the cache comes round, where that is not too much to compute.
    """
    graph, longest = file.graph, file.max_model_len
    prompt = max(1, min(max(PROMPT, _window(graph, longest) - CHUNK // 2), longest // 2))
    length = min(prompt + STEPS, longest)
    ids = torch.randint(0, graph.vocab_size or 2, (BATCH, length), generator=torch.Generator().manual_seed(0))
    rest = length - prompt
    ways: dict[str, Calls] = {f"prefill of {length}": [(length,) * BATCH]}
    if rest > 2:
        chunk = min(CHUNK, rest - 1)
        ways[f"chunk of {chunk} over {prompt}, 1 more"] = [(prompt,) * BATCH, (chunk,) * BATCH, (1,) * BATCH]
    if file.ragged_prompts and prompt > 1 and rest > 1:
        short = max(1, prompt - 5)
        ways[f"rows of {prompt} and {short}, 2 more"] = [(prompt, short), (1, 1), (1, 1)]
    if rest:
        ways[f"{rest} decode steps after {prompt}"] = [(prompt,) * BATCH, *[(1,) * BATCH] * rest]
    return ids, ways


def _window(graph: Graph, longest: int) -> int:
    """Rows of the smallest ring that outputs of that length can be afforded for; 0 where there is none."""
    far = {"batch": 1, "seq": 1, "past": 1 << 40, "capacity": 1 << 40}
    rings = [
        evaluate(state.allocated[state.token_dim], far)
        for state in graph.states().values()
        if state.growth == "ring" and state.token_dim is not None
    ]
    width = graph.vocab_size or 1
    fits = [rows for rows in rings if rows + STEPS <= longest and BATCH * rows * width * 4 <= _WINDOW_OUTPUT_BYTES]
    return max(fits, default=0)


def torch_model(file: WrittenFile) -> nn.Module:
    """The file's graph in torch, float32, with the file's weights; one tensor at a time is held twice."""
    model = materialise(build(file.graph, device="meta"), "cpu")
    with torch.no_grad():
        for name, tensor in weights_of(model).items():
            array = file.read(name)
            tensor.copy_(torch.from_numpy(array if array.flags.writeable else array.copy()))
    return model


def _limits(file: WrittenFile, model: nn.Module, whole: Tensor, again: Callable[[], Tensor]) -> Limits:
    """What the largest and the mean absolute difference from ``whole`` may be, which ``again`` computes anew."""
    if file.quantized:
        return None, None
    size = float(whole.abs().max())
    if file.dtype == "float32":
        return FLOAT32_TOLERANCE * size, FLOAT32_TOLERANCE * size
    largest, mean = FLOAT16_LEAST * size, FLOAT16_LEAST_MEAN * size
    for seed in range(DRAWS):
        with disturbed(model, FLOAT16_DISTURBANCE, seed):
            apart = (again() - whole).abs()
        largest, mean = max(largest, 2 * float(apart.max())), max(mean, float(apart.mean()))
    return largest, mean


@contextmanager
def disturbed(model: nn.Module, share: float, seed: int) -> Iterator[None]:
    """Inside the block the output of every leaf module is off by up to ``share`` of itself, evenly; weights stay."""
    draw = torch.Generator().manual_seed(seed)

    def off(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value * (1 + share * (2 * torch.rand(value.shape, generator=draw) - 1))

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        return tuple(off(each) for each in output) if isinstance(output, tuple) else off(output)

    with ExitStack() as stack:
        for module in model.modules():
            if not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(hook).remove)
        yield
