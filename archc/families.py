"""The families of kinds: what a spec may name, and what each must define. A plugin subclasses one of these, once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Annotated, Any, ClassVar, Literal

from archc.errors import ArchcError, GraphError
from archc.graph.scoring import attend_by
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, Dim
from archc.ir.values import MODEL_DTYPE, Param, TensorType, Value
from archc.ops.elementwise import Activation, GatedActivation
from archc.ops.moe import Route
from archc.ops.rotary import Turn
from archc.ops.score import ScoreForm
from archc.spec.kind import Kind
from archc.spec.slots import Slot
from archc.spec.values import Dtype

TOKENIZER_ROLES = ("bos", "eos", "unk", "pad")
"""Special tokens in the order in which they name an id: one that ends and pads is called <eos>."""

SubLayer = Callable[[Value], Value]
"""A mixer or an ffn, placed in its scope: (batch, seq, hidden_size) -> same shape."""

NormLayer = Callable[[str, Value], Value]
"""The norm of a branch under a name."""


class Norm(Kind):
    """A normalisation over the last dimension."""

    family: ClassVar[str] = "norm"

    @abstractmethod
    def define(self, g: Builder, name: str, x: Value, *, head_dim: int | None = None) -> Value:
        """The normed value, over the whole width or a head at a time."""

    def epsilon(self) -> float:
        """The eps that a mixer's own weightless or gated norms take over.

        Raises:
            GraphError: this norm has none.
        """
        raise GraphError(f"{self.kind_name} has no eps, and this mixer needs one for its own norms")


class Position(Kind):
    """How order is seen. Each hook does nothing unless a kind says otherwise."""

    family: ClassVar[str] = "position"

    is_added: ClassVar[bool] = False
    """Whether it is added to the embedding: then it is the stack's, and a mixer can't have one of its own."""
    needs_length: ClassVar[bool] = False
    """Whether it has a row a position, so that the spec must state ``max_position_embeddings``."""
    has_slopes: ClassVar[bool] = False
    """Whether it puts something on the scores (``bias``, ``scores``, ``attend``)."""
    attends: ClassVar[bool] = False
    """Whether attention under it has a form of its own (``attend``)."""

    def embed(self, g: Builder, x: Value) -> Value:
        """What is added to the embedding."""
        return x

    def rotate(
        self, g: Builder, x: Value, *, head_dim: int, dim: int | None = None, offset: int | None = None
    ) -> Value:
        """Queries or keys (batch, seq, heads x head_dim), turned; ``dim`` channels from ``offset`` where a mixer says which."""
        return x

    def turn(self, g: Builder, dim: int) -> Turn | None:
        """How ``dim`` channels turn, for mixers that turn rows of other positions, or back; None where nothing turns."""
        return None

    def scores(self, g: Builder, *, num_heads: int) -> Value | None:
        """Numbers that are added to scores, (batch, heads, seq, keys); None where there are none.

        They are minus infinity where a token sees nothing. Placed at the root (``g.hoist``), once for all layers of a stack.
        """
        return None

    def attend(
        self, g: Builder, name: str, q: Value, k: Value, v: Value, *, width: int, num_heads: int, scale: float
    ) -> Value:
        """Attention whose scores positions take part in; ``width`` is the model's. Where ``attends`` only."""
        raise AssertionError(f"{type(self).__name__} says that it attends, so it must define how")

    def bias(self, g: Builder, *, num_heads: int, scale: float) -> tuple[float, ...] | None:
        """A slope a head: what scores, themselves multiplied by ``scale``, lose a token of distance; None where nothing."""
        return None

    def softmax_multiplier(self) -> float:
        """Factor on the softmax scale of latent attention (YaRN's ``mscale_all_dim``)."""
        return 1.0


class Scaling(Kind):
    """A change of rope frequencies for longer contexts."""

    family: ClassVar[str] = "scaling"

    @abstractmethod
    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        """The dim / 2 frequencies of a model made for ``length`` tokens, the spec's ``max_position_embeddings``."""

    def attention_factor(self) -> float:
        """Factor on cos and sin."""
        return 1.0

    def softmax_multiplier(self) -> float:
        """Factor on the softmax scale of latent attention."""
        return 1.0


class CachePolicy(Kind):
    """How declared state is stored."""

    family: ClassVar[str] = "cache"

    dtype: Dtype | None = None
    """dtype of keys, values, latents and convolution columns. Default: the spec's."""
    state_dtype: Dtype = "float32"
    """dtype of recurrent matrices."""

    rules_rows: ClassVar[bool] = False
    """Whether it says which rows are kept, so that a mixer without a row a token can't have it."""

    def kv_dtype(self) -> str:
        """dtype of keys, values, latents and convolution columns."""
        return self.dtype or MODEL_DTYPE

    def kept(self) -> tuple[int, int] | None:
        """(newest tokens, first tokens) that are kept although the mask could reach more; None where none is forgotten."""
        return None

    def block_tokens(self) -> int | None:
        """Tokens a block where rows are given out in blocks; None where a tensor holds them."""
        return None

    def objection(self, mixer: Mixer) -> str:
        """Why this policy can't hold what a mixer keeps, as "which ..."; empty where it can."""
        return ""


