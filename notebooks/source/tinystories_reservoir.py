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
# In a few minutes this notebook makes a small language model of **your own text** on a CPU or any GPU. It first counts short phrases, which is
# hard to beat on little text. Then it learns what the counts do not know, from a memory that is never trained: a random network that
# stays as it was drawn (an echo-state network). At the end it continues a text, and learns a paragraph in a second.
#
# {picture: Bits per byte of the test texts (fewer is better): counting alone, the reservoir, and a trained recurrent network}
#
# **Runtime**: a CPU is enough: 2 MB of text take one core about a minute and a half. A GPU (Colab: *Runtime > Change runtime type > T4*)
# trains while the CPU reads and counts. The default text is TinyStories (CDLA-Sharing-1.0). The TPU twin is `tinystories_reservoir_tpu.ipynb`.
#
# {planned}
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # A language model whose memory is never trained (TPU)
#
# In a few minutes this notebook makes a small language model of **your own text** on a TPU. It first counts short phrases, which is
# hard to beat on little text. Then it learns what the counts do not know, from a memory that is never trained: a random network that
# stays as it was drawn (an echo-state network). At the end it continues a text, and learns a paragraph in a second.
#
# {picture: Bits per byte of the test texts (fewer is better): counting alone, the reservoir, and a trained recurrent network}
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
# 0 = choose for me. {own data} In a `.txt` the texts stand between `<|endoftext|>`, blank lines or line ends; a table has a column
# `text`; a folder has a text a file. Never paste API keys here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.reservoir.parameters.ReservoirParameters

# %%
import time

from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.reservoir.parameters import ReservoirParameters
from helpers.run.run_folder import RunFolder

begun = time.perf_counter()
secrets.provide("HF_TOKEN")
params = parameters.check(ReservoirParameters, globals())  # every setting is checked before anything is downloaded
machine = runtime.detect(params.use_tpu, params.precision)
if params.memory == "gru" and machine.device_count > 1:
    raise ValueError(
        f"memory='gru': it goes on from batch to batch, row by row, which {machine.device_count} devices do not share. "
        "Set memory='reservoir', or start the kernel with one device (CUDA_VISIBLE_DEVICES=0)"
    )
run = RunFolder.claim("tinystories_reservoir", params)
print(machine, f"output     {run.path}", sep="\n")

# %% [markdown]
# ## Data
#
# Some texts are set aside: **dev** chooses settings, **test** is used once, at the end. No text is in two of the three parts.

# %%
from helpers.reservoir.data import load_texts, tokens_of, train_tokenizer
from helpers.show import tables

texts = load_texts(params.data_source, num_texts=params.num_texts, seed=params.seed)
run.same_data(texts.source)
print(f"texts: {texts.notes}")
tokenizer, reason = train_tokenizer(texts.train, params.vocab_size)
end = tokenizer.eos_token_id
train, dev, test = (tokens_of(part, tokenizer) for part in (texts.train, texts.dev, texts.test))
READ_DEV = 12_000  # tokens of dev that choose the best checkpoint
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
# $W$ is scaled so that old input fades away, and is never trained. A trained readout turns $s_t$ into a vector $v_t$ and corrects the counts:
#
# $$\log P(\text{next}) = \text{head}(v_t) + \text{recall}(v_t) + (1 + \text{scale}(v_t)) \log P_{\text{counts}}(\text{next}) + \text{const}$$
#
# All three begin at zero, so that the model is counting before its first step. Recall proposes tokens that followed earlier places of the
# text that look like this one. **Change a line below, such as `torch.tanh` in `step`, and run all cells again: your version is what trains,
# in a folder of its own.**

# %% tags=["method"]
# method: helpers/reservoir/model.py

# %%
import warnings

import matplotlib.pyplot as plt
import torch

run.use_method()
from helpers.reservoir import evaluation
from helpers.reservoir.counts import Counts
from helpers.reservoir.data import cooccurrence_codes, token_bytes
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

