"""Traces ``define`` methods into a graph. Kinds see the vocabulary (``vocabulary.py``); this file owns scopes and names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from archc.errors import GraphError
from archc.ir.op import Op
from archc.ir.size import BATCH, SEQ
from archc.ir.values import Body, Call, Node, Param, State, TensorType, Value


class _Frame:
    """A body being traced: names in use, values captured from outside, and what outside values they stand for."""

    __slots__ = ("body", "captured", "names", "outside", "path")

    def __init__(self, body: Body, path: str) -> None:
        self.body, self.path = body, path
        self.names: set[str] = set()
        self.captured: dict[Value, Value] = {}
        self.outside: list[Value] = []


class _Traced:
    """A finished body that equal layers may share: its inputs as (argument, None) or (None, captured value).

    An argument is named by its number or its keyword. ``told`` are the periods that the body asked about, and what it was told.
    """

    __slots__ = ("body", "result", "sources", "told")

    def __init__(
        self,
        body: Body,
        sources: list[tuple[int | str | None, Value | None]],
        result: list[int] | None,
        told: dict[int, bool],
    ) -> None:
        self.body, self.sources, self.result, self.told = body, sources, result, told


class Tracer:
    """Scopes, names, capture of outside values, and placing of ops. ``Builder`` adds the vocabulary."""

    def __init__(self, *, has_tokens: bool = True) -> None:
        self._frames = [_Frame(Body("model"), "")]
        self._number = 0
        self._memo: dict[Hashable, list[_Traced]] = {}
        self._hoisted: dict[tuple[Op, tuple[Value, ...]], tuple[Value, ...]] = {}
        self._hoisted_kinds: dict[tuple[str, type[Op]], int] = {}
        self._index_used = False
        self._told: dict[int, bool] = {}
        self._layer_index: int | None = None
        self.sources: dict[str, Value] = {}
        """Named values of the whole model, its inputs; ``positions`` are those of the stack that is traced."""
        self.inputs: dict[str, Value] = {}
        self.prefix = ""
        """Begins the names of what is placed at the root: ``encoder.`` while that stack is traced, of two."""
        for name in ("input_ids", "positions") if has_tokens else ():
            self.add_input(name, TensorType((BATCH, SEQ), "int64"))

    @property
    def root(self) -> Body:
        return self._frames[0].body

    @property
    def path(self) -> str:
        """Dotted path of the scope that is open, for messages."""
        return self._frames[-1].path

    @property
    def layer_index(self) -> int:
        """Number of the layer that is traced; a body that asks for it is not shared with other layers."""
        self._index_used = True
        assert self._layer_index is not None, "layer_index is known inside a layer only"
        return self._layer_index

    def layer_begins(self, period: int) -> bool:
        """Whether the layer that is traced is the first of ``period``; a body that asks is shared with layers of that answer."""
        assert self._layer_index is not None, "which layer it is, is known inside a layer only"
        self._told[period] = self._layer_index % period == 0
        return self._told[period]

    def add_input(self, name: str, kind: TensorType) -> Value:
        """Declare one more input of the whole model."""
        value = self._value(self.root, kind)
        self.root.inputs.append(value)
        self.inputs[name] = self.sources[name] = value
        return value

    def emit(
        self, op: Op, inputs: Sequence[Value], *, name: str = "", weights: dict[str, Param] | None = None
    ) -> tuple[Value, ...]:
        """Place any op, first-party or not; ``weights`` are parameters that another op owns (tied weights).

        Raises:
            GraphError: the inputs don't fit, the name is taken, or an op with weights or states has no name.
        """
        return self._emit_into(len(self._frames) - 1, op, inputs, name, weights)

    def hoist(self, op: Op, inputs: Sequence[Value], *, name: str) -> tuple[Value, ...]:
        """Place an op at the root, before the scope that is open, once for equal ops over equal inputs."""
        key = (op, tuple(inputs))
        if key not in self._hoisted:
            kind = (self.prefix, type(op))
            count = self._hoisted_kinds[kind] = self._hoisted_kinds.get(kind, -1) + 1
            self._hoisted[key] = self._emit_into(0, op, inputs, f"{name}_{count}", None)
        return self._hoisted[key]

    def scope(
        self, name: str, define: Callable[..., Any], *args: Any, label: str = "", part: str = "", **kwargs: Any
    ) -> Any:
        """Run ``define(g, *args)`` inside the scope ``name`` and return its values. Values among the arguments are passed in."""
        return self._enter(name, define, args, kwargs, label or name, part, None)

    def layer(
        self, index: int, define: Callable[..., Any], *args: Any, key: Hashable, label: str = "", **kwargs: Any
    ) -> Any:
        """The scope ``layers.N``; layers with equal keys and argument types share one body, traced once."""
        self._layer_index = index
        try:
            return self._enter(f"{self.prefix}layers.{index}", define, args, kwargs, label or "layer", "", key)
        finally:
            self._layer_index = None

    def _enter(
        self,
        name: str,
        define: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        label: str,
        part: str,
        key: Hashable,
    ) -> Any:
        outer = self._frames[-1]
        self._claim(outer, name)
        given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        values = [
            (slot, self._seen(outer, name, arg, len(self._frames) - 1))
            for slot, arg in given.items()
            if isinstance(arg, Value)
        ]
        memo_key = (key, tuple((slot, value.type.key()) for slot, value in values)) if key is not None else None
        known = self._memo.get(memo_key, []) if memo_key is not None else []
        traced = next((body for body in known if self._would_be_told(body.told)), None)
        if traced is not None:
            by_slot = dict(values)
            inputs: list[Value] = []
            for slot, captured in traced.sources:
                value = by_slot[slot] if slot is not None else captured
                assert value is not None
                inputs.append(value)
            return self._call(outer, name, traced.body, inputs, traced.result)

        frame = _Frame(Body(label, part), f"{outer.path}.{name}" if outer.path else name)
        self._frames.append(frame)
        index_used, self._index_used = self._index_used, False
        told, self._told = self._told, {}
        slots: dict[Value, int | str] = {}
        for slot, value in values:
            inner = self._value(frame.body, value.type)
            slots[inner] = slot
            given[slot] = inner
            frame.body.inputs.append(inner)
            frame.outside.append(value)
        try:
            result = define(self, *(given[i] for i in range(len(args))), **{word: given[word] for word in kwargs})
            results = [result] if isinstance(result, Value) else list(result)
            results = [self._seen(frame, "its result", value, len(self._frames) - 1) for value in results]
        finally:
            self._frames.pop()
        used = {value for item in frame.body.items for value in item.inputs} | set(results)
        kept = [(inner, out) for inner, out in zip(frame.body.inputs, frame.outside, strict=True) if inner in used]
        frame.body.inputs = [inner for inner, _ in kept]
        frame.body.outputs = list(dict.fromkeys(results))
        order = None if isinstance(result, Value) else [frame.body.outputs.index(value) for value in results]
        if memo_key is not None and not self._index_used:
            sources = [(slots.get(inner), None if inner in slots else out) for inner, out in kept]
            self._memo.setdefault(memo_key, []).append(_Traced(frame.body, sources, order, self._told))
        self._index_used = self._index_used or index_used
        self._told = {**told, **self._told}
        return self._call(outer, name, frame.body, [out for _, out in kept], order)

    def _would_be_told(self, told: dict[int, bool]) -> bool:
        index = self._layer_index
        return index is None or all((index % period == 0) is answer for period, answer in told.items())

    def _call(self, outer: _Frame, name: str, body: Body, inputs: list[Value], order: list[int] | None) -> Any:
        outputs = tuple(self._value(outer.body, value.type) for value in body.outputs)
        outer.body.items.append(Call(name, body, tuple(inputs), outputs))
        return outputs[0] if order is None else tuple(outputs[i] for i in order)

    def _emit_into(
        self, depth: int, op: Op, inputs: Sequence[Value], name: str, weights: dict[str, Param] | None
    ) -> tuple[Value, ...]:
        frame = self._frames[depth]
        name = f"{self.prefix}{name}" if name and depth == 0 else name
        local = tuple(self._seen(frame, name or op.op_name, value, depth) for value in inputs)
        types = [value.type for value in local]
        try:
            outputs = op.infer(types)
            params, states = op.params(types), op.states(types)
        except GraphError as error:
            what = name or op.op_name
            raise GraphError(f"{frame.path or 'model'}: {what}: {str(error).removeprefix(f'{what}: ')}") from None
        if name:
            self._claim(frame, name)
            _own(name, params, states)
        elif params or states:
            raise GraphError(f"{frame.path or 'model'}: {op.op_name} has weights or a state, so it needs a name")
        values = tuple(self._value(frame.body, kind) for kind in outputs)
        frame.body.items.append(Node(op, name, local, values, {**params, **(weights or {})}, states))
        return values

    def _claim(self, frame: _Frame, name: str) -> None:
        if name in frame.names:
            raise GraphError(f"{frame.path or 'model'}: the name {name!r} is used twice")
        frame.names.add(name)

    def _value(self, body: Body, kind: TensorType) -> Value:
        self._number += 1
        return Value(body, self._number, kind)

    def _seen(self, frame: _Frame, user: str, value: Value, depth: int) -> Value:
        """The value as the frame at ``depth`` sees it; ``user`` is what uses it.

        Raises:
            GraphError: it was made inside a scope that is closed.
        """
        if value.home is frame.body:
            return value
        if all(value.home is not open_frame.body for open_frame in self._frames[:depth]):
            raise GraphError(
                f"{frame.path or 'model'}: {user}: {value} was made inside a scope that is closed; return it from there"
            )
        return self._localize(value, depth)

    def _localize(self, value: Value, depth: int) -> Value:
        """The frame's own value, or one captured from further out."""
        frame = self._frames[depth]
        if value.home is frame.body:
            return value
        if value not in frame.captured:
            outer = self._localize(value, depth - 1)
            inner = self._value(frame.body, value.type)
            frame.captured[value] = inner
            frame.body.inputs.append(inner)
            frame.outside.append(outer)
        return frame.captured[value]


def _own(name: str, params: dict[str, Param], states: dict[str, State]) -> None:
    for owned in (*params.values(), *states.values()):
        owned.name = f"{name}.{owned.name}"
