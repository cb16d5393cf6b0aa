"""The steps of a TinyStories run: text to blocks, trainer, evaluation against baselines, text from the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback

from helpers import tracking
from helpers.arguments import training_arguments
from helpers.plan import Plan
from helpers.runtime import Runtime
from helpers.trainer import TrainerMixin

from .baselines import bigram_nats, unigram_nats
from .blocks import TokenBlocks, bits_per_byte
from .model import ReservoirConfig, ReservoirForCausalLM
from .parameters import ReservoirParameters
from .stories import StorySplits
from .tokens import TokenFile, open_tokens, token_bytes, write_tokens

VALIDATION_TOKENS = 500_000  # enough for the third decimal of bits per byte


class ReservoirTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability."""


@dataclass(frozen=True)
class Corpus:
    """Token files of both splits, made once a run."""

    train: TokenFile
    validation: TokenFile
    tokenizer: PreTrainedTokenizerFast

    def evaluation_batch(self, plan: Plan) -> int:
        """Examples of an evaluation batch: the plan's micro-batch, or less where the validation text is short."""
        available = self.validation.tokens // plan.sequence_length
        return max(plan.device_count, min(plan.micro_batch_size, available // plan.device_count * plan.device_count))

    def blocks(self, plan: Plan) -> tuple[TokenBlocks, TokenBlocks]:
        """Training blocks in whole optimizer steps and validation blocks in whole batches, so that no shape varies."""
        train = TokenBlocks(self.train, plan.sequence_length, multiple_of=plan.batch_size)
        batch = self.evaluation_batch(plan)
        most = max(batch, VALIDATION_TOKENS // plan.sequence_length)
        validation = TokenBlocks(self.validation, plan.sequence_length, max_blocks=most, multiple_of=batch)
        return train, validation


def tokenise(splits: StorySplits, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Corpus:
    """Writes both splits as memory-mapped tokens under `folder`, or finds them there."""
    folder.mkdir(parents=True, exist_ok=True)
    return Corpus(
        train=write_tokens(splits.train, tokenizer, folder / "train.bin", source=f"{splits.source} train"),
        validation=write_tokens(
            splits.validation, tokenizer, folder / "validation.bin", source=f"{splits.source} validation"
        ),
        tokenizer=tokenizer,
    )


def new_model(params: ReservoirParameters, tokenizer: PreTrainedTokenizerFast) -> ReservoirForCausalLM:
    """An untrained model of the asked-for size; reservoir and readout both follow from `params.seed`."""
    end = tokenizer.eos_token_id
    config = ReservoirConfig(
        vocab_size=len(tokenizer),
        reservoir_size=params.reservoir_size,
        readout_size=params.readout_size,
        spectral_radius=params.spectral_radius,
        leak=params.leak,
        input_scaling=params.input_scaling,
        density=params.density,
        dropout=params.dropout,
        reservoir_seed=params.seed,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    return ReservoirForCausalLM.initialise(config, seed=params.seed)


def new_trainer(
    model: ReservoirForCausalLM,
    corpus: Corpus,
    params: ReservoirParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> ReservoirTrainer:
    """The trainer of a run, with a sample of the model's text at every evaluation."""
    train, validation = corpus.blocks(plan)
    report_to, reason = tracking.report_to(params.report_to)
    if report_to != params.report_to:
        tracking.say(reason)
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        seed=params.seed,
        logging_steps=params.logging_steps,
        eval_steps=params.eval_steps,
        save_steps=params.save_steps,
        report_to=report_to,
        # Under SPMD this process feeds all devices, elsewhere one.
        per_device_eval_batch_size=corpus.evaluation_batch(plan) // (1 if runtime.kind == "xla" else plan.device_count),
    )
    return ReservoirTrainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=validation,
        processing_class=corpus.tokenizer,
        plan=plan,
        runtime=runtime,
        flops_per_token=6.0 * model.parameter_counts()["trainable"] + 2.0 * params.reservoir_size**2,
        callbacks=[StoryAtEvaluation(corpus.tokenizer, params)],
    )


class StoryAtEvaluation(TrainerCallback):
    """Prints the beginning of a story at every evaluation during training."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, params: ReservoirParameters):
        self.tokenizer, self.params = tokenizer, params
        self.training = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.training = True

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if self.training:
            story = tell(model, self.tokenizer, self.params, max_new_tokens=min(40, self.params.max_new_tokens))
            tracking.say(f"    step {state.global_step}: {' '.join(story.split())}")


def tell(
    model: ReservoirForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    params: ReservoirParameters,
    *,
    max_new_tokens: int | None = None,
    seed: int | None = None,
) -> str:
    """A story that begins with `params.prompt`, sampled with the seed; the caller's generators stay as they were.

    Generation changes length at every token, which XLA would compile anew: there a copy of the model tells it on the CPU.
    """
    if model.device.type == "xla":
        weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        with torch.device("meta"):  # no weights are drawn, which would move the caller's generator
            model = type(model)(model.config)
        model.load_state_dict(weights, assign=True)
    was_training = model.training
    # As `write_tokens` does: a tokeniser's own special tokens were never trained on.
    prompt = tokenizer(params.prompt, return_tensors="pt", add_special_tokens=False)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(params.seed if seed is None else seed)
        output = model.eval().generate(
            prompt["input_ids"].to(model.device),
            max_new_tokens=max_new_tokens or params.max_new_tokens,
            do_sample=True,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
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


def evaluate(trainer: ReservoirTrainer, corpus: Corpus) -> dict[str, float]:
    """`metrics` of the trainer's model on its validation blocks."""
    return metrics(trainer.evaluate()["eval_loss"], corpus, trainer.eval_dataset)


def baselines(corpus: Corpus, blocks: TokenBlocks) -> dict[str, dict[str, float]]:
    """`metrics` of what any language model must beat, on the same predictions: unigram and bigram counts."""
    tokens, vocabulary = open_tokens(corpus.train.path), len(corpus.tokenizer)
    return {
        "unigram": metrics(unigram_nats(tokens, blocks, vocabulary), corpus, blocks),
        "bigram": metrics(bigram_nats(tokens, blocks, vocabulary), corpus, blocks),
    }
