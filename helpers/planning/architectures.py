"""From an architecture's sizes to its job: one builder a notebook.

legal_cot_sft(decoder_sizes(model.config)[0], "mine", lora_rank=8).parameters
"""

from __future__ import annotations

from dataclasses import replace

from .jobs import Job, Kept, Part, Sizes

# V vocabulary · D width · I inner width of a feed-forward layer · L layers · h heads · A = heads x head size
# K = key-value heads x head size · T tokens of a sequence · r rank of LoRA

MATCH_KEY = 64  # GraphMER's, helpers/graphmer/architecture.py (which loads transformers)


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
    table = (sizes.vocab + sizes.positions + sizes.types + 2) * D + sizes.buckets * h
    parts = (
        Part(name="embeddings", parameters=table, trained=embeddings),
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


# ---- notebooks over transformers


def lejepa_training(sizes: Sizes, model: str, **settings) -> Job:
    """A text encoder, its Dense head and LeJEPA's loss on views of a text.

    dense: (inputs, outputs, bias) of the layers between pooling and head; EmbeddingGemma's by default. freeze_layers: -1
    leaves all but the head. attention: "eager" keeps its matrices on every device.
    """
    D = sizes.width
    options = {"freeze_layers": 3, "output_dim": 512, "num_slices": 256, "past_texts": 1024, "views": 2}
    options |= {"attention": "sdpa", "dense": ((D, 4 * D, 0), (4 * D, D, 0)) if sizes.family == "gemma" else ()}
    options |= settings
    alone = options["freeze_layers"] == -1
    frozen = sizes.layers if alone else options["freeze_layers"]
    encoder, fusable = (_bert, "not on a cpu") if sizes.family == "bert" else (_gemma, "always")
    parts, kept, scores, fused = encoder(sizes, frozen_layers=frozen, embeddings=not frozen)
    parts += tuple(
        Part(
            name=f"dense {place}",
            parameters=inputs * outputs + bias * outputs,
            products=inputs * outputs,
            each="sequence",
        )
        for place, (inputs, outputs, bias) in enumerate(options["dense"], start=1)
    )
    if alone:
        parts = tuple(replace(part, trained=False, input_gradient=False) for part in parts)
    if options["attention"] == "eager":
        fusable = "never"
    K, M = options["output_dim"], options["num_slices"]
    head = (
        Part(name="head", parameters=D * K + K, products=D * K, each="sequence"),
        # Projections on the slices: of the batch with a gradient, of the past texts without.
        Part(name="SIGReg", parameters=0, trained=False, products=K * M, each="sequence"),
    )
    past = options["views"] * options["past_texts"]
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
        views=options["views"],
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
    """Qwen2 with LoRA on every linear projection, or trained whole, and the loss in tiles of tokens.

    Also its like: biased: projections that have a bias. tied: the embedding is the head. head_norms: queries and keys are
    normalised.
    """
    options = {
        "method": "lora",
        "lora_rank": 32,
        "biased": ("q", "k", "v"),
        "tied": True,
        "head_norms": False,
    } | settings
    lora, r = options["method"] == "lora", options["lora_rank"]
    D, A, K, I, L, h = (  # noqa: E741
        sizes.width, sizes.attention_width, sizes.key_width, sizes.inner, sizes.layers, sizes.heads,
    )  # fmt: skip
    vectors = 2 * D + (2 * A // h if options["head_norms"] else 0)
    parts = (
        *_stack(
            sizes, gated=True, biased=options["biased"], vectors=vectors, below=not lora, rank=r if lora else 0
        ),
        Part(name="last norm", parameters=D, trained=not lora),
        Part(name="embedding and head", parameters=sizes.vocab * D, trained=not lora, products=sizes.vocab * D),
    )  # fmt: skip
    if not options["tied"]:
        parts += (Part(name="embedding alone", parameters=sizes.vocab * D, trained=not lora),)
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
    if options["head_norms"]:  # their inputs, and one number a norm
        layer += Kept(full=A + K + h, wide=A + K + h)
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
    """A BERT classifier. attention: "eager" keeps its matrices on every device."""
    options = {"labels": 2, "attention": "sdpa"} | settings
    parts, kept, scores, fused = _bert(sizes, pooler=False)
    D = sizes.width
    parts += (
        Part(name="pooler", parameters=D * D + D, products=D * D, each="sequence"),
        Part(
            name="classifier",
            parameters=options["labels"] * (D + 1),
            products=options["labels"] * D,
            each="sequence",
        ),
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
        fusable="never" if options["attention"] == "eager" else "not on a cpu",
        length=192,
        example="row",
        examples=24_048,  # train.csv of Finetune-PhoBERT
        epochs=3,
        batch_size=16,
        learning_rate=2e-5,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
        settings=options,
    )


# ---- reservoir and graph


def tinystories_reservoir(sizes: Sizes, model: str, **settings) -> Job:
    """Layers of frozen reservoirs under a trained readout.

    layers: of each layer its reservoirs, as a `ReservoirConfig` lists them. attention_heads: 0 for one projection a layer.
    """
    options = {"layers": RESERVOIRS, "recall_tokens": 128, "attention_heads": 0, "tied": True} | settings
    V, D, H, blocks, heads = sizes.vocab, sizes.width, sizes.inner, sizes.layers, options["attention_heads"]
    frozen, recurrent, widths = _reservoirs(options["layers"], V)
    features = sum(widths)
    projected = features * (D * max(heads, 1) + heads)
    W, kernels = options["recall_tokens"], 5
    parts = (
        Part(name="reservoirs", parameters=frozen, trained=False, products=recurrent, input_gradient=False),
        Part(name="projection", parameters=projected + heads * len(widths), products=projected, input_gradient=False),
        Part(name="blocks", parameters=blocks * (3 * D * H + D * D), products=blocks * (3 * D * H + D * D)),
        Part(name="norms and biases", parameters=blocks * 2 * D + D),
        Part(name="embedding and head", parameters=V * D, products=V * D),
        Part(name="head bias", parameters=V),
    )
    if not options["tied"]:
        parts += (Part(name="embedding alone", parameters=V * D),)
    if W:
        parts += (Part(name="recall", parameters=kernels * (D + 1), products=kernels * D),)
        parts += (Part(name="recall of the line", parameters=0, trained=False, products=kernels * W),)
    attended = heads * (D + 1) * len(widths)  # shares, and what they mix
    return Job(
        name="tinystories_reservoir",
        model=model,
        sizes=sizes,
        parts=parts,
        kept=Kept(
            full=features + attended + blocks * (5 * D + 4 * H) + 4 * D + kernels * W,
            wide=attended + blocks * (3 * D + 1) + 3 * D + kernels * W,
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


RESERVOIRS = (
    (
        {"kind": "delay", "size": 128, "delays": 8},
        {"kind": "tanh", "size": 1024, "blocks": 8, "leak": 0.5},
        {"kind": "linear", "size": 512},
    ),
)


def _reservoirs(layers, vocabulary: int) -> tuple[int, int, list[int]]:
    """Frozen weights, multiply-adds a token, and features of each layer; the first one looks its input up."""
    weights = products = 0
    widths: list[int] = []
    for layer in layers:
        inputs = widths[-1] if widths else vocabulary
        width = 0
        for spec in layer:
            N = spec["size"]
            weights += inputs * N
            products += inputs * N if widths else 0
            if spec["kind"] == "tanh":
                weights += N * N // spec.get("blocks", 1) + N
                products += N * N // spec.get("blocks", 1)
                width += N
            elif spec["kind"] == "linear":
                weights += 2 * N
                width += 2 * N
            else:
                width += N * spec.get("delays", 8) + spec.get("quadratic", 0)
        widths.append(width)
    return weights, products, widths


def graphmer_se(sizes: Sizes, model: str, **settings) -> Job:
    """GraphMER-SE: an encoder over roots and leaf slots with H-GAT and graph distance in attention, MLM and MNM losses.

    Its other terms run entities' texts through the same layers. texts: of one sequence, texts_length: tokens of a text;
    their products are counted here, their memory in `helpers/graphmer/memory.py`. The switches are those of a `GraphMERConfig`.
    """
    options = {"roots": 128, "leaves": 10, "leaf_tokens": 7, "relations": 30, "head_tokens": 8, "embedding_size": 256}
    options |= {"mlm_positions": 20, "texts": 0, "texts_length": 32}
    options |= {"activation": "swiglu", "norm": "rmsnorm", "hgat": True, "hgat_relation_bias": True, "decay": True}
    options |= {"relation_attention_bias": True, "leaf_positions": True, "token_match": True} | settings
    V, D, I, L, h = sizes.vocab, sizes.width, sizes.inner, sizes.layers, sizes.heads  # noqa: E741
    S, G, tokens, R, E = (options[key] for key in ("roots", "leaves", "leaf_tokens", "relations", "embedding_size"))
    slots, M, norm = G * tokens, options["mlm_positions"], D if options["norm"] == "rmsnorm" else 2 * D
    layer = 4 * D * D + (3 if options["activation"] == "swiglu" else 2) * D * I
    scored = slots + M  # tokens that have logits
    texts, C = options["texts"], options["texts_length"]
    learned = V + tokens * D * options["leaf_positions"] + 2 * norm + 2 * L * norm
    parts = (
        Part(name="embedding and head", parameters=V * D, products=V * D * scored, each="sequence"),
        Part(name="head bias, leaf slots, norms", parameters=learned),
        Part(name="layers", parameters=L * layer, products=L * layer),
        Part(
            name="relation bias and decay",
            parameters=R * h * options["relation_attention_bias"] + h * options["decay"],
        ),
        # Of the terms over entities, which MLM and MNM do without.
        Part(name="entity and triple heads", parameters=2 * D * E + R * E * E + D + 1, loose=not texts),
    )
    if options["token_match"]:
        match = (3 * D + 14 * MATCH_KEY) * (D + 1) + 2 * V + 2**14 + 14
        parts += (Part(name="token match", parameters=match, loose=not texts),)
    if options["hgat"]:
        vectors = (2 + options["hgat_relation_bias"]) * R * D
        parts += (
            # Leaves of one relation share a copy of its matrix in tiles of 8: P / 8 + R tiles.
            Part(name="H-GAT", parameters=R * D * D, products=G * tokens * D * D, each="sequence"),
            Part(name="H-GAT tiles", parameters=vectors, products=R * 8 * tokens * D * D + 2 * R * D * D, each="step"),
        )
    if texts:
        encoded = texts * C * (L * layer + 2 * L * D * C)
        parts += (Part(name="entities' texts", parameters=0, products=encoded, each="sequence"),)
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
