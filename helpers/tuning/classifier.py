"""The classifier: any `AutoModelForSequenceClassification`, pretrained or tiny and random, with its tokeniser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from helpers.data import hub
from helpers.parameters import SAMPLE, source_path

REVISIONS = {
    "google-bert/bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "sentence-transformers/all-MiniLM-L6-v2": "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
}
SAMPLE_VOCAB, SAMPLE_POSITIONS = 2048, 512


def load_classifier(base_model: str, labels: Sequence[str], *, texts: Iterable[str] = (), seed: int):
    """(model, tokeniser): fp32 weights, a new head for `labels`, the attention that transformers chooses.

    base_model: a hub id (`REVISIONS` are pinned), a local path, or "sample": a random BERT of two layers with a tokeniser
        trained on `texts`. No code from a checkpoint is run; weights are safetensors.
    seed: of the head, and of the sample's weights.

    Raises as `hub.reading`, and FileNotFoundError where there is no such path.
    """
    set_seed(seed)
    names = dict(enumerate(labels))
    config = {"id2label": names, "label2id": {label: position for position, label in names.items()}}
    if base_model == SAMPLE:
        return _sample(texts, config)
    path = source_path("base_model", base_model)
    options = {
        "revision": None if path else REVISIONS.get(base_model),
        "local_files_only": path is None and not hub.answers(),  # what is cached may be enough
        "trust_remote_code": False,
    }
    weights = {
        "dtype": "float32",
        "use_safetensors": True,
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
    }
    with hub.reading(base_model, "base_model"):
        tokenizer = AutoTokenizer.from_pretrained(str(path or base_model), **options)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            str(path or base_model), **config, **weights, **options
        )
        # The head may have other labels, and is drawn anew; the encoder would be, too.
        if wrong := [key for key in map(str, found["mismatched_keys"]) if f"{model.base_model_prefix}." in key]:
            raise ValueError(f"base_model={base_model!r}: weights of another shape than config.json says: {wrong[0]}")
    if tokenizer.pad_token is None:  # decoders
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    model.config.use_cache = False  # nothing is generated, and with gradient checkpointing transformers would complain
    return model, tokenizer


def _sample(texts: Iterable[str], config: dict):
    """Two layers, and a byte-level BPE of at most 2,048 entries; the same each time for the same texts and seed."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    backend = ByteLevelBPETokenizer(lowercase=True, add_prefix_space=True)
    backend.train_from_iterator(
        texts, SAMPLE_VOCAB, min_frequency=0, show_progress=False, special_tokens=list(special.values())
    )
    ends = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    trained = Tokenizer.from_str(backend.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, model_max_length=SAMPLE_POSITIONS, **special)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    positions = {"max_position_embeddings": SAMPLE_POSITIONS, "pad_token_id": tokenizer.pad_token_id}
    shape = BertConfig(vocab_size=len(tokenizer), use_cache=False, **sizes, **positions, **config)
    return BertForSequenceClassification(shape), tokenizer
