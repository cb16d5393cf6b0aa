"""The steps of a TinyStories run: text to blocks, trainer, evaluation, text from the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainerCallback

from helpers.machine.engine import cpu_copy
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.show import tracking
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .baselines import kneser_ney_nats
from .blocks import TokenBlocks, bits_per_byte, states_before
from .codes import cooccurrence_codes
from .model import ReservoirConfig, ReservoirForCausalLM
from .parameters import ReservoirParameters
from .stories import StorySplits
from .tokens import token_bytes, tokens_of

VALIDATION_TOKENS = 500_000  # enough for the third decimal of bits per byte
ADAM_BETA2 = 0.95  # a run is a few hundred steps; 0.999 would average over most of it


class LanguageModelTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability."""


@dataclass(frozen=True)
class Corpus:
    """The tokens of both splits, and what made them."""

    train: np.ndarray
    validation: np.ndarray
    tokenizer: PreTrainedTokenizerFast

    def evaluation_batch(self, plan: Plan) -> int:
        """Examples of an evaluation batch: the plan's micro-batch, or less where the validation text is short."""
        available = len(self.validation) // plan.sequence_length
        return max(plan.device_count, min(plan.micro_batch_size, available // plan.device_count * plan.device_count))

    def blocks(self, plan: Plan) -> tuple[TokenBlocks, TokenBlocks]:
        """Training blocks in whole optimizer steps and validation blocks in whole batches, so that no shape varies."""
        train = TokenBlocks(self.train, plan.sequence_length, multiple_of=plan.batch_size)
        batch = self.evaluation_batch(plan)
        most = max(batch, VALIDATION_TOKENS // plan.sequence_length)
        validation = TokenBlocks(self.validation, plan.sequence_length, max_blocks=most, multiple_of=batch)
        return train, validation


def tokenise(splits: StorySplits, tokenizer: PreTrainedTokenizerFast) -> Corpus:
    return Corpus(tokens_of(splits.train, tokenizer), tokens_of(splits.validation, tokenizer), tokenizer)


def new_model(params: ReservoirParameters, corpus: Corpus) -> ReservoirForCausalLM:
    """An untrained model of the asked-for size; reservoirs and readout both follow from `params.seed`."""
    tokenizer = corpus.tokenizer
    if params.input_codes >= len(tokenizer):
        raise ValueError(f"input_codes={params.input_codes}: must be below the vocabulary's {len(tokenizer)} tokens")
    codes_VC = cooccurrence_codes(corpus.train, len(tokenizer), params.input_codes, params.seed)
    end = tokenizer.eos_token_id
    config = ReservoirConfig(
        vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, pad_token_id=end, **params.architecture
    )
    return ReservoirForCausalLM.initialise(config, codes_VC, seed=params.seed)


def new_trainer(
    model: PreTrainedModel,
    corpus: Corpus,
    params: ReservoirParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> LanguageModelTrainer:
    """The trainer of a run; a reservoir model reads every block with the state that the text before it gives."""
    train, validation = corpus.blocks(plan)
    if isinstance(model, ReservoirForCausalLM):
        train.states_BS, validation.states_BS = states_before(model, train), states_before(model, validation)
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        **params.model_dump(include={"seed", "logging_steps", "eval_steps", "save_steps", "report_to"}),
        adam_beta2=ADAM_BETA2,
        # Under SPMD this process feeds all devices, elsewhere one.
        per_device_eval_batch_size=corpus.evaluation_batch(plan) // (1 if runtime.kind == "xla" else plan.device_count),
    )
    trainer = LanguageModelTrainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=validation,
        processing_class=corpus.tokenizer,
        plan=plan,
        runtime=runtime,
        flops_per_token=plan.memory.count.flops / (plan.per_device_batch_size * plan.sequence_length),
        patience=params.patience,
        max_hours=params.max_hours,
    )
    trainer.add_callback(StoryAtEvaluation(trainer, params))
    return trainer


class StoryAtEvaluation(TrainerCallback):
    def __init__(self, trainer: Trainer, params: ReservoirParameters):
        self.trainer, self.params = trainer, params

    def on_evaluate(self, args, state, control, model=None, processing_class=None, **kwargs):
        if self.trainer.is_in_train:
            story = tell(model, processing_class, self.params, max_new_tokens=min(40, self.params.max_new_tokens))
            tracking.say(f"    step {state.global_step}: {' '.join(story.split())}")


def tell(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    params: ReservoirParameters,
    *,
    max_new_tokens: int | None = None,
) -> str:
    """A story that begins with `params.prompt`, sampled with `params.seed`; the caller's generators stay as they were.

    XLA would compile every length anew: there a copy of the model tells it on the CPU.
    """
    model, was_training = cpu_copy(model) if model.device.type == "xla" else model, model.training
    # As `tokens_of` does: a tokeniser's own special tokens were never trained on.
    prompt = tokenizer(params.prompt, return_tensors="pt", add_special_tokens=False)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(params.seed)
        output = model.eval().generate(
            prompt["input_ids"].to(model.device),
            max_new_tokens=max_new_tokens or params.max_new_tokens,
            do_sample=True,
            **params.model_dump(include={"temperature", "top_k", "top_p"}),
        )
    model.train(was_training)
    return tokenizer.decode(output[0], skip_special_tokens=True)


def metrics(nats: float, corpus: Corpus, blocks: TokenBlocks) -> dict[str, float]:
    """Loss in nats a token, perplexity, and bits per byte of the same predictions."""
    return {
        "loss": nats,
        "perplexity": math.exp(min(nats, 700.0)),
        "bits_per_byte": bits_per_byte(nats, blocks, token_bytes(corpus.tokenizer)),
    }


def evaluate(trainer: LanguageModelTrainer, corpus: Corpus) -> dict[str, float]:
    """`metrics` of the trainer's model on its validation blocks."""
    return metrics(trainer.evaluate()["eval_loss"], corpus, trainer.eval_dataset)


def baselines(corpus: Corpus, blocks: TokenBlocks) -> dict[str, dict[str, float]]:
    """`metrics` of counts of one, two and three tokens, on the same predictions."""
    names = ("unigram", "bigram", "Kneser-Ney trigram")
    return {
        name: metrics(kneser_ney_nats(corpus.train, blocks, len(corpus.tokenizer), order), corpus, blocks)
        for order, name in enumerate(names, start=1)
    }
