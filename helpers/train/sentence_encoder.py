"""A SentenceTransformer to start from, and sentence-transformers' trainer with exact resume on a GPU, a TPU or a CPU.

model = load_sentence_encoder("sentence-transformers/all-MiniLM-L6-v2", max_seq_length=64)
trainer = SentenceEncoderTrainer(model, length=64, args=..., train_dataset=..., loss=..., plan=plan, runtime=machine)
"""

import functools
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import SequentialSampler

from helpers.data import hub
from helpers.machine import attention, xla
from helpers.machine.engine import cpu_copy
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE, source_path

from .trainer import TrainerMixin

SAMPLE_WORDS = 2000
XLA_BATCH = 64  # texts that are encoded at a time, a multiple of the devices
PADDED = {"text": {"padding": "max_length"}}
PADDING_POSITIONS = ("mpnet", "roberta", "xlm-roberta", "camembert")  # their first two positions are for padding


def load_sentence_encoder(
    base_model: str, *, max_seq_length: int = 0, texts: Iterable[str] = (), seed: int = 0
) -> SentenceTransformer:
    """A pretrained sentence encoder in fp32 on the CPU; no code from a checkpoint is run, and weights are safetensors.

    base_model: a hub id (at the revision of `hub.REVISIONS` where it has one), a local folder, or "sample": a random BERT of four
        layers that knows the most frequent words of `texts`.
    max_seq_length: tokens of a text that are read; 0 keeps the model's own number.

    Raises ValueError for a max_seq_length beyond the model's positions, and what `source_path` and `hub.reading` raise.
    """
    model = _sample(texts, seed) if base_model == SAMPLE else _pretrained(base_model)
    config = model[0].auto_model.config
    config.use_cache = False  # nothing is generated, and XLA refuses the slice of Gemma's sliding cache
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    if config.model_type in PADDING_POSITIONS:
        positions -= 2
    if max_seq_length > positions:
        raise ValueError(f"max_seq_length={max_seq_length}: must be 0 (the model's own) to {positions} tokens")
    if max_seq_length:
        model.max_seq_length = max_seq_length
    return model


def _pretrained(base_model: str) -> SentenceTransformer:
    path = source_path("base_model", base_model)
    with hub.reading(name="base_model", source=base_model):
        return SentenceTransformer(
            str(path or base_model),
            revision=hub.REVISIONS.get(base_model),
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True},
            device="cpu",
        )


def _sample(texts: Iterable[str], seed: int) -> SentenceTransformer:
    """A random BERT, 64 wide, that knows the most frequent words of the texts and letters; the same each time."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = re.findall(r"[a-z0-9]+", " ".join(texts).lower())
    counted = Counter(sorted(words)).most_common(SAMPLE_WORDS)
    frequent = [word for word, _ in counted]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:;()"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *letters, *[f"##{letter}" for letter in letters], *frequent])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
    )
    with tempfile.TemporaryDirectory() as folder:  # Transformer takes a path and nothing else
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            BertModel(config).save_pretrained(folder)
        BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
        transformer = Transformer(folder)
    transformer.max_seq_length = 128
    return SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")


def encoder_on_cpu(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself, or a copy on the CPU of one on an XLA device, which shares nothing but the model card."""
    return cpu_copy(model, model.model_card_data) if model.device.type == "xla" else model


def encode(model: SentenceTransformer, texts: Sequence[str], task: str = "") -> np.ndarray:
    """Embeddings in fp32, in the order of the texts; the model is in evaluation mode afterwards. task: "query" or "document" for the model's prompt.

    On XLA texts are padded to one of four lengths, each of which is compiled once, and read in batches that all devices share.
    """
    if model.device.type == "xla":
        vectors = _encode_at_fixed_shapes(model.eval(), texts, model.prompts.get(task))
    else:
        method = getattr(model, f"encode_{task}") if task else model.encode
        vectors = method(list(texts), show_progress_bar=False)
    return np.asarray(vectors, np.float32)


@torch.no_grad()
def _encode_at_fixed_shapes(model: SentenceTransformer, texts: Sequence[str], prompt: str | None) -> np.ndarray:
    xla.replicate(model)
    attention.use_one_dtype(model.transformers_model)
    order = np.argsort([len(text) for text in texts])
    embeddings = []
    for begin in range(0, len(texts), XLA_BATCH):
        numbers = np.resize(order[begin : begin + XLA_BATCH], XLA_BATCH)
        batch = [texts[number] for number in numbers.tolist()]
        longest = model.preprocess(batch, prompt=prompt)["input_ids"].shape[1]
        quarters = math.ceil(4 * longest / model.max_seq_length)
        length = math.ceil(quarters * model.max_seq_length / 4)
        features = model.preprocess(batch, prompt=prompt, max_length=length, processing_kwargs=PADDED)
        for name, value in features.items():
            if torch.is_tensor(value):
                features[name] = xla.shard_batch(value.to(model.device))
        vectors = model(features)["sentence_embedding"]
        xla.sync()
        # Virtual devices of a CPU wait for each other for ever where several batches run.
        embeddings.append(vectors.cpu())
    return torch.cat(embeddings).numpy()[np.argsort(order)]


class SentenceEncoderTrainer(TrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` for a loss that holds its model; texts are cut at `length` tokens, or at a length for each column.

    A checkpoint has no model card. That of a saved model asks no hub for a licence and encodes no examples.
    """

    def __init__(self, model: SentenceTransformer, *, length: int | dict[str, int], runtime: Runtime, **kwargs) -> None:
        model.model_card_data.local_files_only = True
        model.model_card_data.generate_widget_examples = False
        super().__init__(model=model, runtime=runtime, **kwargs)
        self.data_collator.max_length = length
        if isinstance(length, dict):  # by the name of a column's task
            self.data_collator.router_mapping = {name: name for name in length}
        if runtime.kind == "xla":  # which compiles anew for every shape
            self.data_collator.preprocess_fn = functools.partial(model.preprocess, processing_kwargs=PADDED)

    def trained_module(self) -> torch.nn.Module:
        return self.loss

    def transformer(self) -> torch.nn.Module:
        return self.model.transformers_model

    def add_model_card_callback(self, default_args_dict) -> None:
        """No callback: the stock one counts the tokens of a thousand texts and prints some of them on the card."""

    def get_batch_sampler(self, dataset, batch_size, drop_last, valid_label_columns=None, generator=None, seed=0):
        """The rows as they stand: a room draws them batch by batch."""
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    def _save(self, output_dir: str, state_dict=None) -> None:
        encoder_on_cpu(self.model).save_pretrained(output_dir, create_model_card="checkpoint-" not in output_dir)
