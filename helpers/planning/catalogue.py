"""The jobs of the notebooks by name, each with the models that it is planned for.

job("lejepa_training").parameters            # 309 million, of which ...
job("legal_cot_sft").flops(sequences=16)     # forward and backward of one step
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from .architectures import graphmer_se, hardware_tuning, legal_cot_sft, lejepa_training, tinystories_reservoir
from .jobs import Job, Sizes

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
        "80m": Sizes(family="graphmer", vocab=8_192, width=768, layers=12, heads=12, inner=832),
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
    "tinystories_reservoir": {
        "layers": (
            (
                {"kind": "delay", "size": 32, "delays": 4},
                {"kind": "tanh", "size": 256, "blocks": 4, "leak": 0.5},
                {"kind": "linear", "size": 128},
            ),
        ),
        "recall_tokens": 32,
    },
    "graphmer_se": {"relations": 8, "embedding_size": 64},
}


ALIKE = 0.1


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
    return _made(name, chosen, **settings)


def _made(name: str, model: str, **settings) -> Job:
    extra = SMALL_SETTINGS.get(name, {}) if model == "small" else {}
    return BUILDERS[name](MODELS[name][model], model, **(extra | settings))


def named(job: Job) -> Job:
    """The job under its catalogue name where it is as good as that one: the same layers, and at most 10 % more or less of
    updated weights and of arithmetic; else under a name of its own.
    """
    for model in MODELS[job.name]:
        known = _made(job.name, model)
        same = all(
            getattr(job.sizes, key) == getattr(known.sizes, key) for key in ("family", "layers", "width", "inner")
        )
        pairs = [(job.updated, known.updated), *zip(job.flops(1, job.length), known.flops(1, job.length), strict=True)]
        if same and all(abs(one - other) <= ALIKE * other for one, other in pairs):
            return replace(job, model=model)
    return replace(job, model=f"{job.sizes.layers} layers of {job.sizes.width}")


def _suggest(name: str, known) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return (f"did you mean {close[0]}? " if close else "") + f"there are {', '.join(known)}"
