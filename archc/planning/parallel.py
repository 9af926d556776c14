"""Over how many ranks a model is cut, and along what."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Parallel:
    """Ranks by what they share out. One model copy is ``tp x cp`` ranks a stage, ``pp`` stages, and there are ``dp`` copies.

    * ``tp``: heads, feed-forward channels and the vocabulary are cut (Megatron-LM, arXiv 1909.08053).
    * ``pp``: consecutive layers.
    * ``ep``: whole experts. Its ranks are among the ``tp x dp x cp`` of a stage, as in vLLM and Megatron-Core, so it multiplies
      nothing; with ``ep`` 1 the channels of experts are cut by ``tp`` like any others.
    * ``dp``: copies, each with sequences of its own.
    * ``cp``: the tokens of a sequence.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1

    @property
    def ranks(self) -> int:
        """Accelerators that it takes."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stage_ranks(self) -> int:
        """Ranks that hold one stage's layers, over all copies."""
        return self.tp * self.dp * self.cp

    def problems(self) -> list[str]:
        """What is wrong whatever the model."""
        found = [f"{name} should be at least 1 (found {size})" for name, size in self.to_json().items() if size < 1]
        if not found and self.stage_ranks % self.ep:
            found.append(
                f"ep {self.ep} doesn't divide the {self.stage_ranks} ranks of a stage (tp {self.tp} x dp {self.dp} x cp "
                f"{self.cp}): expert parallelism shares out experts among those"
            )
        return found

    def to_json(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.to_json().items() if size > 1) or "one rank"


def legal_splits(ranks: int) -> list[Parallel]:
    """Every ``tp x pp`` of so many ranks, most tensor parallelism first."""
    return [Parallel(tp=ranks // pp, pp=pp) for pp in range(1, ranks + 1) if ranks % pp == 0]
