"""What a training step of each notebook is made of, in closed form: weights, products, and what backward keeps.

    job("lejepa_training").parameters            # 309 million, of which ...
    job("legal_cot_sft").flops(sequences=16)     # forward and backward of one step

Counts follow from sizes alone, so that nothing is built or downloaded; tests hold them against the real modules (weights
exactly, products against torch's FLOP counter, what is kept against autograd's saved tensors).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace

# V vocabulary · D width · I inner width of a feed-forward layer · L layers · h heads · A = heads x head size
# K = key-value heads x head size · T tokens of a sequence · r rank of LoRA

HALF = ("fp16", "bf16")
MATCH_KEY = 64  # GraphMER's, helpers/graphmer/architecture.py (which loads transformers)


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


# ---- transformers


def _linears(sizes: Sizes, gated: bool) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the matrices of a layer."""
    D, A, K, I = sizes.width, sizes.attention_width, sizes.key_width, sizes.inner  # noqa: E741
    first = {"q": (D, A), "k": (D, K), "v": (D, K)}
    inner = {"gate": (D, I), "up": (D, I)} if gated else {"up": (D, I)}
    return first | {"o": (A, D)} | inner | {"down": (I, D)}


def _stack(
    sizes: Sizes,
    *,
    gated: bool,
    biased: tuple[str, ...],
    vectors: int,
    frozen_layers: int = 0,
    below: bool,
    rank: int = 0,
) -> tuple[Part, ...]:
    """Layers of a transformer.

    biased: matrices with a bias. vectors: floats of a layer's norms. frozen_layers: first ones left as they are.
    below: whether what is under the first trained layer is trained too. rank: of LoRA on frozen layers, 0 for none.
    """
    linears = _linears(sizes, gated)
    matrices = {name: inputs * outputs for name, (inputs, outputs) in linears.items()}
    biases = sum(linears[name][1] for name in biased)
    layer, L = sum(matrices.values()), sizes.layers
    entry = sum(matrices[name] for name in ("q", "k", "v"))  # whose input may need no gradient
    parts = []
    if frozen_layers:
        parts.append(
            Part(
                name=f"first {frozen_layers} layers",
                parameters=frozen_layers * (layer + biases + vectors),
                trained=False,
                products=frozen_layers * layer,
                input_gradient=False,
            )
        )
    trained, rest = not rank, L - frozen_layers
    if rest:
        parts += [
            Part(
                name="q, k, v of the first layer",
                parameters=entry,
                trained=trained,
                products=entry,
                input_gradient=below,
            ),
            Part(name="layers", parameters=rest * layer - entry, trained=trained, products=rest * layer - entry),
            Part(name="biases and norms", parameters=rest * (biases + vectors), trained=trained),
        ]
    if rank:
        down = {name: rank * inputs for name, (inputs, _) in linears.items()}
        up = sum(rank * outputs for _, outputs in linears.values())
        lowest = sum(down[name] for name in ("q", "k", "v"))
        both = L * (sum(down.values()) + up)
        parts += [
            Part(name="adapters on them", parameters=lowest, products=lowest, input_gradient=below),
            Part(name="adapters", parameters=both - lowest, products=both - lowest),
        ]
    return tuple(parts)


def _bert(sizes: Sizes, *, frozen_layers: int = 0, embeddings: bool = True, pooler: bool = True):
    """Parts of a BERT encoder and the numbers it keeps a token; everything is post-norm and has a bias."""
    D, h = sizes.width, sizes.heads
    kept_layers = sizes.layers - frozen_layers
    parts = (
        Part(name="embeddings", parameters=(sizes.vocab + sizes.positions + sizes.types + 2) * D, trained=embeddings),
        *_stack(
            sizes,
            gated=False,
            biased=("q", "k", "v", "o", "up", "down"),
            vectors=4 * D,
            frozen_layers=frozen_layers,
            below=embeddings,
        ),
    )
    if pooler:
        parts += (Part(name="pooler", parameters=D * D + D, loose=True),)
    layer = Kept(full=8 * D + 2 * sizes.inner + 4, wide=2 * D + 4, narrow=8 * D + 2 * sizes.inner, masks=2 * D)
    below = Kept(full=D + 2, wide=D + 2, masks=D) if embeddings else Kept()
    scores = Kept(full=2 * h, wide=h, narrow=h, masks=h) * kept_layers  # softmax and what dropout leaves of it
    return parts, kept_layers * layer + below, scores, Kept(full=h, wide=h) * kept_layers


