"""What a lowering function works with: nodes, constants, weights, caches, and values of the call that are made once.

A lowering is a function ``(ctx, node, *inputs) -> output or outputs`` registered under the op's name in the entry-point
group ``archc.onnx``. It appends nodes through ``ctx``; names come from the scope path by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from archc.errors import GraphError
from archc.graph.graph import Graph, join
from archc.ir.values import MODEL_DTYPE, Node, Param, State
from archc_exporters.onnx.cache_dtype import cache_form, scale_of
from archc_exporters.onnx.parts import Part, dimensions, file_inputs, is_whole
from archc_exporters.onnx.states import onnx_state_names, present_name
from archc_exporters.onnx.target import Target
from archc_exporters.onnx.weights import (
    DTYPES,
    NUMPY_DTYPES,
    Array,
    StreamedTensor,
    Transform,
    WeightSource,
    computed_tensor,
    lazy_tensor,
)

if TYPE_CHECKING:
    from archc_exporters.onnx.quantize import QuantizedWeights

MS = "com.microsoft"
OPSETS = {"": 24, MS: 1}
KEEP_FLOAT = "archc.keep_float"
"""Mark on a weight that is not quantised; its value is the reason."""


class Lowering:
    """One file in the making. ``dtype`` is the model's; ``table_rows`` is how many positions a rope table covers.

    ``part`` says which of a graph's files it is, ``is_whole`` whether that sees all tokens in one call.
    """

    def __init__(
        self, graph: Graph, *, target: Target, weights: WeightSource, table_rows: int, part: Part = "model"
    ) -> None:
        self.graph, self.target, self.weights, self.table_rows = graph, target, weights, table_rows
        self.part: Part = part
        self.is_whole = is_whole(graph, part)
        self.dtype = target.ir_dtype
        self.inputs = file_inputs(graph, target, part)
        self.places: ir.Value | None = None
        """0, 1, … of the tokens of what is no text, (batch, seq), once they have been counted."""
        self.pasts: dict[str, ir.Value] = {}
        self.presents: dict[str, ir.Value] = {}
        self.initializers: dict[str, ir.Value] = {}
        self.nodes: list[ir.Node] = []
        self.choices: dict[tuple[str, str], int] = {}
        """(op name, form and reason) -> how many nodes were lowered so."""
        self.remarks: list[str] = []
        """What a user of the file should know; each once."""
        self.quantization: QuantizedWeights | None = None
        """What the target's quantisation made of the weights."""
        self.scope = self.path = self._op_name = ""
        self._root_nodes = self.nodes
        self.state_names = onnx_state_names(graph)
        self._taken: dict[str, int] = {}
        self._constants: dict[Hashable, ir.Value] = {}
        self._shared: dict[Hashable, Any] = {}

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """A node with one output, of the first input's dtype unless ``dtype`` says otherwise."""
        return self.ops(op_type, *inputs, dtypes=(dtype,), domain=domain, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        dtypes: Sequence[ir.DataType | None],
        domain: str = "",
        **attributes: Any,
    ) -> list[ir.Value]:
        """A node with as many outputs as there are dtypes; None stands for the first input's."""
        name = self._unique(f"{self.path}/{op_type}")
        default = next((value.dtype for value in inputs if value is not None), None)
        outputs = [
            ir.Value(
                name=name if number == 0 else f"{name}:{number}", type=ir.TensorType(dtype or default or self.dtype)
            )
            for number, dtype in enumerate(dtypes)
        ]
        self.nodes.append(ir.node(op_type, list(inputs), attributes, domain=domain, outputs=outputs, name=name))
        return outputs

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value itself where it has the dtype already."""
        return x if x.dtype == dtype else self.op("Cast", x, dtype=dtype, to=dtype)

    def choose(
        self,
        condition: ir.Value,
        then: Callable[[], Sequence[ir.Value]],
        otherwise: Callable[[], Sequence[ir.Value]],
        dtypes: Sequence[ir.DataType],
    ) -> list[ir.Value]:
        """An If whose branches are what the two functions append; they read values of the outer graph freely."""
        branches = [self._branch(name, build) for name, build in (("then", then), ("else", otherwise))]
        return self.ops("If", condition, dtypes=dtypes, then_branch=branches[0], else_branch=branches[1])

    def scan(
        self,
        state: ir.Value,
        sequences: Sequence[ir.Value],
        step: Callable[..., tuple[ir.Value, ir.Value]],
        *,
        axis: int,
        is_backward: bool = False,
    ) -> tuple[ir.Value, ir.Value]:
        """(the last state, outputs side by side along ``axis``) of a Scan over slices of the sequences along it.

        ``is_backward``: from the last slice to the first; outputs stand where their slices do.
        ``step(state, *slices)`` appends the nodes of one slice and returns (the next state, its output).
        """
        names = ("state", *(f"slice {number}" for number in range(len(sequences))))
        given = [
            ir.Value(name=self._unique(f"{self.path}/Scan/{name}"), type=ir.TensorType(value.dtype or self.dtype))
            for name, value in zip(names, (state, *sequences), strict=True)
        ]
        body = self._branch("body", lambda: step(*given), given)
        last, outputs = self.ops(
            "Scan",
            state,
            *sequences,
            dtypes=(body.outputs[0].dtype, body.outputs[1].dtype),
            body=body,
            num_scan_inputs=len(sequences),
            scan_input_axes=[axis] * len(sequences),
            scan_output_axes=[axis],
            scan_input_directions=[int(is_backward)] * len(sequences),
            scan_output_directions=[int(is_backward)],
        )
        return last, outputs

    def _branch(self, name: str, build: Callable[[], Sequence[ir.Value]], inputs: Sequence[ir.Value] = ()) -> ir.Graph:
        outer, self.nodes = self.nodes, []
        results = build()
        inner, self.nodes = self.nodes, outer
        return ir.Graph(list(inputs), list(results), nodes=inner, name=self._unique(f"{self.path}/{name}"))

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """A value that many nodes read, made once, at the root, when the first of them asks for it."""
        if key not in self._shared:
            path, nodes = self.path, self.nodes
            self.path, self.nodes = "step", self._root_nodes
            self._shared[key] = make()
            self.path, self.nodes = path, nodes
        return self._shared[key]

    def note(self, form: str) -> None:
        """Say which form was chosen for the op that is being lowered, and why; the report lists each once."""
        key = (self._op_name, form)
        self.choices[key] = self.choices.get(key, 0) + 1

    def remark(self, text: str) -> None:
        """Say something that the report should carry, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def lower(self, scope: str, node: Node, inputs: Sequence[Any], function: Callable[..., Any]) -> list[Any]:
        """The node's outputs. Its scope owns its weights, its path names what it becomes.

        A lowering that gives None has none in this part of the graph.
        """
        self.scope, self.path, self._op_name = scope, join(scope, node.name) or "model", node.op.op_name
        result = function(self, node, *inputs)
        if result is None:
            return [None] * len(node.outputs)
        outputs = [result] if isinstance(result, ir.Value) else list(result)
        if len(outputs) != len(node.outputs):
            raise GraphError(
                f"{self.path}: the lowering of {node.op.op_name} gives {len(outputs)} values, not {len(node.outputs)}"
            )
        return outputs

    def constant(self, array: Array, *, name: str = "") -> ir.Value:
        """An initializer with these numbers, one for all equal ones."""
        key = (name, array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape))
            label = self._unique(name or f"constants/{'x'.join(map(str, array.shape)) or 'scalar'}")
            self._constants[key] = self._initializer(label, tensor)
        return self._constants[key]

    def table(
        self, name: str, shape: Sequence[int], rows: Callable[[int, int], Array], dtype: ir.DataType | None = None
    ) -> ir.Value:
        """An initializer whose rows [start, stop) are computed when the file is written: it may be larger than memory."""
        label = self._unique(name)
        return self._initializer(label, computed_tensor(label, shape, dtype or self.dtype, rows))

    def ints(self, *numbers: int) -> ir.Value:
        """A vector of int64: shapes, axes, sizes."""
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float, dtype: ir.DataType | None = None) -> ir.Value:
        """One number of rank 0, in the model's dtype unless another is asked for."""
        return self.constant(np.array(number, NUMPY_DTYPES[dtype or self.dtype]))

    def filled(self, shape: ir.Value, number: float, dtype: ir.DataType) -> ir.Value:
        """A tensor of a run-time shape, all one number."""
        value = ir.tensor(np.array([number], NUMPY_DTYPES[dtype]))
        return self.op("ConstantOfShape", shape, dtype=dtype, value=value)

    def resolve(self, dtype: str) -> ir.DataType:
        """A graph's dtype as ONNX's; ``model`` is the file's own.

        Raises:
            GraphError: the dtype can't be exported.
        """
        if dtype != MODEL_DTYPE and dtype not in DTYPES:
            raise GraphError(f"{self.path}: dtype {dtype} can't be exported; legal: {', '.join(DTYPES)}")
        return self.dtype if dtype == MODEL_DTYPE else DTYPES[dtype]

    def weight(
        self,
        node: Node,
        *roles: str,
        tag: str = "",
        shape: Sequence[int] | None = None,
        dtype: ir.DataType | None = None,
        transform: Transform | None = None,
    ) -> ir.Value:
        """An initializer made of one or several weights of the node, read and transformed when the file is written.

        Without ``transform`` it keeps the weight's name and shape; ``tag`` names what the transform does.
        """
        params = [node.params[role] for role in roles]
        names = [join(self.scope, param.name) for param in params]
        dtype = dtype or self.resolve(params[0].dtype)
        label = f"{names[0]}.{tag}" if tag else names[0]
        if label not in self.initializers:
            sources: list[tuple[str, Param]] = list(zip(names, params, strict=True))
            tensor = lazy_tensor(label, shape or params[0].shape, dtype, sources, transform, self.weights)
            self._initializer(label, tensor)
        value = self.initializers[label]
        assert value.dtype == dtype, f"{label} is wanted as {dtype} and as {value.dtype}"
        return value

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.initializers[name] = value
        return value

    def past(self, node: Node, role: str, rows: str = "") -> ir.Value:
        """The cache input of a state of the node. ``rows`` names how many it has, where that is not the state's own number."""
        state, name = node.states[role], self._state_name(node, role)
        if name not in self.pasts:
            shape = list(dimensions(state.allocated))
            form = cache_form(state, self.target)
            if form is not None and form.bits == 4:
                channels = state.allocated[-1]
                assert isinstance(channels, int)
                shape[-1] = channels // 2
            if rows:
                assert state.token_dim is not None, f"{name} has no rows"
                shape[state.token_dim] = rows
            self.pasts[name] = ir.Value(name=name, type=ir.TensorType(self.state_dtype(state)), shape=ir.Shape(shape))
        return self.pasts[name]

    def present(self, node: Node, role: str, value: ir.Value) -> ir.Value:
        """Make ``value`` the cache output of a state of the node."""
        past = self.past(node, role)
        assert past.name is not None
        assert past.shape is not None
        assert value.dtype == past.dtype, f"{past.name} is {past.dtype}, its successor {value.dtype}"
        value.name = present_name(past.name)
        value.shape = past.shape.copy()
        self.presents[past.name] = value
        return value

    def kept(self, node: Node, role: str, value: ir.Value) -> ir.Value:
        """Make ``value`` what a decoder's cross attention will read, an output of the encoder's file."""
        state, name = node.states[role], self._state_name(node, role)
        value = self.cast(value, self.state_dtype(state))
        value.name, value.shape = present_name(name), ir.Shape(list(dimensions(state.allocated)))
        self.presents[name] = value
        return value

    def kept_rows(self, node: Node, role: str) -> ir.Value:
        """The cache output of a state of the node, for what reads it in the same call."""
        name = self.past(node, role).name
        assert name is not None
        return self.presents[name]

    def state_dtype(self, state: State) -> ir.DataType:
        """Recurrent states are float32; keys, values, latents and convolution columns have the model's dtype, or are rounded."""
        form = cache_form(state, self.target)
        if form is not None:
            return form.dtype
        return ir.DataType.FLOAT if state.role == "recurrent" else self.dtype

    def cache_scale(self, node: Node, role: str) -> ir.Value:
        """Steps of the channels of a rounded cache, float32 (1, K, 1, H); read when they are written."""
        cache, channels = self._state_name(node, role), node.states[role].allocated
        heads, head_dim = channels[1], channels[3]
        assert isinstance(heads, int)
        assert isinstance(head_dim, int)
        shape, name = (1, heads, 1, head_dim), f"{self.path}.{role[0]}_scale"

        @contextmanager
        def opened() -> Iterator[Callable[[int, int], Array]]:
            scale = scale_of(self.weights, cache, shape)
            yield lambda start, stop: scale[start:stop]

        return self._initializer(name, StreamedTensor(name, shape, ir.DataType.FLOAT, unit_rows=1, opened=opened))

    def _state_name(self, node: Node, role: str) -> str:
        return self.state_names[join(self.scope, node.states[role].name)]

    def _unique(self, name: str) -> str:
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return f"{name}_{count}" if count else name