# What the model sees of a token at first: tokens with similar neighbours have similar codes.
codes = cooccurrence_codes(train, len(tokenizer), min(192, len(tokenizer) // 2), params.seed)
counts = Counts.fit(train, len(tokenizer), end)


def new_model(memory):
    """A model that counts, with a reservoir or a GRU as its memory."""
    rows = params.batch_size if params.memory == "gru" else 0
    config = ReservoirConfig(
        vocab_size=len(tokenizer),
        memory=memory,
        units=params.units,
        unit_blocks=params.units // 128,
        training_rows=rows or 8,
        reservoir_seed=params.seed,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = ReservoirForCausalLM.initialise(config, codes, seed=params.seed)
    model.counts = counts
    return model


model = new_model(params.memory)
frozen = sum(tensor.numel() for tensor in model.memory.buffers())
print(f"{model.num_parameters():,} weights are trained, {frozen:,} stay as they were drawn")

# Six units of the memory before training, while it reads the first tokens: they rise and fall with them, and forget slowly.
ids = torch.from_numpy(train[:24].astype("int64"))[None]
with torch.no_grad():
    states = model.eval().read(ids)[0][0, :, :: model.memory.width // 6]
warnings.filterwarnings("ignore", message="Glyph")  # a script that the picture's font lacks
figure, axes = plt.subplots(figsize=(11, 2.6), layout="constrained")
axes.plot(states.numpy())
axes.set(title="States of six units over the first tokens", ylabel="state", xlabel="token")
ticks = axes.set_xticks(
    range(ids.shape[1]), [tokenizer.decode(int(token)) for token in ids[0]], rotation=60, fontsize=8
)

# %% [markdown]
# ## Counting costs nothing
#
# Before anything is trained the model counts: Kneser-Ney smoothing over phrases of up to five tokens, and a cache of what the present text
# has contained so far. A language model that does not beat this number is not worth training.

# %%
bytes_V = token_bytes(tokenizer)


def score(model, tokens):
    """How well a model predicts texts."""
    return evaluation.Score.of(evaluation.probabilities(model, tokens, end), tokens, bytes_V, end)


print(f"counting: {score(model, dev[:READ_DEV]).bits_per_byte:.3f} bits per byte of dev (fewer are better)")

# %% [markdown]
# ## Plan and train
#
# First the plan: what will run, and how much time and memory to expect. Then the stock Hugging Face trainer trains the readout; our subclass
# adds exact resume, whole checkpoints and a stop that saves. Nothing in the network is trained, so its states are the same in every epoch: the host reads a
# stretch of text once, and a step learns from 256 tokens that are drawn from everywhere in it. A token that the counts predict well is drawn
# seldom and weighs more. The counts for a training text come from the other texts, so that the model learns how far counts can be trusted on
# unseen text.

# %%
from helpers.plan import forecast as forecasts
from helpers.plan import settings as planner
from helpers.reservoir.training import DrawnTokens, LanguageModelTrainer, RowsOfText
from helpers.reservoir.workload import ADAM_BETA2, recipe, workload
from helpers.train.arguments import training_arguments


def make_plan(model, **sizes):
    """Settings for a model, with reasons."""
    settings = recipe(model.config.memory, len(train))
    return planner.plan(settings, workload(model, settings.sequence_length), machine, **sizes)


def make_trainer(model, plan, folder):
    """The trainer of a model, with the texts as it reads them."""
    if model.config.memory == "reservoir":
        examples = {"multiple_of": plan.batch_size, "seed": params.seed}
        data = DrawnTokens
    else:
        examples = {"multiple_of": plan.batch_size, "length": plan.sequence_length}
        data = RowsOfText
    length = plan.sequence_length
    return LanguageModelTrainer(
        model=model,
        args=training_arguments(
            plan,
            machine,
            folder,
            seed=params.seed,
            logging_steps=50,
            eval_steps=params.eval_steps,
            save_steps=params.eval_steps,
            report_to=params.report_to,
            optim="adamw_torch_fused" if machine.kind == "cpu" else plan.optimizer,
            adam_beta2=ADAM_BETA2,
            lr_scheduler_type="linear",
            remove_unused_columns=False,
        ),
        data_collator=dict,  # the data sets make whole batches
        train_dataset=data(train, model, trained=True, **examples),
        eval_dataset=data(dev[:READ_DEV], model, trained=False, **examples),
        processing_class=tokenizer,
        plan=plan,
        runtime=machine,
        flops_per_token=plan.memory.count.flops / (plan.per_device_batch_size * length),
        max_hours=params.max_hours,
    )


plan = make_plan(model, batch_size=params.batch_size, learning_rate=params.learning_rate, max_steps=params.max_steps)
tables.show(plan.rows())
forecast = forecasts.forecast_run(workload(model, plan.sequence_length), plan, machine)
tables.show(forecast.rows())
trainer = make_trainer(model, plan, run.path)
waited, used = time.perf_counter() - begun, time.process_time()
print(f"the first step begins {waited:.0f} s after the settings; {used:.0f} s of processor time since the start")
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))

# %% [markdown]
# ## Try it
#
# Type the beginning of a text and run the cell.

# %%
# @title Continue a text
from helpers.machine.engine import cpu_copy

# XLA would compile every length of text anew.
trained = cpu_copy(trainer.model, counts) if machine.kind == "xla" else trainer.model
beginning = params.prompt  # or any text in quotes
if not beginning:
    beginning = "Once upon a time" if params.data_source == "sample" else " ".join(texts.dev[0].split()[:6])


def continue_text(model, text, tokens=120, temperature=0.7):
    """The text and what the model samples after it, the same each time."""
    torch.manual_seed(params.seed)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] or [end]
    prompt = torch.tensor([ids], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": 0.95}
    sampled = model.eval().generate(prompt, max_new_tokens=tokens, **sampling)
    return tokenizer.decode(sampled[0], skip_special_tokens=True)


story = continue_text(trained, beginning)
used = time.process_time()
print(story)
print(f"(after {used:.0f} s of processor time since the start)")

# %% [markdown]
# ## Is it any good?
#
# Counting and the model predict the test texts, which were not used for tuning. `compare_memories` also trains the same model with the other
# memory: a GRU, a recurrent network that is trained through time. It has about as many trained weights and the same counts, recall, codes and
# number of tokens. The intervals say how much a difference would vary with other test texts of the same kind.

# %%
NAMES = {"reservoir": "reservoir", "gru": "GRU"}
models = {params.memory: trained}
other = "gru" if params.memory == "reservoir" else "reservoir"
# A GRU goes on from batch to batch, row by row, which several devices do not share.
if params.compare_memories and (other == "reservoir" or machine.device_count == 1):
    rival = new_model(other)
    rival_trainer = make_trainer(rival, make_plan(rival, max_steps=params.max_steps), run.path / other)
    print(f"the {NAMES[other]}:")
    rival_trainer.train(resume_from_checkpoint=params.resume)
    models[other] = cpu_copy(rival, counts) if machine.kind == "xla" else rival

scores = {"counting": score(new_model(params.memory), test)}
for kind, one in models.items():
    scores[NAMES[kind]] = score(one, test)
tables.show([{"model": name, "bits per byte of test": f"{one.bits_per_byte:.3f}"} for name, one in scores.items()])
verdict = evaluation.verdict(scores, NAMES[params.memory])
if params.data_source == "sample":
    verdict.append(
        "The sample is a few pages: its figures show that everything works, not how good such a model can be."
    )
print("\n".join(verdict))
figure, axes = plt.subplots(figsize=(8, 2.0), layout="constrained")
for name, one in scores.items():
    ours = name == NAMES[params.memory]
    axes.plot(one.bits_per_byte, name, "o", color="tab:orange" if ours else "tab:blue", markersize=10 if ours else 7)
axes.invert_yaxis()
axes.grid(axis="y")
_ = axes.set(
    title=f"How well unseen text is predicted (orange: this notebook's {NAMES[params.memory]} model)",
    xlabel="bits per byte of the test texts (lower is better)",
)

# %% [markdown]
# ## Take it with you
#
# The folder contains the weights, the counts, the tokenizer and the method's file. It is loaded again and must write the same text.
# `results.json` beside it has every figure of this run.

# %%
from transformers import AutoModelForCausalLM

model_folder = run.path / "model"
trained.save_pretrained(model_folder)
# Beside a model with code AutoTokenizer asks whether to run the code, so the tokenizer has a folder of its own, too.
for folder in (model_folder, model_folder / "tokenizer"):
    tokenizer.save_pretrained(folder)
reloaded = AutoModelForCausalLM.from_pretrained(model_folder).to(trained.device)
same_story = continue_text(reloaded, beginning) == story
print(f"the reloaded model tells the same text: {same_story}")
if machine.kind == "cpu" and machine.precision == "fp32" and not same_story:
    raise RuntimeError(f"the model saved in {model_folder} differs from the trained one")
results_file = run.results(
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **texts.provenance,
        "train_examples": len(texts.train),
        "eval_examples": len(texts.dev),
        "train_tokens": len(train),
        "vocab_size": len(tokenizer),
        "separated": texts.notes,
    },
    model={"memory": params.memory, "trainable": trained.num_parameters(), "frozen": frozen},
    eval={
        "before": {"bits_per_byte": scores["counting"].bits_per_byte},
        "after": {"bits_per_byte": scores[NAMES[params.memory]].bits_per_byte},
        "baselines": {name: one.bits_per_byte for name, one in scores.items()},
        "verdict": verdict,
    },
    artifacts={"model": "model", "same_story": same_story, "story": story, "processor_seconds_to_story": round(used)},
)
print(results_file)

# %% [markdown]
# ## Teach it a paragraph
#
# New text is added to the counts: no training and no GPU, and what was learned before stays. This changes the reloaded copy only; save it
# with `reloaded.save_pretrained(...)` if you want to keep it.

# %%
# @title Learn this text
paragraph = (
    "Nim is a robot. Nim lives in a tea pot on the hill. Every day Nim makes tea for the frog. "
    "One day the tea pot was cold, and Nim was sad. The frog made a fire on the hill. Then the tea pot was warm again."
)
taught = tokens_of([paragraph], tokenizer)


def bits():
    """Bits per byte of the paragraph."""
    return score(reloaded, taught).bits_per_byte


before, told_before = bits(), continue_text(reloaded, "Nim is", 30, temperature=0.1)
learning = time.process_time()
reloaded.learn([taught] * 5)  # five times, since a text that was read once is little beside all others
learning = time.process_time() - learning
print(f"{before:.2f} bits per byte of this text before, {bits():.2f} after {learning:.1f} s of processor time")
print(f"before: {told_before}\nafter:  {continue_text(reloaded, 'Nim is', 30, temperature=0.1)}")

# %% [markdown]
# ## Next
#
# - **Use it elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model", trust_remote_code=True)`, with
#   `AutoTokenizer.from_pretrained("<output_dir>/model/tokenizer")`, which runs no code of the folder.
# - **Better**: more text first (`num_texts`), since counting reads all of it in seconds; then more steps (`max_steps`), in a new `output_dir`.
# - **A trained memory**: `memory="gru"` is the better choice for runs of several minutes of one core; docs/reservoir.md has the
#   measurements.
# - **Another network**: change the activation, `leaks` or `spectral_radius` in the method's file and run all again.
# - **Classic reservoir computing** (ridge readouts, time series): [reservoirpy](https://github.com/reservoirpy/reservoirpy).
