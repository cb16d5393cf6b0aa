# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # A language model whose memory is never trained (GPU)
#
# In about a minute this notebook makes a small language model of **your own text**. Its memory is a random network that stays as it was
# drawn (an echo-state network); only the part that reads the memory learns. Counts of short phrases are mixed in, since counting is
# hard to beat on little text. At the end you can type the beginning of a story, and teach the model a paragraph in a second.
#
# {picture: Bits per byte of the test texts (fewer is better): counting, and each model without and with counts}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU. The default text is TinyStories
# (CDLA-Sharing-1.0). The TPU twin is `tinystories_reservoir_tpu.ipynb`.
#
# {planned}
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # A language model whose memory is never trained (TPU)
#
# In a few minutes this notebook makes a small language model of **your own text**. Its memory is a random network that stays as it was
# drawn (an echo-state network); only the part that reads the memory learns. Counts of short phrases are mixed in, since counting is
# hard to beat on little text. At the end you can type the beginning of a story, and teach the model a paragraph in a second.
#
# {picture: Bits per byte of the test texts (fewer is better): counting, and each model without and with counts}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips). Without one it goes on
# with the GPU or the CPU. XLA compiles the first steps, which takes long. The default text is TinyStories (CDLA-Sharing-1.0). The GPU
# twin is `tinystories_reservoir.ipynb`.
#
# {planned}
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock wandb matplotlib

# %% [markdown]
# ## Your settings
#
# A zero takes the recipe's value. {own data} A `.txt` has a blank line or `<|endoftext|>` between two texts; a `.jsonl` has a column
# `text`. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.reservoir.parameters.ReservoirParameters

# %%
import time

from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.reservoir.parameters import ReservoirParameters
from helpers.run.run_folder import RunFolder

begun = time.perf_counter(), time.process_time()
secrets.provide("HF_TOKEN")
params = parameters.check(ReservoirParameters, globals())  # every setting is checked before anything is downloaded
machine = runtime.detect(params.use_tpu, params.precision)
run = RunFolder.claim("tinystories_reservoir", params)
print(machine, f"output     {run.path}", sep="\n")

# %% [markdown]
# ## Data
#
# Some texts are set aside: **dev** chooses settings, **test** is read once, at the end. No text is in two of the three.

# %%
from helpers.reservoir.data import load_texts, tokens_of, train_tokenizer
from helpers.show import tables

texts = load_texts(params.data_source, num_texts=params.num_texts, seed=params.seed)
run.same_data(texts.source)
print(f"texts: {texts.how}")
tokenizer, reason = train_tokenizer(texts.train, params.vocab_size)
end = tokenizer.eos_token_id
train, dev, test = (tokens_of(part, tokenizer) for part in (texts.train, texts.dev, texts.test))
parts = {"train": (texts.train, train), "dev": (texts.dev, dev), "test": (texts.test, test)}
tables.show([{"": name, "texts": len(part), "tokens": len(ids)} for name, (part, ids) in parts.items()], reason)
print(texts.train[0][:400])
print([tokenizer.decode(int(token)) for token in train[:24]])

# %% [markdown]
# ## The method, in one file
#
# At every token the state of the network moves a little towards what a random matrix makes of the old state and the new token:
#
# $$s_t = (1 - a)\, s_{t-1} + a \tanh(W s_{t-1} + W_{in} x_t + b)$$
#
# $W$ is scaled so that old input fades away, and is never trained. The trained readout sees $s_t$ and the token itself. Recall proposes
# tokens that followed earlier places of the text that look like this one. **Change a line below, such as `torch.tanh` in `step`, and run
# all cells again: your version is what trains, in a folder of its own.**

# %% tags=["method"]
# method: helpers/reservoir/model.py

# %%
import matplotlib.pyplot as plt
import torch

run.use_method()
from helpers.reservoir.data import TokenBlocks, cooccurrence_codes, token_bytes
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

