"""The graph that one rank of tensor parallelism runs: the same ops over pieces, and what ranks exchange between them.

Everything is read off axes and ``Op.cut``. A value is whole on every rank, cut along its axis, or a part of a sum:

* An op that works on pieces gets its inputs' pieces. A whole input enters there (``EnterPieces``), and the gradient of a whole
  weight is added up likewise. One that sums over what is cut gives parts.
* Parts are added up where something needs the sum (``SumParts``): later than they are made where parts are added to parts
  first, as of shared and routed experts, or of attention and a feed-forward beside it.
* An op that can't work on pieces (a norm over all heads) is run whole by every rank on gathered inputs (``GatherPieces``).

Names of scopes, weights and states are the whole graph's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from archc.errors import Problem, SpecError
from archc.graph.graph import LAYER, Graph, walk_scopes
from archc.ir.op import Op
from archc.ir.piece import Piece
from archc.ir.values import Body, Call, Node, Param, TensorType, Value
from archc.ops.elementwise import Add, Mul, Scale
from archc.planning.parallel import Parallel
from archc.planning.rank_graph import RankGraph, WeightUse
from archc.planning.rank_ops import EnterPieces, GatherPieces, ShareGradient, SumParts, TakePiece
from archc.planning.rank_values import CutBody, Local, is_whole_number, piece_op
from archc.planning.sharding import ShardedParam, shard, units_of
from archc.planning.timing.forms import CUT_AXES


def rank_graph(graph: Graph, parallel: Parallel, index: int) -> RankGraph:
    """The graph of rank ``index`` along tp. Stages, copies and tokens are no matter here.

    Raises:
        SpecError: the model can't be cut so, with every reason.
    """
    return _Cutter(graph, parallel, index).root()


class _Cutter:
    def __init__(self, graph: Graph, parallel: Parallel, index: int) -> None:
        self.whole, self.tp = graph, parallel.tp
        self.shares_experts = parallel.ep > 1
        self.result = RankGraph(graph, index, parallel.tp)
        sharding = shard(graph, replace(parallel, pp=1), vocab_multiple=1)
        self.sharded: dict[int, ShardedParam] = {
            id(piece.param): piece for stage in sharding.stages for piece in stage.params
        }
        self.problems: dict[str, None] = dict.fromkeys(sharding.problems)
        self._local: dict[int, Param] = {}
        self._whole: dict[int, Param] = {}
        self._bodies: dict[tuple[object, ...], CutBody] = {}

    def root(self) -> RankGraph:
        self._raise()
        made = _BodyCutter(self, self.whole.root, None, [False] * len(self.whole.root.inputs), "")
        body = made.run(is_root=True).body
        self._raise()
        inputs = dict(zip(self.whole.root.inputs, body.inputs, strict=True))
        self.result.graph = replace(
            self.whole,
            root=body,
            inputs={name: inputs.get(value, value) for name, value in self.whole.inputs.items()},
            outputs={name: made.env[value].value for name, value in self.whole.outputs.items()},
            mtp=None,
        )
        logits = self.whole.outputs.get("logits")
        if logits is not None and made.env[logits].cut_dim is not None:
            start, end = Piece(self.result.index, {"vocab": self.tp}).bounds(logits.width, "vocab")
            self.result.vocab_rows = start, end
            if -(-logits.width // self.tp) * (self.tp - 1) >= logits.width:
                self.problems[f"{logits.width} rows of the vocabulary can't be shared out to {self.tp} ranks (tp)"] = (
                    None
                )
                self._raise()
        return self.result

    def _raise(self) -> None:
        if self.problems:
            raise SpecError([Problem(message=message, code="split") for message in self.problems])

    def piece_of(self, nodes: Iterable[Node]) -> Piece:
        """How a mixer, a feed-forward or an op outside of those is cut."""
        nodes = list(nodes)
        units = units_of(nodes).get("kv_heads", self.tp)
        ways: dict[str, int] = {str(axis): self.tp for axis in CUT_AXES}
        if units < self.tp:
            ways["kv_heads"] = 1
        if 1 < units < self.tp:
            self.problems[
                f"{units} kv_heads on tp {self.tp}: one that some ranks share, and others not, is not trained"
            ] = None
        return Piece(self.result.index, ways)

    def cut_of(self, param: Param) -> tuple[int, int] | None:
        """(dimension, pieces) in which tensor parallelism cuts a weight."""
        cuts = self.sharded[id(param)].cuts.items()
        return next(((dim, ways) for dim, (name, ways) in cuts if name == "tp"), None)

    def param(self, param: Param, *, is_gathered: bool = False) -> Param:
        """A weight as a rank holds it, or as a gathered one is used; a tied one is one object."""
        known = self._whole if is_gathered else self._local
        if id(param) not in known:
            shape, cut = param.shape, self.cut_of(param)
            if cut is not None and not is_gathered:
                dim, ways = cut
                axis = param.axes[dim]
                start, end = Piece(self.result.index, {axis or "": ways}).bounds(shape[dim], axis)
                shape = (*shape[:dim], end - start, *shape[dim + 1 :])
            known[id(param)] = Param(
                param.name, shape, axes=param.axes, init=param.init, dtype=param.dtype, trainable=param.trainable
            )
        return known[id(param)]

    def body(self, call: Call, inputs: Sequence[Local], piece: Piece | None, label: str) -> CutBody:
        """A body for inputs as they are here; calls with equal ones share it."""
        types = [each.value.type for each in inputs]
        learned = [each.learned for each in inputs]
        ways = None if piece is None else tuple(piece.ways.items())
        key = (call.body, tuple(kind.key() for kind in types), tuple(learned), ways)
        if key not in self._bodies:
            made = _BodyCutter(self, call.body, piece, learned, label, types)
            self._bodies[key] = made.run()
        return self._bodies[key]


class _BodyCutter:
    """One body. ``piece`` is None in the root and in layers, whose items each are cut by what stands in them."""

    def __init__(
        self,
        cutter: _Cutter,
        body: Body,
        piece: Piece | None,
        learned: Sequence[bool],
        label: str,
        types: Sequence[TensorType] | None = None,
    ) -> None:
        self.cutter, self.whole, self.piece, self.label = cutter, body, piece, label
        self.made = Body(body.label, body.part)
        self.env: dict[Value, Local] = {}
        self._entered: dict[Value, Node] = {}
        self._gathered: dict[Value, Value] = {}
        self._count = 0
        for value, kind, is_learned in zip(body.inputs, types or [v.type for v in body.inputs], learned, strict=True):
            local = self._value(kind)
            self.made.inputs.append(local)
            self.env[value] = Local(local, value.type, False, is_learned)

    def run(self, *, is_root: bool = False) -> CutBody:
        for item in self.whole.items:
            if isinstance(item, Call):
                self._call(item, is_root)
            else:
                self._node(item, self.piece or self.cutter.piece_of([item]))
        if self.piece is None:
            # What layers hand on is whole.
            for value in self.whole.outputs:
                self._summed(value)
        outs = [self.env[value] for value in self.whole.outputs]
        self.made.outputs = [out.value for out in outs]
        entered = () if is_root else tuple(self._leave_to_caller(value) for value in self.whole.inputs)
        return CutBody(self.made, entered, tuple(out.is_part for out in outs), tuple(out.learned for out in outs))

    def _call(self, item: Call, is_root: bool) -> None:
        ins = [self._summed(value) for value in item.inputs]
        piece, label = self.piece, self.label
        if piece is None and not (is_root and LAYER.match(item.name)):
            piece = self.cutter.piece_of(node for _, node in walk_scopes(item.body, ""))
            label = item.body.label or item.name
        inner = self.cutter.body(item, ins, piece, label)
        args = [
            self._enter(value) if is_entered else local.value
            for value, local, is_entered in zip(item.inputs, ins, inner.entered, strict=True)
        ]
        outputs = [self._value(value.type) for value in inner.body.outputs]
        self.made.items.append(Call(item.name, inner.body, tuple(args), tuple(outputs)))
        for value, local, is_part, learned in zip(item.outputs, outputs, inner.parts, inner.learned, strict=True):
            self.env[value] = Local(local, value.type, is_part, learned)

    def _node(self, node: Node, piece: Piece) -> None:
        if self._keeps_parts(node):
            return
        ins = [self._summed(value) for value in node.inputs]
        if self.cutter.shares_experts and any("experts" in param.axes for param in node.params.values()):
            piece = Piece(piece.index, {})
        cuts = [self.cutter.cut_of(param) for param in node.params.values()]
        touched = (
            any(each.cut_dim is not None for each in ins)
            or any(cuts)
            or any(value.axis in CUT_AXES and piece.count(value.axis) > 1 for value in node.outputs)
        )
        if not touched:
            self._place(node, node.op, [each.value for each in ins], [value.type for value in node.outputs])
        elif not self._on_pieces(node, piece, ins, is_gathered=False) and not self._on_pieces(
            node, piece, ins, is_gathered=True
        ):
            self._whole_on_every_rank(node, piece)

    def _keeps_parts(self, node: Node) -> bool:
        """Parts that are added to parts, or multiplied by what every rank has, are parts."""
        ins = [self.env[value] for value in node.inputs]
        parts = [each.is_part for each in ins]
        if not any(parts) or not isinstance(node.op, Add | Scale | Mul):
            return False
        if isinstance(node.op, Add) and not all(parts):
            return False
        args = [each.value for each in ins]
        if isinstance(node.op, Mul):
            # A sum is saved where it is added to parts next, here or by the caller: worth a small one backward.
            out = node.outputs[0]
            readers = [item for item in self.whole.items if out in item.inputs]
            waits = all(isinstance(item, Node) and isinstance(item.op, Add) for item in readers)
            waits = waits and len(readers) + self.whole.outputs.count(out) == 1
            if all(parts) or not waits or any(each.cut_dim is not None for each in ins):
                return False
            args = [
                each.value if each.is_part else self._enter(value) for value, each in zip(node.inputs, ins, strict=True)
            ]
        self._place(node, node.op, args, [value.type for value in node.outputs], is_part=True)
        return True

    def _on_pieces(self, node: Node, piece: Piece, ins: list[Local], *, is_gathered: bool) -> bool:
        """Place the op that works on pieces; False where there is none."""
        types = [each.whole if is_gathered else each.value.type for each in ins]
        found = piece_op(node, piece, types)
        if found is None:
            return False
        op, outs = found
        params = {role: self.cutter.param(param) for role, param in node.params.items()}
        declared = op.params(types)
        if any(params[role].shape != param.shape for role, param in declared.items()):
            return False
        is_cut = [kind.shape != value.shape for kind, value in zip(outs, node.outputs, strict=True)]
        sums = not any(is_cut)
        cuts = {role: self.cutter.cut_of(param) for role, param in node.params.items()}
        if sums and (len(outs) > 1 or not any(cuts.values())):
            return False
        args = [
            self._enter(value) if each.cut_dim is None else self._gather(value) if is_gathered else each.value
            for value, each in zip(node.inputs, ins, strict=True)
        ]
        if is_gathered:
            args = [
                self._entering(arg, each.learned) if each.cut_dim is not None else arg
                for arg, each in zip(args, ins, strict=True)
            ]
        uses: dict[str, WeightUse] = {}
        for role, cut in cuts.items():
            if cut is not None:
                uses[role] = WeightUse("piece", cut[0])
            else:
                uses[role] = WeightUse("once" if sums and role.endswith("bias") else "shared")
        self._place(node, op, args, list(outs), params=params, uses=uses, is_part=sums)
        if not sums:
            for value, cut in zip(node.outputs, is_cut, strict=True):
                if not cut and self.env[value].learned:
                    local = self.env[value]
                    shared = self._emit(ShareGradient(ways=self.cutter.tp), local.value)
                    self.env[value] = Local(shared, local.whole, False, local.learned)
        return True

    def _whole_on_every_rank(self, node: Node, piece: Piece) -> None:
        """Gather what is cut, run the op as it is, and take one's own piece of what should be cut."""
        args = [self._gather(value) for value in node.inputs]
        uses: dict[str, WeightUse] = {}
        for role, param in node.params.items():
            cut = self.cutter.cut_of(param)
            uses[role] = WeightUse("whole") if cut is None else WeightUse("gathered", cut[0])
            if cut is not None and param.axes[cut[0]] == "vocab":
                self.cutter.problems[f"{node.op.op_name}: it can't work on a piece of the vocabulary (tp)"] = None
        params = {role: self.cutter.param(param, is_gathered=True) for role, param in node.params.items()}
        self._place(node, node.op, args, [value.type for value in node.outputs], params=params, uses=uses)
        name = node.name or node.op.op_name
        note = f"{name} of {self.label or 'the model'} is run whole by every rank of tp: what is cut is gathered for it"
        if note not in self.cutter.result.notes:
            self.cutter.result.notes.append(note)
        for value in node.outputs:
            ways = piece.count(value.axis)
            if value.axis in CUT_AXES and ways > 1:
                local = self.env[value]
                dim = len(value.shape) - 1
                taken = self._emit(TakePiece(dim=dim, ways=ways), local.value)
                self.env[value] = Local(taken, local.whole, False, local.learned)

    def _place(
        self,
        node: Node,
        op: Op,
        args: Sequence[Value],
        outs: Sequence[TensorType],
        *,
        params: dict[str, Param] | None = None,
        uses: dict[str, WeightUse] | None = None,
        is_part: bool = False,
    ) -> None:
        held = params if params is not None else {role: self.cutter.param(each) for role, each in node.params.items()}
        states = op.states([value.type for value in args])
        outputs = tuple(self._value(kind) for kind in outs)
        placed = Node(
            op,
            node.name,
            tuple(args),
            outputs,
            held,
            {role: state.with_shapes(states[role].used, states[role].allocated) for role, state in node.states.items()},
        )
        self.made.items.append(placed)
        if uses is not None:
            self.cutter.result.uses[placed] = uses
        learned = any(self.env[value].learned for value in node.inputs) or any(
            param.trainable for param in node.params.values()
        )
        for value, local in zip(node.outputs, outputs, strict=True):
            self.env[value] = Local(local, value.type, is_part, learned and not is_whole_number(value.dtype))

    def _value(self, kind: TensorType) -> Value:
        self._count += 1
        return Value(self.made, self._count - 1, kind)

    def _emit(self, op: Op, value: Value) -> Value:
        made = self._value(op.infer([value.type])[0])
        self.made.items.append(Node(op, "", (value,), (made,), {}, {}))
        return made

    def _summed(self, value: Value) -> Local:
        """A value whose parts are added up, once."""
        local = self.env[value]
        if local.is_part:
            local = self.env[value] = Local(self._emit(SumParts(), local.value), local.whole, False, local.learned)
        return local

    def _enter(self, value: Value) -> Value:
        """A whole value as it goes into work on pieces, the same for all work of the body."""
        local = self.env[value]
        if not local.learned or local.cut_dim is not None:
            return local.value
        if value not in self._entered:
            self._entering(local.value, True)
            made = self.made.items[-1]
            assert isinstance(made, Node)
            self._entered[value] = made
        return self._entered[value].outputs[0]

    def _entering(self, value: Value, learned: bool) -> Value:
        return self._emit(EnterPieces(), value) if learned else value

    def _gather(self, value: Value) -> Value:
        local = self.env[value]
        if local.cut_dim is None:
            return local.value
        if value not in self._gathered:
            op = GatherPieces(dim=local.cut_dim, ways=self.cutter.tp)
            self._gathered[value] = self._emit(op, local.value)
        return self._gathered[value]

    def _leave_to_caller(self, value: Value) -> bool:
        """Whether an input only enters work on pieces, so that the caller lets it enter, for several scopes at once."""
        local = self.env[value].value
        enter = self._entered.get(value)
        readers = [item for item in self.made.items if local in item.inputs]
        if enter is None or readers != [enter] or local in self.made.outputs:
            return False
        self.made.items.remove(enter)
        self.made.inputs[self.made.inputs.index(local)] = enter.outputs[0]
        return True
