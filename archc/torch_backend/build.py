"""From a spec to a model: build, initialise, cast, and make caches."""

from __future__ import annotations

import math
from typing import Any
from typing import cast as typed

import torch
from torch import Tensor, nn

from archc.expansion import Source, as_graph
from archc.graph.graph import Graph
from archc.ir.op import Pairs
from archc.ir.values import DISTINCT, MODEL_DTYPE, Param, State
from archc.torch_backend.context import Context, torch_dtype
from archc.torch_backend.lower import lower
from archc.torch_backend.scopes import ScopeModule
from archc.units import dtype_name

INIT_STD = 0.02


def build(
    spec: Source,
    *,
    device: str | torch.device = "meta",
    dtype: str | torch.dtype = torch.float32,
    seed: int | None = None,
    twin: Pairs | None = None,
) -> ScopeModule:
    """The model of a spec, a graph, a file or a shipped spec's name.

    ``forward(input_ids, step=None, cache=None, last_only=False)``: ids (batch, seq) -> logits (batch, seq, rows), or
    hidden states without a head; further inputs of a spec (``token_type_ids``) follow by name and are zeros when left out.
    A bidirectional stack keeps nothing: ``forward(input_ids, attention_mask=None)``, the mask (batch, seq) 1 for tokens, 0 for
    padding. A decoder reads its encoder's ``encoder_input_ids`` and ``encoder_attention_mask``: ids in the first call over a
    cache, or in every one without, the mask in each.
    Without a cache it is the training forward. On the meta device nothing is allocated;
    elsewhere weights are drawn from ``seed``, or, when that is None, left unset to be loaded. Parameters are in
    ``dtype`` but for those that the graph fixes (decay parameters and correction biases stay float32). ``twin`` builds
    from the readable twins: slow, for judging.

    Raises:
        SpecError: the spec is wrong.
        GraphError: a kind builds something illegal.
    """
    graph = as_graph(spec)
    kind = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype_name(dtype))
    context = Context(device=torch.device(device), dtype=kind, twin=twin)
    model = lower(graph, context)
    model.archc_graph = graph  # type: ignore[assignment]
    if seed is not None:
        init(model, seed)
    return model


def graph_of(model: nn.Module) -> Graph:
    """The graph that a model was built from."""
    graph = getattr(model, "archc_graph", None)
    assert isinstance(graph, Graph), "the model was not built by archc.build"
    return graph


def init(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every weight from its declared initialiser, in the graph's order: equal seeds give equal weights.

    A model on the meta device stays there, so this does nothing to it.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    generator: torch.Generator | None = None
    with torch.no_grad():
        for name, param in graph_of(model).params().items():
            tensor = tensors[name]
            if tensor.is_meta:
                continue
            if generator is None or generator.device != tensor.device:
                generator = torch.Generator(tensor.device).manual_seed(seed)
            _draw(tensor, param, generator)
    return model


def drawn(param: Param, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """A weight by itself: drawn one after the other in the graph's order, they are those of ``init``."""
    tensor = torch.empty(param.shape, dtype=dtype, device=generator.device)
    _draw(tensor, param, generator)
    return tensor


def _draw(tensor: Tensor, param: Param, generator: torch.Generator) -> None:
    match param.init:
        case "normal":
            tensor.normal_(0.0, INIT_STD, generator=generator)
        case "zeros":
            tensor.zero_()
        case "ones":
            tensor.fill_(1.0)
        case "conv":
            bound = param.shape[-1] ** -0.5
            tensor.uniform_(-bound, bound, generator=generator)
        case "a_log":
            # Decay rates from 1 to 16, as Mamba-2 and its successors draw them (arXiv 2405.21060).
            tensor.uniform_(1.0, 16.0, generator=generator).log_()
        case "dt_bias":
            # softplus(dt_bias) lies between 0.001 and 0.1, evenly in its logarithm.
            dt = tensor.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp_()
            tensor.copy_(dt + torch.log(-torch.expm1(-dt)))
        case other if other.startswith(DISTINCT):
            noise = torch.rand(
                (param.shape[0], int(other.removeprefix(DISTINCT))), generator=generator, device=tensor.device
            )
            tensor.copy_(noise.argsort(-1)[:, : param.shape[1]])
        case other:
            raise AssertionError(f"{param.name}: unknown initialiser {other!r}")


def cast(model: nn.Module, dtype: str | torch.dtype) -> nn.Module:
    """Weights in another dtype, in place, but for those whose dtype the graph fixes. ``model.to(dtype)`` would cast those too."""
    kind = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype_name(dtype))
    params = graph_of(model).params()
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            full = f"{path}.{name}" if path else name
            if tensor is not None and (full not in params or params[full].dtype == MODEL_DTYPE):
                tensor.data = tensor.data.to(kind)
    return model


def new_cache(
    model: nn.Module,
    *,
    batch: int,
    max_model_len: int,
    source_len: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Tensor]:
    """An empty cache: a flat mapping from state name to tensor, preallocated for ``max_model_len`` tokens a row.

    ``source_len`` tokens, by default as many, are given to the encoder that a decoder reads; shorter rows are padded.

    Keys, values, latents and convolution columns are in ``dtype``, by default the cache policy's, and where that follows
    the model, the dtype of the model's weights; recurrent states are in the policy's ``state_dtype``.

    A cache is written in place, so nothing may copy it on its way: FSDP2's ``MixedPrecisionPolicy`` needs
    ``cast_forward_inputs=False`` where a model decodes.
    """
    graph = graph_of(model)
    weights = next(p for p in model.parameters() if p.dim() > 1)
    given = None if dtype is None else dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype_name(dtype))

    def kind(state: State) -> torch.dtype:
        if given is not None and state.role != "recurrent":
            return given
        return weights.dtype if state.dtype == MODEL_DTYPE else torch_dtype(state.dtype)

    return {
        name: torch.zeros(
            graph.state_shape(state, batch=batch, max_model_len=max_model_len, source_len=source_len),
            dtype=kind(state),
            device=device or weights.device,
        )
        for name, state in graph.states().items()
    }


def to_graph_module(model: nn.Module) -> Any:
    """Nested ``fx.GraphModule``s over the same leaves, for tools that rewrite graphs."""
    from torch import fx

    if not isinstance(model, ScopeModule):
        return model
    root = nn.Module()
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            root.add_module(name, nn.ModuleList([typed(nn.Module, to_graph_module(item)) for item in child]))
        else:
            root.add_module(name, to_graph_module(child))
    module = fx.GraphModule(root, type(model).graph, class_name=type(model).__name__)
    for name, child in root.named_children():
        if isinstance(child, nn.ModuleList):
            setattr(module, name, child)
    return module
