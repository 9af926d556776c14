"""Costs of many variants of one spec: each layer is traced once, then variants are sums of what is known.

A variant is judged in whole by the rules of any spec (``check_layers``). What it costs is put together of its root and of its
layers, each known under everything that it depends on: the content of its mixer and ffn, the rest of the spec but patterns and
number of layers, the types that go in, and what it asked of its place (``sweep_watch``). Whatever was not seen yet is expanded
and estimated as ``archc.estimate`` does, and what that finds is learned. Where a sum does not give what the estimate gives,
nothing of those surroundings is trusted any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from archc.errors import Problem
from archc.expansion import expand
from archc.graph.vocabulary import Builder
from archc.planning.search.sweep_costs import Sizes, Totals, slow_totals
from archc.planning.search.sweep_learned import Learned, Run, Stacked, Variant
from archc.planning.search.sweep_parts import Choice, Key, Part, Parts
from archc.planning.search.sweep_watch import Watch
from archc.spec.load import Loaded, judged
from archc.spec.merge import merge_siblings, set_value
from archc.spec.nodes import Node, dotted
from archc.spec.schedule import Names, plans
from archc.spec.schema import Stack, check_layers
from archc.spec.sections import STACKS
from archc.spec.sharing import owning_layers


class Engine:
    """The variants of one spec's tree (``archc.spec.load.read_tree``) at given sizes.

    ``num_slow`` counts the variants that were expanded and estimated in whole.
    """

    def __init__(self, tree: Node, file: str, keys: Sequence[Key], sizes: Sizes) -> None:
        self.keys, self.sizes = tuple(keys), sizes
        self.num_slow = 0
        self._tree, self._file = tree, file
        self._parts = Parts(tree, keys)
        self._learned = Learned(sizes)
        self._stacks: dict[Hashable, Stacked] = {}

    @property
    def trusts_all(self) -> bool:
        """Whether every sum so far was what the estimate gives."""
        return not self._learned.distrusted

    def totals(self, choice: Choice) -> Totals:
        """The costs of a variant.

        Raises:
            ArchcError: the variant is no spec, or builds something illegal.
        """
        parts = self._parts_of(choice)
        fields = _assembled(parts)
        if any(True for _ in check_layers(fields)):
            # For the words in which mistakes are told, and the places where they stand.
            self.load(choice)
        variant = self._variant(parts, fields)
        found = self._learned.totals(variant)
        return self._slow(choice, variant) if found is None else found

    def fault(self, choice: Choice) -> str:
        """Which rule a variant breaks, in few words and soon; empty where it breaks none.

        Raises:
            SpecError: a section is invalid by itself.
        """
        for path, error in check_layers(_assembled(self._parts_of(choice))):
            return f"{dotted(path)}: {error.message()}"
        return ""

    def _parts_of(self, choice: Choice) -> list[Part]:
        parts = self._parts.get(choice)
        if parts is None:
            problems: list[Problem] = []
            root = merge_siblings(self._tree_of(choice), problems).root
            try:
                parts = [] if problems else self._parts.learn(choice, root.plain())
            except ValidationError:
                parts = []
            if not parts:
                self.load(choice)
                raise AssertionError("what is invalid by its sections is no spec")
        return parts

    def load(self, choice: Choice) -> Loaded:
        """The variant as a spec.

        Raises:
            SpecError: it is none.
        """
        return judged(self._tree_of(choice), self._file)

    def _tree_of(self, choice: Choice) -> Node:
        tree = self._tree
        for key, index in zip(self.keys, choice, strict=True):
            tree = set_value(tree, key.path, key.node(index), key.name)
        return tree

    def _slow(self, choice: Choice, variant: Variant) -> Totals:
        loaded = self.load(choice)
        self.num_slow += 1
        watches: list[Watch] = []

        def watch(**options: Any) -> Builder:
            watches.append(Watch(**options))
            return watches[-1]

        graph = expand(loaded.spec, builder=watch)
        if variant.root not in self._learned.distrusted:
            self._learned.learn(variant, graph, watches[0])
            found = self._learned.totals(variant)
            # One length is enough to see that everything was counted, and counted as often as it stands.
            if found is not None and found.at_first() == slow_totals(graph, self.sizes.first()):
                return found
            self._learned.distrusted.add(variant.root)
        return slow_totals(graph, self.sizes)

    def _variant(self, parts: Sequence[Part], fields: Mapping[str, Any]) -> Variant:
        ids: dict[str, int] = {}
        readers: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for part in parts:
            ids.update(part.ids)
            numbers.update(part.stacks)
            readers.update(part.readers)
        known = (tuple(fields["mixers"]), tuple(fields["ffns"]))
        stacks = [
            self._stacked(section, numbers[section], fields[section], known, readers)
            for section in STACKS
            if fields[section] is not None
        ]
        mtp: Hashable = 0
        if fields["mtp"] is not None:
            further = self._stacked("mtp", numbers["mtp"], fields["mtp"], known, readers)
            names = {name for run in further.runs for name in run.plan if name is not None}
            mtp = (numbers["mtp"], *(ids[name] for name in sorted(names)))
        return Variant(tuple([part.root for part in parts]), ids, readers, stacks, mtp)

    def _stacked(
        self,
        section: str,
        number: int,
        stack: Stack,
        known: tuple[tuple[str, ...], tuple[str, ...]],
        readers: Mapping[str, str],
    ) -> Stacked:
        key = (number, known, tuple(readers.items()))
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = _stacked(section, stack, Names(*known), readers)
        return found


def _assembled(parts: Sequence[Part]) -> dict[str, Any]:
    """The fields of a spec before it is judged in whole."""
    fields: dict[str, Any] = {}
    mixers: dict[str, Any] = {}
    ffns: dict[str, Any] = {}
    for part in parts:
        fields.update(part.fields)
        mixers.update(part.mixers)
        ffns.update(part.ffns)
    fields["mixers"], fields["ffns"] = mixers, ffns
    return fields


def _stacked(section: str, stack: Stack, names: Names, readers: Mapping[str, str]) -> Stacked:
    layers = plans(stack.__dict__, names)
    owners = owning_layers(layers, readers) if readers else {}
    owning = set(owners.values())
    runs: list[Run] = []
    for index, plan in enumerate(layers):
        run = Run(plan, index in owning, owners.get(index, -1), index, 1)
        last = runs[-1] if runs else None
        if last is not None and last.plan == plan and not (last.is_owner or run.is_owner) and last.owner == run.owner:
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(run)
    return Stacked(section, len(layers), tuple(runs), Counter(layers) if not owners else {})
