"""Which objective a model has, read off its graph."""

from __future__ import annotations

from archc.errors import ArchcError
from archc.graph.graph import Graph
from archc.ir.size import BATCH, SEQ
from archc.spec.schema import Spec
from archc.training.data.documents import other_form
from archc.training.data.manifest import DataForm
from archc.training.data.order import Order, Part, split
from archc.training.data.rows import PairRows, Rows, cut_rows
from archc.training.data.tokens import Tokens
from archc.training.data.vocabulary import vocabularies_of
from archc.training.objectives.causal import Causal
from archc.training.objectives.masked import Masked
from archc.training.objectives.objective import Objective
from archc.training.objectives.prefix import Prefix
from archc.training.objectives.seq2seq import Seq2Seq
from archc.training.options import TrainOptions

_OF_TEXT = ("input_ids", "positions", "attention_mask", "prefix_length", "token_type_ids")


def data_form(graph: Graph) -> DataForm:
    """What a model learns from: documents, or pairs of a source and a target.

    Raises:
        ArchcError: it predicts no tokens, or reads something else than a text.
    """
    first = next(iter(graph.inputs), "")
    if first != "input_ids" or (graph.reads_encoder and "encoder_input_ids" not in graph.inputs):
        others = ", ".join(name for name in graph.inputs if name.removeprefix("encoder_") not in _OF_TEXT)
        raise ArchcError(f"{graph.name} reads {others or first}; archc train teaches models of texts")
    logits = graph.outputs.get("logits")
    if logits is None:
        raise ArchcError(
            f"{graph.name} gives {', '.join(graph.outputs)} and no logits of tokens, so there is nothing to predict; give it a "
            "head that predicts tokens: lm, or mlm for an encoder"
        )
    vocab_size = graph.vocab_size or 0
    width = logits.shape[-1]
    if logits.shape[:-1] != (BATCH, SEQ) or not isinstance(width, int) or width < vocab_size:
        shape = ", ".join(map(str, logits.shape))
        raise ArchcError(
            f"{graph.name} gives logits ({shape}), which are no ids of {vocab_size}: labels are not in a text. Train it with "
            "another head (lm, mlm), then change the head"
        )
    return "pairs" if graph.reads_encoder else "documents"


def check_data(graph: Graph, data: Tokens) -> None:
    """Raises ArchcError where a model needs pairs and there are documents, or the other way round."""
    wanted = data_form(graph)
    if wanted != data.manifest.form:
        raise other_form(str(data.folder), wanted)


def objective_for(
    graph: Graph, spec: Spec, data: Tokens, options: TrainOptions, *, source_len: int | None = None
) -> Objective:
    """What a model is taught on all of the data: by its mask the next token or a masked one, with an encoder a target.

    ``source_len`` are the tokens of a source, by default ``options.seq_len``.

    Raises:
        ArchcError: the model predicts no tokens, the data has another form, or is shorter than one sequence.
    """
    return _Maker(graph, spec, data, options, source_len).make(None)


def evaluation_for(
    graph: Graph, spec: Spec, data: Tokens, options: TrainOptions, *, source_len: int | None = None
) -> Objective:
    """The same on data of its own that is only looked at: in its order, once; rows behind the end have no targets."""
    return _Maker(graph, spec, data, options, source_len).make(None, is_ordered=True)


def split_objectives(
    graph: Graph,
    spec: Spec,
    data: Tokens,
    options: TrainOptions,
    *,
    held_out: float,
    source_len: int | None = None,
) -> tuple[Objective, Objective]:
    """(what is learned from, what is held out): the share ``held_out`` of the sequences, evenly through the data."""
    maker = _Maker(graph, spec, data, options, source_len)
    learned, held = split(maker.count, held_out)
    return maker.make(learned), maker.make(held, is_ordered=True)


class _Maker:
    def __init__(self, graph: Graph, spec: Spec, data: Tokens, options: TrainOptions, source_len: int | None) -> None:
        check_data(graph, data)
        self._graph, self._data, self._options = graph, data, options
        self._vocabularies = vocabularies_of(spec, None)
        self._source_len = source_len or options.seq_len
        self._check_lengths()
        is_masked = graph.mask == "bidirectional"
        self._rows: Rows | None = None
        if not data.is_paired:
            self._rows = cut_rows(data, options.seq_len, overlap=0 if is_masked else 1, packing=options.packing)
        self.count = len(self._rows) if self._rows is not None else len(PairRows(data))

    def make(self, part: Part | None, *, is_ordered: bool = False) -> Objective:
        options, vocabulary = self._options, self._vocabularies[-1]
        order = Order(part or Part(self.count), None if is_ordered else options.seed)
        if self._rows is None:
            return self._pairs(order)
        match self._graph.mask:
            case "bidirectional":
                return Masked(
                    self._rows,
                    order,
                    options.batch_size,
                    vocabulary,
                    mask_id=self._mask_id(),
                    special_ids=self._data.manifest.vocabularies[-1].special_ids,
                    seed=options.seed,
                )
            case "prefix":
                return Prefix(self._rows, order, options.batch_size, vocabulary, seed=options.seed)
            case _:
                return Causal(self._rows, order, options.batch_size, vocabulary)

    def _pairs(self, order: Order) -> Objective:
        graph, (source, target) = self._graph, self._vocabularies
        if graph.start_id is None:
            raise ArchcError(
                f"{graph.name} does not say from which id its decoder starts; state bos_token_id, or pad_token_id as in T5"
            )
        if target.eos_id is None:
            raise ArchcError(f"{graph.name} does not say which id ends a target; state eos_token_id in its tokenizer")
        return Seq2Seq(
            PairRows(self._data),
            order,
            self._options.batch_size,
            source,
            target,
            source_len=self._source_len,
            seq_len=self._options.seq_len,
            start_id=graph.start_id,
            special_source_ids=frozenset(self._data.manifest.vocabularies[0].special_ids),
        )

    def _mask_id(self) -> int:
        found = self._data.manifest.vocabularies[-1].mask_id
        if found is None:
            raise ArchcError(
                f"{self._graph.name} sees both sides, so it learns masked tokens, and its tokenizer has none that stands for "
                "one: add [MASK] or <mask> to its special tokens, with room in vocab_size"
            )
        if found >= self._vocabularies[-1].num_ids:
            raise ArchcError(
                f"the mask has the id {found}, and {self._graph.name} has {self._vocabularies[-1].num_ids} ids"
            )
        return found

    def _check_lengths(self) -> None:
        limit = self._graph.max_position_embeddings
        for name, length in (("seq_len", self._options.seq_len), ("source_len", self._source_len)):
            if limit is not None and length > limit and (name == "seq_len" or self._data.is_paired):
                raise ArchcError(
                    f"{name}, {length:,}, is more than the {limit:,} of max_position_embeddings of {self._graph.name}"
                )
