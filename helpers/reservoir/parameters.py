"""Parameters of the TinyStories notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from helpers.parameters import SAMPLE, Parameters, in_range, positive, source_path
from helpers.plan import ModelSize, Recipe
from helpers.reservoir.architecture import parse
from helpers.reservoir.stories import MIN_STORIES

if TYPE_CHECKING:
    from helpers.reservoir.model import ReservoirForCausalLM

EPOCHS = 5  # passes; the validation loss of 2,000 stories hardly moves after
LONGEST_RECIPE = 4000  # steps
SMALL_TEXT = 4_000_000  # tokens; below it steps are small, so that a few passes are enough steps
HUB_STORIES = 150_000  # about the tokens of the longest recipe; more would be tokenised and never read


@dataclass(frozen=True, kw_only=True)
class ReservoirParameters(Parameters):
    """What `tinystories_reservoir` and its TPU twin are told."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"prompt", "max_new_tokens", "temperature", "top_k", "top_p", "logging_steps"}
        | {"compare_transformer", "further_seeds"}
    )

    tokenizer: str  # "gpt2" (else trained on the data), "train", a hub id or a path
    vocab_size: int  # entries of a trained tokeniser
    trim_vocabulary: bool  # leave out of a ready-made tokeniser what the training stories never use
    num_stories: int  # 0 = the recipe's: 150,000 of a hub set, all of a local file, 4,000 of the sample
    sequence_length: int  # tokens a block
    reservoirs: str  # frozen; notation in helpers/reservoir/architecture.py
    input_codes: int  # floats of a token's co-occurrence code that reservoirs see; 0 = each token its own random code
    embedding_size: int  # trained floats a token
    readout_blocks: int  # trained blocks; 0 = a linear readout
    readout_size: int  # hidden units of a block
    attention_heads: int  # 0 = a static readout, else the matrices that attention mixes
    recall_tokens: int  # last tokens that may be proposed again; 0 = no recall
    tie_embeddings: bool  # the head's weights are the embedding
    dropout: float  # of features and of each block's update
    token_dropout: float  # of the tokens that the reservoirs see
    compare_transformer: bool  # train a transformer of as many trained parameters on as many tokens beside it
    further_seeds: int  # both models again with so many more seeds, for the spread
    patience: int  # evaluations without improvement before the run stops; 0 = never
    logging_steps: int
    eval_steps: int
    save_steps: int
    prompt: str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float

    def __post_init__(self):
        super().__post_init__()
        if self.tokenizer == SAMPLE:
            raise ValueError("tokenizer='sample' is unknown: 'train' makes one from the stories")
        if self.tokenizer not in ("gpt2", "train"):
            source_path("tokenizer", self.tokenizer)
        in_range("vocab_size", self.vocab_size, 257, 1_000_000)
        if self.num_stories:
            in_range("num_stories", self.num_stories, MIN_STORIES, 10**9)
        in_range("sequence_length", self.sequence_length, 8, 4096)
        parse(self.reservoirs)
        for name in (
            "embedding_size",
            "readout_size",
            "logging_steps",
            "eval_steps",
            "save_steps",
            "max_new_tokens",
        ):
            positive(name, getattr(self, name))
        for name in ("input_codes", "readout_blocks", "attention_heads", "recall_tokens", "further_seeds", "patience"):
            in_range(name, getattr(self, name), 0, 4096)
        for name in ("dropout", "token_dropout"):
            in_range(name, getattr(self, name), 0.0, 0.9)
        in_range("temperature", self.temperature, 0.01, 100.0)
        in_range("top_k", self.top_k, 0, 1_000_000)
        in_range("top_p", self.top_p, 0.01, 1.0)
        if not self.prompt:
            raise ValueError("prompt='' is empty: give the first words of a story")

    @property
    def stories_wanted(self) -> int:
        """`num_stories`, or the recipe's count where that is 0 (0 again: all there are)."""
        from_hub = self.data_source != SAMPLE and source_path("data_source", self.data_source) is None
        return self.num_stories or (HUB_STORIES if from_hub else 0)


def recipe(sequence_length: int, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: five passes, at most 4,000 steps.

    A step has the multiple of 8 blocks that is next below 2,048 tokens (8,192 from four million tokens on), and 8 where
    they are too long for that.
    """
    tokens_a_step = 2048 if train_tokens < SMALL_TEXT else 8192
    batch_size = max(8, tokens_a_step // sequence_length // 8 * 8)
    passes = EPOCHS * train_tokens // (batch_size * sequence_length)
    return Recipe(
        batch_size=batch_size,
        learning_rate=3e-3,
        max_steps=min(LONGEST_RECIPE, max(1, passes)),
        sequence_length=sequence_length,
        weight_decay=0.1,
    )


def transformer_recipe(sequence_length: int, batch_size: int, max_steps: int) -> Recipe:
    """The reservoir's tokens in the reservoir's batches, at the learning rate that suits a transformer of this size."""
    return Recipe(
        batch_size=batch_size,
        learning_rate=1e-3,
        max_steps=max_steps,
        sequence_length=sequence_length,
        weight_decay=0.1,
    )


def model_size(model: ReservoirForCausalLM, sequence_length: int) -> ModelSize:
    """Memory of a model: what it trains, what it freezes, and what backward keeps a token of blocks of this length."""
    config, counts = model.config, model.parameter_counts()
    from helpers.reservoir.recall import KERNELS  # torch, which parameters are checked without

    D, H = config.embedding_size, config.readout_size
    features = sum(model.reservoirs.features)
    proposed = config.recall_tokens + sequence_length if config.recall_tokens else 0
    return ModelSize(
        trainable=counts["trainable"],
        frozen=counts["frozen"],
        # What the projection multiplies; a block's norm, up, product, update, gate and result; attention's
        # shares and what they mix; recall's kernels, and the logits that it adds to.
        activations=features
        + (4 * H + 6 * D) * config.readout_blocks
        + config.attention_heads * (D + 1) * len(model.reservoirs.features)
        + 5 * D
        + (KERNELS + 3) * proposed
        + (config.vocab_size if proposed else 0),
        vocab_size=config.vocab_size,
    )