config = ReservoirConfig(
    vocab_size=len(tokenizer),
    units=params.units,
    leak=params.leak,
    dropout=params.dropout,
    input_codes=min(256, len(tokenizer) // 2),
    reservoir_seed=params.seed,
    bos_token_id=end,
    eos_token_id=end,
    pad_token_id=end,
)
# What the network sees of a token: tokens with similar neighbours have similar codes.
codes = cooccurrence_codes(train, len(tokenizer), config.input_codes, params.seed)
model = ReservoirForCausalLM.initialise(config, codes, seed=params.seed)
frozen = sum(tensor.numel() for tensor in model.reservoir.buffers())
print(f"{model.num_parameters():,} weights are trained, {frozen:,} stay as they were drawn")

# Six units of the untrained network while it reads the first tokens: they rise and fall with them, and forget slowly.
ids = torch.from_numpy(train[:24].astype("int64"))[None]
states = model.eval().read(ids)[0][0, :, :: config.units // 6]
figure, axes = plt.subplots(figsize=(11, 2.6), layout="constrained")
axes.plot(states.numpy())
axes.set(title="States of six units over the first tokens", ylabel="state", xlabel="token")
ticks = axes.set_xticks(
    range(ids.shape[1]), [tokenizer.decode(int(token)) for token in ids[0]], rotation=60, fontsize=8
)

# %% [markdown]
# ## What costs nothing
#
# Before anything is trained: how well does counting do? Kneser-Ney smoothing counts phrases of up to five tokens, and the cache counts
# what this text said before. A language model that does not beat this row has not earned its keep.

# %%
from helpers.reservoir import evaluation

counts, cache_weight = evaluation.fit_counts(train, dev, len(tokenizer), end)
bytes_V = token_bytes(tokenizer)
counting = evaluation.Score.of(counts.with_cache(dev, cache_weight), dev, bytes_V, end)
print(
    f"counting phrases of up to {len(counts.levels)} tokens: {counting.bits_per_byte:.3f} bits per byte of dev (lower is better)"
)

# %% [markdown]
# ## Plan and train
#
# First what will run, and what it is expected to take. Then the readout learns by the stock Hugging Face trainer; ours adds exact resume,
# whole checkpoints and a stop that saves. Nothing in the network is trained, so its state before each block of tokens is the same in every
# epoch: it is read once, and blocks can be shuffled.

# %%
from helpers.plan import forecast as forecasts
from helpers.plan import settings as planner
from helpers.reservoir.training import LanguageModelTrainer, RecallLlama
from helpers.reservoir.workload import recipe, workload
from helpers.train.arguments import training_arguments

READ_DEV = 200_000  # tokens that choose the best checkpoint
step = workload(model, params.sequence_length)
sizes = {"batch_size": params.batch_size, "learning_rate": params.learning_rate, "max_steps": params.max_steps}
plan = planner.plan(recipe(params.sequence_length, len(train)), step, machine, **sizes)
tables.show(plan.rows())
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())


def trainer_of(model, plan, folder):
    """The trainer of a model, which reads the text and keeps its state before every block."""
    model.to("cuda" if machine.kind == "cuda" else "cpu")
    length, most = plan.sequence_length, plan.max_steps * plan.batch_size
    return LanguageModelTrainer(
        model=model,
        args=training_arguments(
            plan,
            machine,
            folder,
            seed=params.seed,
            logging_steps=10,
            eval_steps=params.eval_steps,
            save_steps=params.eval_steps,
            report_to=params.report_to,
            adam_beta2=0.95,  # a run is a few hundred steps: 0.999 would average over most of it
        ),
        train_dataset=TokenBlocks(train, end, length, plan.batch_size, most).read_states(model),
        eval_dataset=TokenBlocks(dev[:READ_DEV], end, length, plan.micro_batch_size).read_states(model),
        processing_class=tokenizer,
        plan=plan,
        runtime=machine,
        flops_per_token=plan.memory.count.flops / (plan.per_device_batch_size * length),
        max_hours=params.max_hours,
    )


trainer = trainer_of(model, plan, run.path)
waited, used = time.perf_counter() - begun[0], time.process_time() - begun[1]
print(f"the first step begins after {waited:.0f} s ({used:.0f} s of processor time)")
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))

# %% [markdown]
# ## Is it any good?
#
# Three models predict the test texts, which chose nothing: counting, the mixture $P = (1 - w)\, P_{model} + w\, P_{counts}$, and a mixture
# with a Llama in the reservoir's place. The weight $w$ and the share of the cache are those that are best on dev. Where the dev texts do not
# show (95 %) that a mixture is better than counting alone, $w$ is 1, and the model that you get is counting.
#
# The Llama has as many trained weights and gets every helper that the reservoir gets: the same codes where its embedding begins, the same
# recall, the same counts, batches and steps. Its attention sees its own block of tokens. The intervals say how much a difference moves if
# other texts of the same kind had been tested.

# %%
import dataclasses

from helpers.machine.engine import cpu_copy
from helpers.reservoir.evaluation import Score
from helpers.reservoir.training import LLAMA_RATE

trained = {"reservoir": trainer}
if params.compare_transformer:
    llama = RecallLlama.beside(model, codes, params.sequence_length, params.seed)
    llama_plan = dataclasses.replace(plan, learning_rate=params.learning_rate or LLAMA_RATE)
    trained["Llama"] = trainer_of(llama, llama_plan, run.path / "llama")
    print("the Llama:")
    trained["Llama"].train(resume_from_checkpoint=params.resume)

counting = Score.of(counts.with_cache(test, cache_weight), test, bytes_V, end)
scores, mixing, dev_part = {"counting": counting}, {}, dev[:READ_DEV]
# XLA would compile every length of text anew.
models = {name: cpu_copy(each.model) if machine.kind == "xla" else each.model for name, each in trained.items()}
for name, each in models.items():
    dev_P = evaluation.probabilities(each, dev_part, end)
    weight, cache = mixing[name] = evaluation.chosen_mixture(dev_P, counts, cache_weight, dev_part, bytes_V, end)
    alone = evaluation.probabilities(each, test, end)
    mixed = (1 - weight) * alone + weight * counts.with_cache(test, cache)
    scores[f"{name} without counts"] = Score.of(alone, test, bytes_V, end)
    scores[f"{name} with counts"] = Score.of(mixed, test, bytes_V, end)
