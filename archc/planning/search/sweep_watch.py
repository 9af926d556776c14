"""A builder that notes what each layer of a trace depended on, so that other variants of the spec may reuse its costs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

from archc.graph.vocabulary import Builder
from archc.ir.op import Op
from archc.ir.values import Body, Call, Node, Value
from archc.spec.schedule import LayerPlan

Types = tuple[Hashable, ...]
"""Keys of the types of some values."""


class Asked(NamedTuple):
    """What a body asked of the place it stands in: its number, whether it begins a period, how many layers there are."""

    layer: int | None
    told: dict[int, bool]
    num_layers: int | None

    @property
    def is_free(self) -> bool:
        """Nothing: the body is the same in every layer and at every depth."""
        return self.layer is None and self.num_layers is None and not self.told

    def holds(self, index: int, num_layers: int) -> bool:
        """Whether another layer would be told the same."""
        return (
            self.layer in (None, index)
            and self.num_layers in (None, num_layers)
            and all((index % period == 0) is answer for period, answer in self.told.items())
        )


class Seen(NamedTuple):
    """One layer of a trace: where it stood, the types that went in and came out, its body and what that asked.

    ``rows`` are what it read of an earlier layer, ``shared`` what later layers read of it.
    """

    section: str
    plan: LayerPlan
    is_owner: bool
    streams: Types
    rows: Types
    outputs: Types
    shared: Types
    body: Body
    asked: Asked


class Watch(Builder):
    """``Builder``, which also lists the layers that ``expansion`` traces through it."""

    def __init__(self, *, max_position_embeddings: int | None = None, has_tokens: bool = True) -> None:
        self._count = 0
        self._count_read = False
        self.layers: list[Seen] = []
        self._root_reads_count = False
        self.hoisted: list[Node] = []
        """Nodes that layers placed at the root."""
        self.wanted: dict[Body, list[tuple[Op, tuple[Value, ...]]]] = {}
        """Body -> what it asked to have at the root."""
        self.root_wanted: list[tuple[Op, tuple[Value, ...]]] = []
        self.moved = False
        """Whether a layer changed what surrounds the next one, which then is not a function of its arguments."""
        self._asked: dict[Body, Asked] = {}
        self._wanting: list[tuple[Op, tuple[Value, ...]]] = self.root_wanted
        super().__init__(max_position_embeddings=max_position_embeddings, has_tokens=has_tokens)

    @property
    def root_reads_count(self) -> bool:
        """Whether something outside the layers asked how many there are."""
        return self._root_reads_count or self._count_read

    @property
    def num_layers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many layers the open stack has; who asks is noted."""
        self._count_read = True
        return self._count

    @num_layers.setter
    def num_layers(self, count: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._count = count

    def hoist(self, op: Op, inputs: Sequence[Value], *, name: str) -> tuple[Value, ...]:
        """As ``Builder`` does; what a layer wants at the root is noted, whether it stands there already or not."""
        self._wanting.append((op, tuple(inputs)))
        return super().hoist(op, inputs, name=name)

    def layer(
        self, index: int, define: Callable[..., Any], *args: Any, key: Hashable, label: str = "", **kwargs: Any
    ) -> Any:
        """As ``Builder`` does; the keywords are those that ``expansion`` gives."""
        self._root_reads_count |= self._count_read
        self._count_read, self._index_used, self._told, self._wanting = False, False, {}, []
        before, around = len(self.root.items), self._around()
        result = super().layer(index, define, *args, key=key, label=label, **kwargs)
        call = self.root.items[-1]
        assert isinstance(call, Call), "a layer ends with the call of its body"
        self.hoisted += [item for item in self.root.items[before:-1] if isinstance(item, Node)]
        if call.body not in self._asked:
            asked = Asked(index if self._index_used else None, self._told, self._count if self._count_read else None)
            self._asked[call.body], self.wanted[call.body] = asked, self._wanting
        self.moved |= around != self._around()
        plan: LayerPlan = kwargs["plan"]
        outputs = types([result] if isinstance(result, Value) else result)
        num_shared = kwargs["mixers"][plan.mixer].shared_values if kwargs["is_owner"] else 0
        streams = len(outputs) - num_shared
        self.layers.append(
            Seen(
                kwargs["around"].section,
                plan,
                kwargs["is_owner"],
                types(args),
                types(value for word, value in kwargs.items() if word.startswith("row_")),
                outputs[:streams],
                outputs[streams:],
                call.body,
                self._asked[call.body],
            )
        )
        self._count_read, self._index_used, self._told, self._wanting = False, False, {}, self.root_wanted
        return result

    def _around(self) -> dict[str, Any]:
        """All that is public of the builder: a kind may read it."""
        return {
            name: dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
            for name, value in vars(self).items()
            if name[0] != "_" and name not in _OWN
        }


_OWN = frozenset({"layers", "hoisted", "wanted", "root_wanted", "moved"})


def types(values: Any) -> Types:
    """What makes the types of some values equal to those of others."""
    return tuple(value.type.key() for value in values)
