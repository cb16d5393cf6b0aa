"""The embedding model: a pretrained backbone without normalisation, and a linear head that starts near a Gaussian.

    model = GaussianEmbeddingGemma("sentence-transformers/all-MiniLM-L6-v2", 256, seed=0)
    fit_head(model, texts)          # head.py: closed form, centred, whitened, standard deviation 1
    freeze(model, 3)

What is built is a `SentenceTransformer` of stock modules: it saves, loads and trains as any other.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from helpers.data import hub
from helpers.lejepa.parameters import AUTO, EMBEDDING_GEMMA, MINILM, MPNET, EmbeddingParameters
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE, source_path
from helpers.run import run_folder
from helpers.show import tracking

# D dimensions of the backbone

REVISIONS = {
    EMBEDDING_GEMMA: "64614b0b8b64f0c6c1e52b07e4e9a4e8fe4d2da2",  # the one of MTEB's published results
    MINILM: "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
    MPNET: "e8c3b32edf5434bc2275fc9bab85f82640a19130",
}
# From the model card; without them it does not reach its scores.
GEMMA_PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
SAMPLE_VOCAB, SAMPLE_TEXTS = 2048, 20_000


def GaussianEmbeddingGemma(
    base_model: str,
    output_dim: int,
    *,
    max_seq_length: int = 0,
    seed: int = 0,
    texts: Iterable[str] = (),
) -> SentenceTransformer:
    """A backbone, its own Dense layers if it has any, and a new linear head to `output_dim`; nothing normalises.

    The head is random until `fit_head`. Weights are fp32, whatever the checkpoint has, and on the CPU: the trainer moves them.

    base_model: a hub id (`REVISIONS` are pinned, others at their newest), a local path, or "sample": a random BERT of four
        layers with a byte-level BPE tokeniser trained on `texts` (the first 20,000). No code from a checkpoint is run.
        EmbeddingGemma's architecture gets its query and document prompts where it brings none.
    output_dim: one above the backbone's is the backbone's, and that is said: a linear head cannot add rank.
    max_seq_length: tokens; 0: the model's own.

    Raises ValueError (a length that the model has not, no texts for "sample"), FileNotFoundError (no such path), and as
    `hub.reading` for what cannot be loaded.
    """
    backbone = _sample(texts, seed) if base_model == SAMPLE else _pretrained(base_model)
    modules = [module for module in backbone if not isinstance(module, Normalize)]
    D = backbone.get_embedding_dimension()
    if output_dim > D:
        tracking.say(
            f"output_dim={output_dim} is above the {D} dimensions of {base_model!r}, which a linear head cannot exceed: "
            f"embeddings have {D}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Dense(D, min(output_dim, D), bias=True, activation_function=torch.nn.Identity())
    prompts = {name: prompt for name, prompt in backbone.prompts.items() if prompt}
    if str(getattr(_config(backbone), "model_type", "")).startswith("gemma"):
        prompts = GEMMA_PROMPTS | prompts
    model = SentenceTransformer(modules=[*modules, head], prompts=prompts or None, device="cpu")
    if config := _config(model):
        config.use_cache = False  # nothing is generated, and XLA refuses the slice of Gemma's sliding cache
    _limit_length(model, max_seq_length)
    return model


def column_prompts(model: SentenceTransformer, columns: Iterable[str]) -> dict[str, str]:
    """The model's prompt of each column: "query" of the first of several, "document" of the others and of one alone.

    For `SentenceTransformerTrainingArguments(prompts=...)`; {} without prompts.
    """
    columns = list(columns)
    names = {column: "document" for column in columns} | ({columns[0]: "query"} if len(columns) > 1 else {})
    return {column: model.prompts[name] for column, name in names.items() if model.prompts.get(name)}


# ---- which model "auto" is


def chosen(params: EmbeddingParameters, machine: Runtime) -> tuple[EmbeddingParameters, str]:
    """The parameters with a model's name in the place of "auto", and why it is this one.

    A run that goes on keeps the model that it began with, whatever the hub says now.
    """
    if params.base_model != AUTO:
        return params, "asked for"
    began = run_folder.begun(params.output_dir).get("base_model")
    name, reason = (began, "the run in output_dir began with it") if began else _choice(machine)
    return params.model_copy(update={"base_model": name}), reason


def _choice(machine: Runtime) -> tuple[str, str]:
    free = MINILM if machine.kind == "cpu" else MPNET
    if machine.kind == "cpu":
        why_not = f"{EMBEDDING_GEMMA} takes hours on a CPU"
    elif machine.precision == "fp16":
        why_not = f"{EMBEDDING_GEMMA} overflows in fp16, and {machine.device_name} has no bf16"
    elif _cached(EMBEDDING_GEMMA):
        return EMBEDDING_GEMMA, "it is in the cache"
    elif problem := _refused(EMBEDDING_GEMMA):
        why_not = f"{EMBEDDING_GEMMA} cannot be had: {problem}"
    else:
        return EMBEDDING_GEMMA, "this account may have it"
    if not _cached(free) and not hub.answers():
        free = next((name for name in (MPNET, MINILM) if _cached(name)), free)
    return free, why_not


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json", revision=REVISIONS[name]), str)


def _refused(name: str) -> str:
    """Why the hub would not give this model to this account; "" where it would."""
    from huggingface_hub import auth_check
    from huggingface_hub.errors import HfHubHTTPError

    if not hub.answers():
        return "the hub cannot be reached"
    token = os.environ.get("HF_TOKEN") or None
    try:
        auth_check(name, token=token)
    except (HfHubHTTPError, OSError):
        missing = "this account has not accepted its licence" if token else "there is no HF_TOKEN"
        return f"{missing}; see https://huggingface.co/{name}"
    return ""


# ---- loading


def _pretrained(base_model: str) -> SentenceTransformer:
    path = source_path("base_model", base_model)
    if path is not None and not ((path / "config.json").is_file() or (path / "modules.json").is_file()):
        raise FileNotFoundError(
            f"base_model={base_model!r}: no config.json or modules.json there; name the folder of a saved model"
        )
    with hub.reading(base_model, "base_model"):
        check_modules(path)
        return SentenceTransformer(
            str(path or base_model),
            revision=None if path else REVISIONS.get(base_model),
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True},
            local_files_only=path is None and not hub.answers(),  # what is cached may be enough
            device="cpu",
        )


def check_modules(folder: Path | None) -> None:
    """Raises ValueError for a module from elsewhere, which sentence-transformers before 6.0 imports from any local folder."""
    listed = folder and folder / "modules.json"
    for module in json.loads(listed.read_text(encoding="utf-8")) if listed and listed.is_file() else ():
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(f"{listed}: {module['type']} is code of its own, which is not run")


def _sample(texts: Iterable[str], seed: int) -> SentenceTransformer:
    """A random BERT, 64 wide, on a tokeniser of at most 2,048 entries trained on the texts; the same each time."""
    from transformers import BertConfig, BertModel

    tokenizer = _train_tokenizer(texts)
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes)
    with tempfile.TemporaryDirectory() as folder:  # Transformer takes a path and nothing else
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, model_kwargs={"use_safetensors": True})
    transformer.max_seq_length = 128
    return SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")


def _train_tokenizer(texts: Iterable[str], vocabulary: int = SAMPLE_VOCAB):
    import itertools

    from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    texts = list(itertools.islice(texts, SAMPLE_TEXTS))
    if not texts:
        raise ValueError("texts is empty: base_model='sample' trains its tokenizer on them, so give the training texts")
    # Not WordPiece: its trainer numbers the continuing pieces differently in each process.
    backend = ByteLevelBPETokenizer(lowercase=True, add_prefix_space=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(texts, vocabulary, min_frequency=0, show_progress=False, special_tokens=special)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(backend.to_str()), model_max_length=512, clean_up_tokenization_spaces=False,
        **dict(zip(names, special, strict=True)),
    )  # fmt: skip


def _config(model: SentenceTransformer) -> Any:
    return getattr(getattr(model[0], "auto_model", None), "config", None)


def _limit_length(model: SentenceTransformer, max_seq_length: int) -> None:
    positions = getattr(_config(model), "max_position_embeddings", None) or math.inf
    if getattr(_config(model), "model_type", "") in ("mpnet", "roberta", "xlm-roberta", "camembert"):
        positions -= 2  # their first positions are for padding
    if max_seq_length < 0 or max_seq_length > positions:
        raise ValueError(f"max_seq_length={max_seq_length}: must be 0 (the model's own) to {positions} tokens")
    if max_seq_length:
        model.max_seq_length = max_seq_length


# ---- what is trained


def freeze(model: SentenceTransformer, layers: int) -> None:
    """Leaves part of the backbone as it is.

    layers: 0 nothing, k the embeddings and the first k transformer layers, -1 all but the head. An earlier call is undone.
        Frozen layers still have dropout in training.

    Raises ValueError for more layers than there are, or a backbone without a list of layers.
    """
    if layers == -1:
        frozen = set(model.parameters()) - set(model[-1].parameters())
    else:
        frozen = set(_first_layers(model, layers)) if layers else set()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter not in frozen)


def _first_layers(model: SentenceTransformer, layers: int) -> list[torch.nn.Parameter]:
    backbone = getattr(model[0], "auto_model", None)
    lists = [] if backbone is None else [m for m in backbone.modules() if isinstance(m, torch.nn.ModuleList)]
    count = getattr(_config(model), "num_hidden_layers", None)
    stack = next((found for found in lists if len(found) == count), None)
    if stack is None:
        raise ValueError(f"freeze_layers={layers}: this backbone has no list of transformer layers; use 0 or -1")
    if not 0 < layers <= len(stack):
        raise ValueError(f"freeze_layers={layers}: give -1 (all), 0 (none) or up to {len(stack)} layers")
    weights, last = list(backbone.named_parameters()), list(stack[:layers].parameters())[-1]
    end = next(place for place, (_, weight) in enumerate(weights) if weight is last)
    # What stands before is the embeddings, with their positions and norm; MPNet's attention bias goes into every layer.
    return [weight for place, (name, weight) in enumerate(weights) if place <= end or "relative_attention_bias" in name]