model = models["reservoir"]
model.counts = counts
model.config.counts_weight, model.config.cache_weight = mixing["reservoir"]
print(
    f"counts have a weight of {model.config.counts_weight:.2f}, and within them the cache {model.config.cache_weight:.2f}"
)
tables.show([{"model": name, "bits per byte of test": f"{score.bits_per_byte:.3f}"} for name, score in scores.items()])
verdict = evaluation.verdict(scores)
if params.data_source == "sample":
    verdict.append(
        "The sample is a few pages: its figures show that everything works, not how good such a model can be."
    )
print("\n".join(verdict))
figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
axes.plot([score.bits_per_byte for score in scores.values()], [*scores], "o")
axes.invert_yaxis()
axes.grid(axis="y")
_ = axes.set(
    title="How well texts are predicted that nobody has seen", xlabel="bits per byte of test (fewer is better)"
)

# %% [markdown]
# ## Try it
#
# Type the beginning of a text and run the cell.

# %%
# @title Continue a text
beginning = params.prompt  # or any text in quotes


def continued(model, text, tokens=120, temperature=0.6):
    """The text and what the model samples after it, the same each time."""
    torch.manual_seed(params.seed)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": 0.95}
    found = model.eval().generate(prompt, max_new_tokens=tokens, **sampling)
    return tokenizer.decode(found[0], skip_special_tokens=True)


story = continued(model, beginning)
print(story)

# %% [markdown]
# ## Take it with you
#
# The folder holds weights, counts, tokenizer and the file above. It is loaded again and must tell the same text. `results.json` beside it has
# every figure of this run.

# %%
from transformers import AutoModelForCausalLM

model_folder = run.path / "model"
model.save_pretrained(model_folder)
# Beside a model with code AutoTokenizer asks whether to run the code, so the tokenizer has a folder of its own, too.
for folder in (model_folder, model_folder / "tokenizer"):
    tokenizer.save_pretrained(folder)
reloaded = AutoModelForCausalLM.from_pretrained(model_folder).to(model.device)
same_story = continued(reloaded, beginning) == story
print(f"the reloaded model tells the same text: {same_story}")
if machine.kind == "cpu" and machine.precision == "fp32" and not same_story:
    raise RuntimeError(f"the model saved in {model_folder} differs from the trained one")
results_file = run.results(
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **texts.provenance,
        "train_examples": len(trainer.train_dataset),
        "eval_examples": len(trainer.eval_dataset),
        "train_tokens": len(train),
        "vocab_size": len(tokenizer),
        "separated": texts.how,
    },
    model={"trainable": model.num_parameters(), "frozen": frozen},
    eval={
        "before": {"bits_per_byte": counting.bits_per_byte},
        "after": {"bits_per_byte": scores["reservoir with counts"].bits_per_byte},
        "baselines": {name: score.bits_per_byte for name, score in scores.items()},
        "verdict": verdict,
        "mixing": mixing,
    },
    artifacts={"model": "model", "same_story": same_story, "story": story},
)
print(results_file)

# %% [markdown]
# ## Teach it a paragraph
#
# New text is added to the counts: no training and no GPU, and what was learned before stays. This changes the reloaded copy only; save it
# with `reloaded.save_pretrained(...)` if you want to keep it.

# %%
# @title Learn this text
import numpy as np

paragraph = (
    "Nim is a robot. Nim lives in a tea pot on the hill. Every day Nim makes tea for the frog. "
    "One day the tea pot was cold, and Nim was sad. The frog made a fire on the hill. Then the tea pot was warm again."
)
taught = tokens_of([paragraph], tokenizer)
w = reloaded.config.counts_weight = max(0.5, model.config.counts_weight)  # so that what the counts learn is heard
alone = evaluation.probabilities(reloaded, taught, end)


def bits():
    """Bits per byte of the paragraph, with the counts as they are."""
    mixed = (1 - w) * alone + w * reloaded.counts.with_cache(taught, reloaded.config.cache_weight)
    return Score.of(mixed, taught, bytes_V, end).bits_per_byte


before, told = bits(), continued(reloaded, "Nim is", 30, temperature=0.1)
reloaded.learn(np.tile(taught, 5))  # five times, since a text that was read once is little beside all others
print(f"{before:.2f} bits per byte of this text before, {bits():.2f} after")
print(f"before: {told}\nafter:  {continued(reloaded, 'Nim is', 30, temperature=0.1)}")

# %% [markdown]
# ## Next
#
# - **Use it elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model", trust_remote_code=True)`, with
#   `AutoTokenizer.from_pretrained("<output_dir>/model/tokenizer")`, which runs no code of the folder.
# - **Another network**: change the activation, `leak` or `spectral_radius` in the method's file and run all again.
# - **Longer**: raise `max_steps`, `num_texts` or `units`, in a new `output_dir`.
# - **Classic reservoir computing** (ridge readouts, time series): [reservoirpy](https://github.com/reservoirpy/reservoirpy).