class Block(Kind):
    """The residual layout of a layer."""

    family: ClassVar[str] = "block"

    final_norm_default: ClassVar[bool] = True
    """Whether a stack of such layers ends in a norm unless it says otherwise."""

    keeps_streams: ClassVar[bool] = False
    """Whether layers hand on more than one value (``enter``, ``layer``, ``leave``), so that all of a stack's must."""
    takes_cross: ClassVar[bool] = False
    """Whether ``define`` has a keyword ``cross`` too: the branch of a decoder that reads the encoder."""

    @abstractmethod
    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        """One layer around its branches; a half-layer has one of them. ``cross`` is given where ``takes_cross``."""

    def enter(self, g: Builder, x: Value) -> tuple[Value, ...]:
        """What the first layer is given: the embedded tokens, or streams made of them."""
        return (x,)

    def layer(
        self, g: Builder, streams: tuple[Value, ...], *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer
    ) -> tuple[Value, ...]:
        """One layer of a layout that keeps streams: what it hands on, as many values as the next one wants."""
        raise AssertionError(f"{type(self).__name__} keeps streams, so it must define a layer over them")

    def leave(self, g: Builder, streams: tuple[Value, ...]) -> Value:
        """What the final norm is given: (batch, seq, hidden_size)."""
        return streams[0]


class Mixer(Kind):
    """A token mixer. ``position``, ``norm``, ``block`` and ``cache`` are filled with the nearest default before ``define``."""

    family: ClassVar[str] = "mixer"

    position: Annotated[Any, Slot("position")] = None
    """This mixer's own, used whole. Default: the stack's."""
    norm: Annotated[Any, Slot("norm")] = None
    """Norm of this mixer's branch and of its own queries and keys. Default: the stack's."""
    block: Annotated[Any, Slot("block")] = None
    """Residual layout of the layers that hold this mixer. Default: the stack's."""
    cache: Annotated[Any, Slot("cache", key="policy", default_kind="full")] = None
    """How this mixer's state is stored. Default: the stack's."""

    masks: ClassVar[tuple[str, ...]] = ("causal",)
    """What its tokens may be told to see: causal, bidirectional, prefix. ``g.mask`` says which holds."""
    can_cross: ClassVar[bool] = False
    """Whether it can be the ``cross`` of a decoder, and then has the method."""
    reads_encoder: ClassVar[bool] = False
    """Whether it reads the encoder by itself (``g.memory``), so that a decoder of it needs no ``cross``."""
    refuses_slopes: ClassVar[bool] = False
    """Whether it has scores and no place for a slope on them."""
    keeps_rows: ClassVar[bool] = True
    """Whether it keeps a row a token; False where it keeps a state of fixed size only."""

    shared_values: ClassVar[int] = 0
    """Values that later layers can read of it, keys and values 2; where there are any, it has ``share`` and ``read``."""

    def shares_of(self) -> str | None:
        """Name of the mixer of whose nearest earlier layer it reads keys and values; None where it has its own."""
        return None

    def shared_misfit(self, owner: Any) -> str:
        """Why it can't read what ``owner``, another mixer of its class, keeps, as "reads …"; empty where it can."""
        return ""

    def forgetting_objection(self, newest: int, first: int) -> str:
        """Why a cache of so many newest and first tokens doesn't fit, as "which ..."; empty where it does."""
        return ""

    @abstractmethod
    def define(self, g: Builder, x: Value) -> Value:
        """``x``: (batch, seq, hidden_size) -> same shape."""

    def share(self, g: Builder, x: Value) -> tuple[Value, ...]:
        """What ``define`` gives, then the ``shared_values`` that later layers ``read``."""
        raise AssertionError(f"{type(self).__name__} says that others can read it, so it must say what")

    def read(self, g: Builder, x: Value, *rows: Value) -> Value:
        """``x``: (batch, seq, hidden_size) -> same shape, with the ``rows`` that an earlier layer shares instead of its own."""
        raise AssertionError(f"{type(self).__name__} says that it can read others, so it must say how")

    def cross(self, g: Builder, x: Value, memory: Value) -> Value:
        """``x``: (batch, seq, hidden_size) -> same shape, reading ``memory``, the encoder's (batch, source, its width)."""
        raise AssertionError(f"{type(self).__name__} says that it can cross, so it must define it")