def lejepa_training(sizes: Sizes, model: str, **settings) -> Job:
    """A text encoder, its Dense head and LeJEPA's loss on pairs."""
    options = {"freeze_layers": 3, "output_dim": 512, "num_slices": 256, "past_texts": 1024} | settings
    frozen, D = options["freeze_layers"], sizes.width
    if sizes.family == "bert":
        parts, kept, scores, fused = _bert(sizes, frozen_layers=frozen, embeddings=not frozen)
        head, fusable = (), "not on a cpu"
    else:
        parts, kept, scores, fused = _gemma(sizes, frozen_layers=frozen, embeddings=not frozen)
        dense = 4 * D * D
        head = tuple(
            Part(name=name, parameters=dense, products=dense, each="sequence") for name in ("dense 1", "dense 2")
        )
        fusable = "always"
    K, M = options["output_dim"], options["num_slices"]
    head += (
        Part(name="head", parameters=D * K + K, products=D * K, each="sequence"),
        # Projections on the slices: of the batch with a gradient, of the past texts without.
        Part(name="SIGReg", parameters=0, trained=False, products=K * M, each="sequence"),
    )
    past = 2 * options["past_texts"]
    parts += (
        *head,
        Part(
            name="SIGReg of past texts",
            parameters=0,
            trained=False,
            products=past * K * M,
            each="step",
            input_gradient=False,
        ),
    )
    trained_layers = sizes.layers - frozen
    return Job(
        name="lejepa_training",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=kept,
        attention_kept=scores,
        fused_kept=fused,
        pair_products=2 * sizes.layers * sizes.attention_width,
        pair_products_back=4 * trained_layers * sizes.attention_width,
        fusable=fusable,
        step_bytes=4.0 * past * (2 * K + M),
        length=128,
        views=2,
        example="pair",
        examples=20_000,
        epochs=3,
        longest=5_000,
        batch_size=64,
        learning_rate=2e-6,
        settings=options,
    )


