"""What autograd keeps for backward, without torch: an op replays its torch lowering on a tape of tensors without numbers.

An op's ``saves`` names the primitives that its lowering runs, in order, and each primitive knows what its derivative formula
keeps (torch's ``derivatives.yaml``). Three rules make bytes out of that:

* What is kept is a storage, once, however many views of it are kept: a saved slice holds all of what it was cut from.
* Weights and buffers are there anyway and count nothing; a weight cast to another dtype is a tensor of its own.
* Nothing is kept for what needs no gradient: a table made from positions is counted only where a product keeps it. Nor for
  what no output reads by way of a gradient: projections that only choose.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from archc.ir.size import Dim, ceil_div, evaluate, product, simplify
from archc.units import DTYPE_BITS

Shape = tuple[Dim, ...]
Recompute = Literal["none", "selective", "full"]
"""What backward computes again of a layer: nothing; all but what matrix work wrote; all, from its inputs."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
Device = Literal["cuda", "cpu"]
"""Whose kernels run; the CPU's RMS norm keeps a tensor more."""


class Storage:
    """Memory that one or several tensors lie in. ``axis`` is what tensor parallelism cuts it along; ``origin`` made it."""

    __slots__ = ("axis", "dtype", "elements", "is_weight", "origin")

    def __init__(
        self, elements: Dim, dtype: str, *, axis: str | None = None, is_weight: bool = False, origin: str = ""
    ) -> None:
        self.elements, self.dtype, self.axis, self.is_weight, self.origin = elements, dtype, axis, is_weight, origin

    @property
    def bytes(self) -> Dim:
        """Its size; elements narrower than a byte are packed."""
        bits = DTYPE_BITS[self.dtype]
        return simplify(self.elements * (bits // 8)) if bits % 8 == 0 else ceil_div(self.elements * bits, 8)


class Held:
    """A tensor on the tape. ``needs_grad``: backward goes through it. ``is_read``: a primitive took it on the way there."""

    __slots__ = ("axis", "dtype", "is_read", "needs_grad", "shape", "storage")

    def __init__(self, shape: Shape, dtype: str, storage: Storage, *, needs_grad: bool, axis: str | None) -> None:
        self.shape, self.dtype, self.storage, self.needs_grad, self.axis = shape, dtype, storage, needs_grad, axis
        self.is_read = False

    @property
    def width(self) -> int:
        """Size of the last dimension."""
        last = self.shape[-1]
        assert isinstance(last, int), f"the last dimension of {self.shape} is symbolic"
        return last

    @property
    def elements(self) -> Dim:
        return product(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(str(dim) for dim in self.shape)}]{'' if self.needs_grad else ' constant'}"


class Tape:
    """Records the storages that backward keeps (``saved``), and those that matrix work wrote (``products``).

    Selective recomputation keeps the products and makes the rest again. ``shared`` are tensors that one training step makes
    once for all layers (masks), by a key. Shapes may be symbolic; ``sizes`` are the numbers of one call, for lowerings that
    choose by them.
    """

    def __init__(self, model_dtype: str, sizes: Mapping[str, int], device: Device = "cuda") -> None:
        self.model_dtype, self.sizes = model_dtype, sizes
        self.device: Device = device
        self.saved: dict[Storage, None] = {}
        self.products: dict[Storage, None] = {}
        self.shared: dict[Hashable, Storage] = {}
        self.origin = ""

    def number(self, dim: Dim) -> int:
        """A dimension in this call."""
        return evaluate(dim, self.sizes)

    # Making tensors

    def new(
        self, shape: Shape, dtype: str, *, needs_grad: bool = False, axis: str | None = None, is_weight: bool = False
    ) -> Held:
        """A tensor with memory of its own."""
        dtype = self.model_dtype if dtype == "model" else dtype
        storage = Storage(product(shape), dtype, axis=axis, is_weight=is_weight, origin=self.origin)
        return Held(shape, dtype, storage, needs_grad=needs_grad, axis=axis)

    def shared_constant(self, key: Hashable, shape: Shape, dtype: str) -> Held:
        """A tensor without gradient that is made once a step, whatever asks for it: equal keys share it."""
        made = self.new(shape, dtype)
        made.storage = self.shared.setdefault(key, made.storage)
        return made

    def save(self, *tensors: Held) -> None:
        """Backward keeps these."""
        for tensor in tensors:
            if not tensor.storage.is_weight:
                self.saved[tensor.storage] = None

    def fresh(
        self,
        inputs: Iterable[Held],
        shape: Shape | None = None,
        *,
        dtype: str | None = None,
        keeps: Iterable[Held] = (),
        axis: str | bool | None = True,
        needs_grad: bool | None = None,
    ) -> Held:
        """The result of a primitive: new memory, gradient where an input has one; ``keeps`` is kept if so.

        Shape, dtype and axis are the first input's where not said.
        """
        inputs = tuple(inputs)
        first = inputs[0]
        grad = any(tensor.needs_grad for tensor in inputs) if needs_grad is None else needs_grad
        if grad:
            self.save(*keeps)
        for tensor in inputs:
            tensor.is_read |= tensor.needs_grad
        return self.new(
            first.shape if shape is None else shape,
            first.dtype if dtype is None else dtype,
            needs_grad=grad,
            axis=first.axis if axis is True or axis is False else axis,
        )

    # Primitives that keep nothing

    def view(self, x: Held, shape: Shape, *, axis: str | bool | None = True) -> Held:
        """The same memory in another shape, or a slice, a transposed or an expanded view of it."""
        axis = x.axis if axis is True or axis is False else axis
        x.is_read |= x.needs_grad
        return Held(shape, x.dtype, x.storage, needs_grad=x.needs_grad, axis=axis)

    def detach(self, x: Held) -> Held:
        """The same memory, and backward ends here."""
        return Held(x.shape, x.dtype, x.storage, needs_grad=False, axis=x.axis)

    def copy(self, x: Held, shape: Shape | None = None, *, dtype: str | None = None) -> Held:
        """New memory, made by moving elements: contiguous, repeat, pad, flatten of a transposed view."""
        return self.fresh((x,), shape, dtype=dtype)

    def cast(self, x: Held, dtype: str) -> Held:
        """``x.to(dtype)``: x itself where it has that dtype."""
        dtype = self.model_dtype if dtype == "model" else dtype
        return x if x.dtype == dtype else self.fresh((x,), dtype=dtype)

    def wide(self, x: Held) -> Held:
        """x in the dtype of sums: float32, or float64 where x is."""
        return self.cast(x, _statistics(x))

    def add(self, *tensors: Held) -> Held:
        """Sum or difference, the largest operand first."""
        return self.fresh(tensors)

    def cat(self, tensors: Sequence[Held], shape: Shape) -> Held:
        """Tensors joined."""
        return self.fresh(tensors, shape)

    def scaled(self, x: Held) -> Held:
        """x times, plus or divided by a number; a negated x."""
        return self.fresh((x,))

    def sum(self, x: Held, shape: Shape) -> Held:
        """Sum or mean over some dimensions."""
        return self.fresh((x,), shape)

    # Primitives that keep operands or results

    def mul(self, a: Held, b: Held) -> Held:
        """Product, the larger operand first: each factor is kept for the other's gradient."""
        return self.fresh((a, b), keeps=([b] if a.needs_grad else []) + ([a] if b.needs_grad else []))

    def div(self, a: Held, b: Held) -> Held:
        """Quotient: the divisor is kept, and the dividend where the divisor has a gradient."""
        return self.fresh((a, b), keeps=[b, a] if b.needs_grad else [b])

    def of_input(self, x: Held) -> Held:
        """An elementwise function whose derivative reads its input: silu, gelu, softplus, clamp, square, log, sin, cos."""
        return self.fresh((x,), keeps=[x])

    def of_output(self, x: Held) -> Held:
        """One whose derivative reads its result: sigmoid, tanh, relu, exp, sqrt, softmax."""
        y = self.fresh((x,))
        if x.needs_grad:
            self.save(y)
        return y

    def masked_fill(self, x: Held, mask: Held) -> Held:
        """x with a number where the mask says so: the mask is kept."""
        return self.fresh((x,), keeps=[mask])

    def take(self, x: Held, index: Held, shape: Shape) -> Held:
        """Elements or rows of x by index (``x[index]``, index_select, embedding): the index is kept."""
        return self.fresh((x,), shape, keeps=[index])

    def gather(self, x: Held, index: Held, shape: Shape) -> Held:
        """``torch.gather``, whose derivative wants x for its shape and so keeps all of it, with the index."""
        return self.fresh((x,), shape, keeps=[x, index])

    def linear(self, x: Held, weight: Held, *, axis: str | None = None) -> Held:
        """``x W^T``, weight (rows, width): x is kept for the weight's gradient, a weight that was cast for that of x."""
        rows = weight.shape[0]
        keeps = ([x] if weight.needs_grad else []) + ([weight] if x.needs_grad else [])
        return self.product(self.fresh((x, weight), (*x.shape[:-1], rows), keeps=keeps, axis=axis))

    def matmul(self, a: Held, b: Held, shape: Shape) -> Held:
        """A product of two activations as ``torch.bmm`` runs it; views that it must copy first are the caller's to say."""
        return self.product(
            self.fresh((a, b), shape, keeps=([b] if a.needs_grad else []) + ([a] if b.needs_grad else []))
        )

    def product(self, y: Held) -> Held:
        """Marks what matrix work wrote: selective recomputation keeps it."""
        if not y.storage.is_weight:
            self.products[y.storage] = None
        return y

    def rms_norm(self, x: Held, weight: Held | None, rows: Dim) -> Held:
        """``functional.rms_norm`` over ``rows`` rows: x and a float32 a row are kept, on the CPU the normed x as well."""
        if self.device == "cpu":
            y = self.fresh((x,), keeps=[x])
            if x.needs_grad:
                self.save(self.new((rows,), _statistics(x), axis=x.axis))
            return y if weight is None else self.mul(y, weight)
        return self._norm(x, weight, rows, statistics=1)

    def layer_norm(self, x: Held, weight: Held | None, rows: Dim) -> Held:
        """``functional.layer_norm``: x, and mean and deviation of each row, on the CPU in x's dtype."""
        return self._norm(x, weight, rows, statistics=2, dtype=x.dtype if self.device == "cpu" else None)

    def _norm(self, x: Held, weight: Held | None, rows: Dim, *, statistics: int, dtype: str | None = None) -> Held:
        y = self.fresh((x,) if weight is None else (x, weight), keeps=[x] if weight is None else [x, weight])
        if y.needs_grad:
            self.save(*(self.new((rows,), dtype or _statistics(x), axis=x.axis) for _ in range(statistics)))
        return y

    def sdpa(self, q: Held, k: Held, v: Held, mask: Held | None = None) -> Held:
        """torch's fused attention over (batch, heads, seq, width): q, k, v, the mask, the output and a float32 a row are kept."""
        shape = (*q.shape[:-1], v.shape[-1])
        o = self.product(self.fresh((q, k, v), shape, keeps=(q, k, v, *(() if mask is None else (mask,)))))
        if o.needs_grad:
            logsumexp = self.product(self.new(q.shape[:-1], _statistics(q), axis=q.axis))
            self.save(o, logsumexp)
        return o


def _statistics(x: Held) -> str:
    """The dtype in which a kernel keeps sums of x."""
    return x.dtype if x.dtype == "float64" else "float32"