class Score(Kind):
    """How a query and a key meet, and what weights come of it."""

    family: ClassVar[str] = "score"

    is_product: ClassVar[bool] = True
    """Whether they meet in a product, so that positions may turn them."""

    def width(self, head_dim: int) -> int:
        """Channels of a head of queries and keys in a mixer of ``head_dim``."""
        return head_dim

    @abstractmethod
    def form(self, width: int) -> ScoreForm:
        """The score of queries and keys of so many channels."""

    def attend(
        self, g: Builder, name: str, q: Value, k: Value, v: Value, *, num_heads: int, cross: bool = False
    ) -> Value:
        """Attention of q over k and v, (batch, seq, heads x value_dim); a score that no form says places its own op here."""
        return attend_by(g, name, self.form(q.width // num_heads), q, k, v, num_heads=num_heads, cross=cross)


class FFN(Kind):
    """A feed-forward."""

    family: ClassVar[str] = "ffn"

    @abstractmethod
    def define(self, g: Builder, x: Value) -> Value:
        """``x``: (batch, seq, hidden_size) -> same shape."""

    def as_expert(self) -> tuple[GatedActivation | Activation, bool] | None:
        """(the activation, gated or plain, whether there are biases) of one expert; None where this kind can't be one."""
        return None


class Router(Kind):
    """What chooses and weighs the experts of a token."""

    family: ClassVar[str] = "router"

    def route(self, num_experts: int, top_k: int) -> Route:
        """The op for so many experts."""
        raise AssertionError(f"{type(self).__name__} must say its op (route), or how it chooses without one (choose)")

    def choose(self, g: Builder, x: Value, num_experts: int, top_k: int) -> tuple[Value, Value]:
        """(indices, weights) of the experts of each token of x, (batch, seq, top_k), placed under the name ``router``."""
        return g.route("router", x, self.route(num_experts, top_k))

    def misfits(self, num_experts: int, top_k: int) -> Iterator[tuple[str, str]]:
        """(field, message) of what does not fit a mixture of so many experts."""
        yield from ()

    def weighs(self) -> Literal["output", "input"]:
        """Whether a weight multiplies an expert's output or its input."""
        return "output"


class Tokenizer(Kind):
    """What turns input into ids."""

    family: ClassVar[str] = "tokenizer"

    @abstractmethod
    def ids(self) -> int:
        """Number of ids, special tokens included."""

    def role_ids(self, role: str) -> list[int]:
        """The ids of one of ``TOKENIZER_ROLES``; none where the kind states none."""
        return []

    def has_file(self) -> bool:
        """Whether ``load`` gives a real tokenizer: the spec names its file, or says all that it takes to make it."""
        return False

    def load(self, folder: str | PathLike[str]) -> Any:
        """The real one, a ``tokenizers.Tokenizer``; files are relative to the spec's folder.

        Raises:
            ArchcError: there is none, or it does not fit the spec.
            MissingExtraError: ``tokenizers`` is not installed.
        """
        raise ArchcError(f"tokenizer {self.kind_name}: no file is stated, so there is nothing to load")

    def train(self, texts: Iterable[str]) -> Any:
        """The real one, a ``tokenizers.Tokenizer``, learned from texts; at most ``ids`` ids, special tokens where stated.

        Raises:
            ArchcError: this kind has nothing to learn.
            MissingExtraError: ``tokenizers`` is not installed.
        """
        raise ArchcError(f"tokenizer {self.kind_name} learns nothing from texts; char, word and bpe do")


class Embedding(Kind):
    """What turns ids into vectors of ``hidden_size``."""

    family: ClassVar[str] = "embedding"

    hidden_size: int

    source: ClassVar[str] = "input_ids"
    """Name of the model's input that it reads: (batch, seq) int64 ids, or what ``input_type`` says."""
    has_length: ClassVar[bool] = False
    """Whether it says itself how many tokens there are (``num_tokens``), so that the spec needn't."""

    def input_type(self, tokens: Dim) -> TensorType:
        """What it reads; ``tokens`` is the symbol that counts them where it doesn't say that itself."""
        return TensorType((BATCH, tokens), "int64")

    def num_tokens(self) -> int | None:
        """Tokens that it always makes; None where there are as many as ids."""
        return None

    @abstractmethod
    def define(
        self, g: Builder, ids: Value, *, vocab_size: int, table: Param | None = None
    ) -> tuple[Value, Param | None]:
        """(vectors (batch, seq, hidden_size), the table, None where it has none).

        A given ``table`` is one that an encoder and a decoder share, and the encoder's embedding has made.
        """

    def finish(self, g: Builder, x: Value, *, norm: Norm) -> Value:
        """What is added and done once positions are in; ``norm`` is the spec's."""
        return x

    def tied(self) -> bool:
        """Whether a head that predicts tokens reads the table."""
        return False


class Head(Kind):
    """What reads the last layer."""

    family: ClassVar[str] = "head"

    output: ClassVar[str] = "logits"
    """Name of the model's output."""

    reads_table: ClassVar[bool] = True
    """Whether it may read the embedding's table, so that the spec must say whether it does."""

    @abstractmethod
    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value | Mapping[str, Value]:
        """``x``: (batch, seq, hidden_size) -> the output, or several by name; ``table`` is the embedding's (rows, width).

        ``g.norm`` places the norm that rules the stack, ``g.embedded`` are its embedded tokens.
        """
