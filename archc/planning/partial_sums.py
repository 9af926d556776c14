"""Which partial sums meet before anything else reads them, so that ranks add them up once and not each by itself."""

from __future__ import annotations

from collections.abc import Iterable

from archc.ir.values import Body, Call, Node, Value
from archc.ops.elementwise import Add, Mul, Scale
from archc.planning.timing.forms import CUT_AXES
from archc.planning.timing.work import Pieces


def gives_parts(node: Node, pieces: Pieces) -> bool:
    """Whether tp cuts what the op sums over, so that each rank has a part of every output."""
    cuts = (cut for param in node.params.values() for cut in pieces.params[id(param)].cuts.values())
    is_whole = node.outputs[0].axis not in CUT_AXES and not _makes_heads(node)
    return pieces.parallel.tp > 1 and is_whole and any(name == "tp" for name, _ in cuts)


def _makes_heads(node: Node) -> bool:
    """Whether heads lie along another dimension of what an op gives than the last, so that each rank makes its own."""
    heads = node.op.units([value.type for value in node.inputs]).get("heads")
    return heads is not None and heads in node.outputs[0].shape[:-1]


def added_with_others(items: Iterable[Node | Call], pieces: Pieces) -> set[Node]:
    """Ops whose parts are added to another op's first: shared to routed experts, attention to a feed-forward beside it."""
    found = _Meetings(pieces)
    found.visit(items)
    return found.later


class _Meetings:
    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.later: set[Node] = set()
        self._seen: set[Body] = set()

    def visit(self, items: Iterable[Node | Call]) -> None:
        for item in items:
            if isinstance(item, Node):
                self._maker(item)
            elif item.body not in self._seen:
                self._seen.add(item.body)
                self.visit(item.body.items)

    def _source(self, value: Value) -> Node | None:
        """The op whose parts a value is, where nothing else reads it."""
        home = value.home
        uses = sum(item.inputs.count(value) for item in home.items) + home.outputs.count(value)
        if uses != 1:
            return None
        item = next((item for item in home.items if value in item.outputs), None)
        if isinstance(item, Call):
            return self._source(item.body.outputs[item.outputs.index(value)])
        return None if item is None else self._maker(item)

    def _maker(self, node: Node) -> Node | None:
        """The op that adds up the parts which a node gives: itself, or one further up whose parts it hands on."""
        if gives_parts(node, self.pieces):
            return node
        if not isinstance(node.op, Add | Mul | Scale):
            return None
        sources = [source for value in node.inputs if (source := self._source(value)) is not None]
        if isinstance(node.op, Add):
            if len(sources) != 2:
                return None
            # One of them waits for the other.
            if sources[0] is not sources[1]:
                self.later.add(sources[1])
            return sources[0]
        return sources[0] if len(sources) == 1 else None
