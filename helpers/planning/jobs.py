"""What a training step is made of, in closed form: weights, products, and what backward keeps.

Counts follow from sizes alone, so that nothing is built or downloaded; tests hold them against the real modules (weights
exactly, products against torch's FLOP counter, what is kept against autograd's saved tensors). `architectures.py` makes
the jobs, `catalogue.py` names those of the notebooks, `model_sizes.py` reads the sizes of a real model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HALF = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some weights, and what they are multiplied with."""

    name: str
    parameters: int
    trained: bool = True
    products: int = 0  # multiply-adds of a forward pass: a token, or as `each` says
    each: str = "token"  # "token", "sequence" or "step"
    input_gradient: bool = True  # backward goes on to what is below
    loose: bool = False  # in the model and never used, so that it has neither gradient nor optimizer state

    @property
    def updated(self) -> int:
        """Parameters with a gradient and optimizer state."""
        return self.parameters if self.trained and not self.loose else 0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Numbers a token that autograd keeps for backward.

    Under autocast what was cast is kept beside what it was cast from, so that half precision has counts of its own.
    """

    full: float = 0  # all of them where everything is fp32
    wide: float = 0  # in half precision: what stays fp32
    narrow: float = 0  # in half precision: what has 2 bytes
    masks: float = 0  # dropout masks: of the dtype of what they mask on a CPU, 1 byte elsewhere

    def __add__(self, other: Kept) -> Kept:
        return Kept(**{name: getattr(self, name) + getattr(other, name) for name in vars(self)})

    def __mul__(self, times: float) -> Kept:
        return Kept(**{name: value * times for name, value in vars(self).items()})

    __rmul__ = __mul__

    def bytes(self, precision: str, kind: str) -> float:
        """Bytes a token on a "cpu", "cuda" or "xla" device."""
        half = precision in HALF
        mask = (2 if half else 4) if kind == "cpu" else 1
        return (4 * self.wide + 2 * self.narrow if half else 4 * self.full) + mask * self.masks


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of an architecture. `family` says which of the builders below reads them."""

    family: str  # "bert", "gemma", "qwen", "reservoir" or "graphmer"
    vocab: int
    width: int
    layers: int
    heads: int = 1
    inner: int
    kv_heads: int = 0  # 0 = as many as heads
    head_size: int = 0  # 0 = width / heads
    positions: int = 0  # learned ones
    types: int = 2  # of segments
    buckets: int = 0  # of distances, with a number a head each
    source: str = ""  # where the sizes were read

    @property
    def attention_width(self) -> int:
        return self.heads * (self.head_size or self.width // self.heads)

    @property
    def key_width(self) -> int:
        return (self.kv_heads or self.heads) * (self.head_size or self.width // self.heads)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One notebook's training step, for one architecture."""

    name: str
    model: str  # which of MODELS[name]
    sizes: Sizes
    parts: tuple[Part, ...]
    kept: Kept  # a token, attention's own apart
    attention_kept: Kept = Kept()  # a pair of tokens, where attention is not fused: x T a token
    fused_kept: Kept = Kept()  # a token instead of that, where it is
    pair_products: int = 0  # multiply-adds a pair of tokens, forward
    pair_products_back: int = 0  # the same, backward
    fusable: str = "always"  # "always", "not on a cpu" (dropout of the attention weights) or "never"
    logits: float = 0  # entries of the vocabulary that a token is scored against
    logit_copies: tuple[float, float] = (2.0, 2.0)  # fp32 numbers an entry at the peak; (fp32, half precision)
    logit_tile: int = 0  # tokens whose logits exist at once; 0 = all
    copies_kept: Kept = Kept()  # numbers a sequence
    step_bytes: float = 0.0  # kept a step, whatever its size
    length: int  # tokens of a sequence
    views: int = 1  # sequences an example
    sequences_per_example: float = 1.0  # after packing
    example: str = "example"
    examples: int  # of the default run
    epochs: int = 3
    longest: int = 0  # steps at most; 0 = no limit
    batch_size: int  # examples an optimizer step (blocks where they are packed)
    learning_rate: float
    tpu_batch_factor: int = 2
    tpu_learning_rate_factor: float = 1.2
    half_base: bool = False  # frozen weights are bf16 where the precision is
    serial: bool = False  # token after token: what a datasheet rates does not bound its time from above
    settings: dict = field(default_factory=dict)  # of the real module: rank, frozen layers, ...

    def recipe_batch(self, examples: int) -> int:
        """Examples an optimizer step that the notebook's recipe takes for so many."""
        if self.name == "lejepa_training":
            return max(2, min(32 if examples < 10_000 else 64, examples))
        if self.name == "legal_cot_sft":
            return max(1, min(16, round(examples * self.sequences_per_example) // 8))
        return self.batch_size

    # -- weights --

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def updated(self) -> int:
        return sum(part.updated for part in self.parts)

    @property
    def still(self) -> int:
        """Weights without gradient."""
        return self.parameters - self.updated

    # -- arithmetic --

    def flops(self, sequences: float, length: int = 0) -> tuple[float, float]:
        """Floating-point operations of a forward and a backward pass over so many sequences; recomputation not counted."""
        forward, backward, pair_forward, pair_backward = self._products(sequences, length or self.length)
        return 2 * (forward + pair_forward), 2 * (backward + pair_backward)

    def flops_of_weights(self, sequences: float, length: int = 0) -> float:
        """Those of products with weights, both passes."""
        forward, backward, *_ = self._products(sequences, length or self.length)
        return 2 * (forward + backward)

    def flops_of_pairs(self, sequences: float, length: int = 0) -> float:
        """Those of products of tokens with tokens, both passes."""
        *_, forward, backward = self._products(sequences, length or self.length)
        return 2 * (forward + backward)

    def _products(self, sequences, length):
        times = {"token": sequences * length, "sequence": sequences, "step": 1}
        forward = sum(part.products * times[part.each] for part in self.parts)
        backward = sum(part.products * times[part.each] * (part.trained + part.input_gradient) for part in self.parts)
        pairs = sequences * length * length
        return forward, backward, self.pair_products * pairs, self.pair_products_back * pairs

    # -- memory --

    def is_fused(self, kind: str) -> bool:
        """Whether attention keeps no [T, T] matrix there: SDPA's fused kernels on CUDA, and on a CPU without dropout."""
        return (self.fusable == "always" and kind != "xla") or (self.fusable == "not on a cpu" and kind == "cuda")

    def activation_bytes(self, sequences: float, length: int, precision: str, kind: str, fused: bool) -> float:
        """What autograd keeps between forward and backward, logits apart."""
        tokens = sequences * length
        kept = self.kept + (self.fused_kept if fused else self.attention_kept * length)
        return (
            tokens * kept.bytes(precision, kind) + sequences * self.copies_kept.bytes(precision, kind) + self.step_bytes
        )

    def logit_bytes(self, sequences: float, length: int, precision: str) -> float:
        """Logits and their gradient at the start of backward."""
        tokens = sequences * length
        if self.logit_tile:
            tokens = min(tokens, self.logit_tile)
        return 4 * tokens * self.logits * self.logit_copies[precision in HALF]

    def cast_bytes(self, precision: str) -> float:
        """Copies that autocast makes of fp32 weights which are multiplied."""
        if precision not in HALF:
            return 0.0
        multiplied = (part for part in self.parts if part.products and (part.trained or not self._half(precision)))
        return 2.0 * sum(part.parameters for part in multiplied)

    def weight_bytes(self, precision: str) -> float:
        frozen = sum(part.parameters for part in self.parts if not part.trained)
        return 4.0 * (self.parameters - frozen) + (2.0 if self._half(precision) else 4.0) * frozen

    def _half(self, precision: str) -> bool:
        return self.half_base and precision == "bf16"
