"""Layouts of Mamba-2 and of the families around it in transformers: what is joined there is apart in archc."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Tensors = dict[str, Tensor]
Rules = tuple[tuple[str, Callable[[str, Tensor], Tensors]], ...]


def _in_layer(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {f"{_layer(name)}.{other}": tensor}


def _layer(name: str) -> str:
    """``layers.N`` of a whole name."""
    return ".".join(name.split(".")[1:3])


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[1]


def _projection(heads: int, head_dim: int, grouped: int) -> Callable[[str, Tensor], Tensors]:
    """Rows [gate | x | B | C | step]."""
    sizes = (heads * head_dim, heads * head_dim, grouped, grouped, heads)

    def parts(name: str, tensor: Tensor) -> Tensors:
        named = zip(("gate", "x", "b", "c", "dt"), tensor.split(sizes), strict=True)
        return {f"{_layer(name)}.mixer.{part}_proj.{_leaf(name)}": rows for part, rows in named}

    return parts


def _convolution(heads: int, head_dim: int, grouped: int) -> Callable[[str, Tensor], Tensors]:
    """Channels [x | B | C]."""
    sizes = (heads * head_dim, grouped, grouped)

    def parts(name: str, tensor: Tensor) -> Tensors:
        named = zip("xbc", tensor.split(sizes), strict=True)
        return {f"{_layer(name)}.mixer.conv.{part}_conv1d.{_leaf(name)}": rows for part, rows in named}

    return parts


def _state_space(name: str, tensor: Tensor) -> Tensors:
    return {f"{_layer(name)}.mixer.state_space.{_leaf(name)}": tensor}


def _moved(before: str, after: str) -> Callable[[str, Tensor], Tensors]:
    """Another name of the module inside a layer."""
    return lambda name, tensor: {name.split(".", 1)[1].replace(before, after, 1): tensor}


def _gate_then_up(module: str) -> Callable[[str, Tensor], Tensors]:
    def parts(name: str, tensor: Tensor) -> Tensors:
        named = zip(("gate", "up"), tensor.chunk(2), strict=True)
        return {f"{_layer(name)}.{module}.{part}_proj.weight": rows for part, rows in named}

    return parts


def _experts_gate_then_up(name: str, tensor: Tensor) -> Tensors:
    parts = zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True)
    return {f"{_layer(name)}.ffn.experts.{part}_proj": rows for part, rows in parts}


def _mamba(module: str, *, head_dim: int, groups: int) -> Rules:
    """Eight heads, states of 12."""
    inside = rf"\w+\.layers\.\d+\.{module}\."
    return (
        (rf"{inside}in_proj\.(weight|bias)", _projection(8, head_dim, 12 * groups)),
        (rf"{inside}conv1d\.(weight|bias)", _convolution(8, head_dim, 12 * groups)),
        (rf"{inside}(A_log|dt_bias|D)", _state_space),
        (rf"{inside}norm\.weight", _in_layer("mixer.o_norm.weight")),
        (rf"{inside}out_proj\.(weight|bias)", _moved(f"{module}.", "mixer.")),
    )


def _granite(shared: str, groups: int) -> Rules:
    layer = r"model\.layers\.\d+\."
    return (
        *_mamba("mamba", head_dim=16, groups=groups),
        (rf"{layer}shared_mlp\.input_linear\.weight", _gate_then_up(shared)),
        (rf"{layer}shared_mlp\.output_linear\.weight", _in_layer(f"{shared}.down_proj.weight")),
        (rf"{layer}block_sparse_moe\.router\.weight", _in_layer("ffn.router.weight")),
        (rf"{layer}block_sparse_moe\.experts\.gate_up_proj", _experts_gate_then_up),
        (rf"{layer}block_sparse_moe\.experts\.down_proj", _in_layer("ffn.experts.down_proj")),
    )


_NEMOTRON: Rules = (
    (r"model\.embeddings\.weight", lambda name, tensor: {"embed_tokens.weight": tensor}),
    (r"model\.norm_f\.weight", lambda name, tensor: {"norm.weight": tensor}),
    # Layers 0, 2 and 4 mix tokens.
    (r"model\.layers\.[024]\.norm\.weight", _in_layer("mixer_norm.weight")),
    (r"model\.layers\.[135]\.norm\.weight", _in_layer("ffn_norm.weight")),
    *_mamba("mixer", head_dim=12, groups=2),
    (r"model\.layers\.2\.mixer\.[qkvo]_proj\.weight", lambda name, tensor: {name.split(".", 1)[1]: tensor}),
    (r"model\.layers\.\d+\.mixer\.gate\.(weight|e_score_correction_bias)", _moved("mixer.gate.", "ffn.router.")),
    (r"model\.layers\.\d+\.mixer\.fc1_latent_proj\.weight", _in_layer("ffn.latent_down_proj.weight")),
    (r"model\.layers\.\d+\.mixer\.fc2_latent_proj\.weight", _in_layer("ffn.latent_up_proj.weight")),
    (r"model\.layers\.\d+\.mixer\.(shared_experts\.|experts\.|)(up|down)_proj(\.weight)?", _moved("mixer.", "ffn.")),
)

LAYERS: dict[str, Rules] = {
    "mamba2": (
        (r"backbone\.embeddings\.weight", lambda name, tensor: {"embed_tokens.weight": tensor}),
        (r"backbone\.norm_f\.weight", lambda name, tensor: {"norm.weight": tensor}),
        (r"backbone\.layers\.\d+\.norm\.weight", _in_layer("mixer_norm.weight")),
        *_mamba("mixer", head_dim=16, groups=2),
    ),
    "granitemoehybrid": _granite("ffn.shared_experts", 2),
    "granitemoehybrid_dense": _granite("ffn", 1),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_latent": _NEMOTRON,
}
"""Family -> rules for whole names, tried before those of all families."""
