"""A user's own module as a leaf: imported by its path when it is built, and held to what was declared of it."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from archc.errors import GraphError, PluginError
from archc.ir.values import Node
from archc.ops.opaque import Opaque
from archc.torch_backend.context import Context


def opaque(node: Node, context: Context) -> nn.Module:
    """The module, on the context's device, its weights those that the op declares.

    Raises:
        PluginError: its class can't be imported or built.
        GraphError: its weights are not the declared ones.
    """
    op = node.op
    assert isinstance(op, Opaque)
    cls = _class(op.module)
    keywords = {name: list(value) if isinstance(value, tuple) else value for name, value in op.keywords}
    try:
        with context.device:
            module = cls(**keywords)
    except Exception as error:
        # Someone else's constructor can fail in any way.
        raise PluginError(f"{node.name}: {op.module} can't be built: {type(error).__name__}: {error}") from error
    _check(node, op, module)
    for name, param in node.params.items():
        *parents, last = name.split(".")
        home = module.get_submodule(".".join(parents))
        if param.trainable:
            home._parameters[last] = context.parameter(param)
        else:
            home._buffers[last] = context.tensor(param)
    return module


def _class(place: str) -> type[nn.Module]:
    path, _, name = place.partition(":")
    try:
        found = getattr(import_module(path), name)
    except Exception as error:
        # Importing runs someone else's code.
        raise PluginError(f"the opaque module {place} can't be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise PluginError(f"the opaque module {place} is no subclass of torch.nn.Module")
    return found


def _check(node: Node, op: Opaque, module: nn.Module) -> None:
    saved = module.state_dict(keep_vars=True)
    trained = dict(module.named_parameters(remove_duplicate=False))
    problems = [f"declared {name} is not in it" for name in node.params if name not in saved]
    for name, tensor in saved.items():
        param = node.params.get(name)
        if param is None:
            problems.append(f"its {name} {list(tensor.shape)} is not declared")
        elif tuple(tensor.shape) != param.shape:
            problems.append(f"its {name} is {list(tensor.shape)}, declared {list(param.shape)}")
        elif (name in trained) != param.trainable:
            held = "a parameter" if name in trained else "a buffer"
            problems.append(f"its {name} is {held}, declared {'trainable' if param.trainable else 'untrainable'}")
    if len({id(tensor) for tensor in saved.values()}) < len(saved):
        problems.append("two of its weights are one tensor")
    # A buffer that is not saved is garbage after a build on the meta device.
    fleeting = sorted(name for name, _ in module.named_buffers() if name not in saved)
    problems += [f"its buffer {name} is not persistent: nothing could fill it" for name in fleeting]
    if problems:
        raise GraphError(f"{node.name}: {op.module} is not as declared: {'; '.join(problems)}")