def _gemma(sizes: Sizes, *, frozen_layers: int, embeddings: bool):
    """Gemma 3 as an encoder: four norms a layer, norms of queries and keys, gated GELU, keys repeated for the heads."""
    D, A, K, I, h = sizes.width, sizes.attention_width, sizes.key_width, sizes.inner, sizes.heads  # noqa: E741
    L = sizes.layers - frozen_layers
    size = A // h
    parts = (
        Part(name="embeddings", parameters=sizes.vocab * D, trained=embeddings),
        *_stack(sizes, gated=True, biased=(), vectors=4 * D + 2 * size, frozen_layers=frozen_layers, below=embeddings),
        Part(name="last norm", parameters=D),
    )
    few = 4 + h + 2 * (K // size)  # one number a norm
    layer = Kept(
        full=10 * D + 6 * A + 2 * K + 4 * I + few,
        wide=8 * D + 2 * A + 2 * K + few,
        narrow=5 * D + 5 * A + 4 * I,
    )
    scores = Kept(full=h, wide=0, narrow=h) * L
    return parts, L * layer + Kept(full=2 * D + 1, wide=2 * D + 1), scores, Kept(full=h, wide=h) * L


def legal_cot_sft(sizes: Sizes, model: str, **settings) -> Job:
    """Qwen2 with LoRA on every linear projection, or trained whole, and the loss in tiles of tokens."""
    options = {"method": "lora", "lora_rank": 32} | settings
    lora, r = options["method"] == "lora", options["lora_rank"]
    D, A, K, I, L, h = (  # noqa: E741
        sizes.width, sizes.attention_width, sizes.key_width, sizes.inner, sizes.layers, sizes.heads,
    )  # fmt: skip
    parts = (
        *_stack(sizes, gated=True, biased=("q", "k", "v"), vectors=2 * D, below=not lora, rank=r if lora else 0),
        Part(name="last norm", parameters=D, trained=not lora),
        # Tied: the embedding is the head.
        Part(name="embedding and head", parameters=sizes.vocab * D, trained=not lora, products=sizes.vocab * D),
    )
    if lora:
        # Norms keep their input and its inverse norm; each projection's dropout a mask and what it leaves.
        layer = Kept(
            full=6 * D + 2 * A + 2 * K + 5 * I + 7 * r + 2,
            wide=2 * D + I + 2,
            narrow=6 * D + 2 * A + 2 * K + 4 * I + 8 * r,
            masks=6 * D,
        )
    else:
        layer = Kept(full=6 * D + 2 * A + 2 * K + 4 * I + 2, wide=4 * D + 2, narrow=5 * D + 3 * A + 2 * K + 4 * I)
    hidden = Kept(full=3 * D, wide=3 * D)  # last norm, and the gradient that the tiles leave
    return Job(
        name="legal_cot_sft",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=L * layer + hidden,
        attention_kept=Kept(full=h, narrow=h) * L,
        fused_kept=Kept(full=h, wide=h) * L,
        pair_products=2 * L * A,
        pair_products_back=4 * L * A,
        logits=sizes.vocab,
        logit_copies=(2.0, 1.5),
        logit_tile=2048,
        length=1024,
        sequences_per_example=0.72,  # rezacr588/legal: 7,230 steps of 4 blocks in 5 epochs of 8,014 records
        example="record",
        examples=2_054,
        epochs=3,
        batch_size=16,
        learning_rate=2e-4 if lora else 2e-5,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
        half_base=lora,
        settings=options,
    )


def hardware_tuning(sizes: Sizes, model: str, **settings) -> Job:
    """A BERT classifier with two labels."""
    parts, kept, scores, fused = _bert(sizes, pooler=False)
    D = sizes.width
    parts += (
        Part(name="pooler", parameters=D * D + D, products=D * D, each="sequence"),
        Part(name="classifier", parameters=2 * D + 2, products=2 * D, each="sequence"),
    )
    return Job(
        name="hardware_tuning",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=kept,
        attention_kept=scores,
        fused_kept=fused,
        pair_products=2 * sizes.layers * sizes.attention_width,
        pair_products_back=4 * sizes.layers * sizes.attention_width,
        fusable="not on a cpu",
        length=192,
        example="row",
        examples=24_048,  # train.csv of Finetune-PhoBERT
        epochs=3,
        batch_size=16,
        learning_rate=2e-5,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
        settings=settings,
    )


# ---- reservoir and graph


def tinystories_reservoir(sizes: Sizes, model: str, **settings) -> Job:
    """One layer of frozen reservoirs (delay line, block-diagonal tanh, linear) under a trained readout."""
    options = {
        "delay": 128, "delays": 8, "tanh": 1024, "blocks": 8, "linear": 512, "recall_tokens": 128, "codes": 0,
    } | settings  # fmt: skip
    V, D, H, blocks = sizes.vocab, sizes.width, sizes.inner, sizes.layers
    tanh, linear, delay = options["tanh"], options["linear"], options["delay"]
    features = delay * options["delays"] + tanh + 2 * linear
    recurrent = tanh * tanh // options["blocks"]
    W, kernels = options["recall_tokens"], 5
    frozen = V * (delay + tanh + linear) + recurrent + tanh + 2 * linear
    parts = (
        Part(name="reservoirs", parameters=frozen, trained=False, products=recurrent, input_gradient=False),
        Part(name="projection", parameters=features * D, products=features * D, input_gradient=False),
        Part(name="blocks", parameters=blocks * (3 * D * H + D * D), products=blocks * (3 * D * H + D * D)),
        Part(name="norms and biases", parameters=blocks * 2 * D + D),
        Part(name="embedding and head", parameters=V * D, products=V * D),
        Part(name="head bias", parameters=V),
    )
    if W:
        parts += (Part(name="recall", parameters=kernels * (D + 1), products=kernels * D),)
        parts += (Part(name="recall of the line", parameters=0, trained=False, products=kernels * W),)
    return Job(
        name="tinystories_reservoir",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=Kept(
            full=features + blocks * (5 * D + 4 * H) + 4 * D + kernels * W,
            wide=blocks * (3 * D + 1) + 3 * D + kernels * W,
            narrow=features + blocks * (4 * D + 4 * H) + D,
            masks=blocks * D,
        ),
        attention_kept=Kept(full=kernels, wide=kernels) if W else Kept(),
        fusable="never",
        pair_products=kernels if W else 0,
        pair_products_back=kernels if W else 0,
        logits=V,
        logit_copies=(3.0, 3.0),
        length=128,
        example="block",
        examples=256_000,  # 4,000 steps of 64 blocks, the longest recipe
        epochs=1,
        longest=4_000,
        batch_size=64,
        learning_rate=3e-3,
        serial=True,
        settings=options,
    )


def graphmer_se(sizes: Sizes, model: str, **settings) -> Job:
    """GraphMER-SE: an encoder over roots and leaf slots with H-GAT and graph distance in attention, MLM and MNM losses.

    Its other terms run entities' texts through the same layers: more time and memory, in `helpers/graphmer/memory.py`.
    """
    options = {"roots": 128, "leaves": 10, "leaf_tokens": 7, "relations": 30, "head_tokens": 8, "embedding_size": 256}
    options |= {"mlm_positions": 20} | settings
    V, D, I, L, h = sizes.vocab, sizes.width, sizes.inner, sizes.layers, sizes.heads  # noqa: E741
    S, G, tokens, R, E = (options[key] for key in ("roots", "leaves", "leaf_tokens", "relations", "embedding_size"))
    slots, M = G * tokens, options["mlm_positions"]
    layer = 4 * D * D + 3 * D * I
    scored = slots + M  # tokens that have logits
    parts = (
        Part(name="embedding and head", parameters=V * D, products=V * D * scored, each="sequence"),
        Part(name="head bias, leaf slots, norms", parameters=V + tokens * D + 2 * D + 2 * L * D),
        Part(name="layers", parameters=L * layer, products=L * layer),
        Part(name="relation bias and decay", parameters=R * h + h),
        # Leaves of one relation share a copy of its matrix in tiles of 8: P / 8 + R tiles.
        Part(name="H-GAT", parameters=R * D * D, products=G * tokens * D * D, each="sequence"),
        Part(name="H-GAT tiles", parameters=3 * R * D, products=R * 8 * tokens * D * D + 2 * R * D * D, each="step"),
        # Of the terms over entities, which MLM and MNM do without.
        Part(name="entity and triple heads", parameters=2 * D * E + R * E * E + D + 1, loose=True),
        Part(name="token match", parameters=D * (D + 1) + 2 * MATCH_KEY * (D + 1) + 2 * V + 2, loose=True),
    )
    return Job(
        name="graphmer_se",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=L * Kept(full=10 * D + 4 * I + 2, wide=4 * D + 2, narrow=6 * D + 4 * I, masks=2 * D)
        + Kept(full=4 * D, wide=3 * D, narrow=D, masks=D),
        attention_kept=L * Kept(full=3 * h, wide=2 * h, narrow=h, masks=h) + Kept(full=2 * h, wide=2 * h),
        fusable="never",
        pair_products=2 * L * D,
        pair_products_back=4 * L * D,
        logits=V * scored / (S + slots),
        logit_copies=(2.0, 2.5),
        copies_kept=Kept(full=G * D * (options["head_tokens"] + 4 * tokens)),
        step_bytes=4.0 * 3 * R * D * D,
        length=S + slots,
        example="sequence",
        examples=80_000,
        epochs=5,
        batch_size=32,
        learning_rate=3e-4,
        settings=options,
    )


# ---- the catalogue of jobs

QWEN_HALF_B = Sizes(
    family="qwen", vocab=151_936, width=896, layers=24, heads=14, kv_heads=2, inner=4_864, source="Qwen/Qwen2.5-0.5B config.json"
)  # fmt: skip
BERT_BASE = Sizes(
    family="bert", vocab=30_522, width=768, layers=12, heads=12, inner=3_072, positions=512, source="bert-base-uncased config.json"
)  # fmt: skip
PHOBERT = replace(BERT_BASE, vocab=64_001, positions=258, types=1, source="vinai/phobert-base-v2 config.json")

MODELS: dict[str, dict[str, Sizes]] = {
    "lejepa_training": {
        "embeddinggemma": Sizes(
            family="gemma", vocab=262_144, width=768, layers=24, heads=3, kv_heads=1, head_size=256, inner=1_152,
            source="google/embeddinggemma-300m config.json",
        ),
        "minilm": Sizes(
            family="bert", vocab=30_522, width=384, layers=6, heads=12, inner=1_536, positions=512,
            source="all-MiniLM-L6-v2 config.json",
        ),
        "small": Sizes(family="bert", vocab=2_000, width=128, layers=4, heads=4, inner=512, positions=512),
    },
    "legal_cot_sft": {
        "qwen2.5-0.5b": QWEN_HALF_B,
        "small": Sizes(family="qwen", vocab=4_000, width=128, layers=4, heads=4, kv_heads=2, inner=384),
    },
    "tinystories_reservoir": {
        "default": Sizes(family="reservoir", vocab=8_192, width=256, layers=3, inner=688),
        "gpt2": Sizes(family="reservoir", vocab=50_257, width=256, layers=3, inner=688),
        "small": Sizes(family="reservoir", vocab=2_000, width=128, layers=3, inner=256),
    },
    "graphmer_se": {
        "80m": Sizes(family="graphmer", vocab=8_192, width=768, layers=12, heads=12, inner=896),
        "small": Sizes(family="graphmer", vocab=2_000, width=128, layers=4, heads=4, inner=192),
    },
    "hardware_tuning": {
        "bert-base": BERT_BASE,
        "phobert": PHOBERT,
        "small": Sizes(family="bert", vocab=4_000, width=128, layers=4, heads=4, inner=512, positions=512),
    },
}  # fmt: skip
BUILDERS = {
    "lejepa_training": lejepa_training,
    "legal_cot_sft": legal_cot_sft,
    "tinystories_reservoir": tinystories_reservoir,
    "graphmer_se": graphmer_se,
    "hardware_tuning": hardware_tuning,
}
# What the small models of a calibration differ in.
SMALL_SETTINGS = {
    "lejepa_training": {"freeze_layers": 1, "output_dim": 64, "num_slices": 256, "past_texts": 256},
    "legal_cot_sft": {"lora_rank": 8},
    "tinystories_reservoir": {"delay": 32, "delays": 4, "tanh": 256, "blocks": 4, "linear": 128, "recall_tokens": 32},
    "graphmer_se": {"relations": 8, "embedding_size": 64},
}


def job(name: str, model: str = "", **settings) -> Job:
    """A job by its notebook's name, with one of its models ("" = the notebook's default).

    Raises ValueError for an unknown job or model, naming the known ones.
    """
    if name not in BUILDERS:
        raise ValueError(f"job={name!r}: unknown; {_suggest(name, BUILDERS)}")
    models = MODELS[name]
    chosen = model or next(iter(models))
    if chosen not in models:
        raise ValueError(f"model={model!r}: unknown for {name}; {_suggest(model, models)}")
    extra = SMALL_SETTINGS.get(name, {}) if chosen == "small" else {}
    return BUILDERS[name](models[chosen], chosen, **(extra | settings))


def _suggest(name: str, known) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return (f"did you mean {close[0]}? " if close else "") + f"there are {', '.join(known)}"
