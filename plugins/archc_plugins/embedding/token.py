"""The token table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from archc.errors import GraphError
from archc.families import Embedding, Norm
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, TensorType, Value
from archc.spec.slots import Slot
from archc.spec.values import ONE, Scale


class Token(Embedding):
    """A row a token id; rows may exceed the ids, and the table may be narrower than the model."""

    hidden_size: PositiveInt
    """Width of the residual stream."""
    tie_word_embeddings: bool | None = None
    """The head reads this table instead of one of its own. Required under a head that predicts tokens."""
    embedding_size: PositiveInt | None = None
    """Width of the table where it is another; a projection follows. Default: hidden_size."""
    projection: Literal["first", "last"] = "first"
    """Where that projection stands: before positions, types and norm, or after them, which then are as wide as the table."""
    projection_bias: bool = False
    """Whether that projection has a bias."""
    num_embeddings: PositiveInt | None = None
    """Rows of the table. Default: the tokenizer's vocab_size, rounded up by pad_vocab_to_multiple_of."""
    pad_vocab_to_multiple_of: PositiveInt | None = None
    """Rows are rounded up to a multiple of this. Default: none."""
    scale: Scale = ONE
    """Factor on the rows that are read."""
    norm: Annotated[Any, Slot("norm", flag=True)] = False
    """A norm after the embedding; true: the spec's kind."""
    type_vocab_size: NonNegativeInt = 0
    """Rows of a second table, for token types."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_embeddings is not None and self.pad_vocab_to_multiple_of is not None:
            yield "pad_vocab_to_multiple_of", "says the same as num_embeddings; state one of them"
        if self.embedding_size in (None, self.hidden_size):
            for name in ("projection", "projection_bias"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield (
                        name,
                        "says something of a projection, and the table is as wide as the model; state embedding_size",
                    )

    def rows(self, vocab_size: int) -> int:
        """Rows of the table for so many ids."""
        if self.num_embeddings is not None:
            return self.num_embeddings
        multiple = self.pad_vocab_to_multiple_of or 1
        return -(-vocab_size // multiple) * multiple

    def define(
        self, g: Builder, ids: Value, *, vocab_size: int, table: Param | None = None
    ) -> tuple[Value, Param | None]:
        rows = self.rows(vocab_size)
        if rows < vocab_size:
            raise GraphError(f"embed_tokens: num_embeddings {rows} is less than the {vocab_size} ids of the tokenizer")
        if not rows:
            raise GraphError(
                "embed_tokens: the tokenizer has no ids, so there is no table of them; state num_embeddings"
            )
        x, table = g.embedding("embed_tokens", ids, rows, self.embedding_size or self.hidden_size, table=table)
        if self.projection == "first":
            x = self._projected(g, x)
        return g.scale(x, self.scale.resolve({"hidden_size": self.hidden_size})), table

    def finish(self, g: Builder, x: Value, *, norm: Norm) -> Value:
        if self.type_vocab_size:
            types = g.add_input("token_type_ids", TensorType(x.shape[:-1], "int64"))
            x = g.add(x, g.embedding("token_type_embeddings", types, self.type_vocab_size, x.width)[0])
        if self.norm is not False:
            x = (norm if self.norm is True else self.norm).define(g, "embed_norm", x)
        return self._projected(g, x)

    def _projected(self, g: Builder, x: Value) -> Value:
        if x.width == self.hidden_size:
            return x
        return g.linear("embed_proj", x, self.hidden_size, bias=self.projection_bias)

    def tied(self) -> bool:
        return bool(self.tie_word_embeddings)
