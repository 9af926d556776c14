"""``linear`` and ``embedding`` as torch's own modules."""

from __future__ import annotations

from torch import nn

from archc.ir.values import Node
from archc.torch_backend.context import Context


def linear(node: Node, context: Context) -> nn.Module:
    """A real ``nn.Linear``; a tied one gets its weight from the module that owns it, after the build."""
    return context.linear(node.params["weight"], node.params.get("bias"))


def embedding(node: Node, context: Context) -> nn.Module:
    """A real ``nn.Embedding`` without the cost of its own initialisation."""
    weight = node.params["weight"]
    module = nn.Embedding.__new__(nn.Embedding)
    nn.Module.__init__(module)
    module.num_embeddings, module.embedding_dim = weight.shape
    module.padding_idx = module.max_norm = None
    module.norm_type, module.scale_grad_by_freq, module.sparse = 2.0, False, False
    module.weight = context.parameter(weight)
    return module
