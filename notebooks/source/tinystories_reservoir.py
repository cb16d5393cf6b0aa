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
# In a few minutes it makes a small language model of **your own text**, on a CPU or any GPU. It counts short phrases, and learns what the counts do not
# know from a random network that stays as it was drawn (an echo-state network).
#
# {figure reservoir_budget: Bits per byte of held-out stories after so many processor seconds (fewer is better): counting alone, this model, and the same with a trained memory}
#
# **Runtime**: a CPU is enough: 2 MB of text take one core about a minute and a half. A GPU (Colab: *Runtime > Change runtime type > T4*)
# trains while the CPU reads and counts. The default text is TinyStories (CDLA-Sharing-1.0).
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # A language model whose memory is never trained (TPU)
#
# It makes a small language model of **your own text** on a TPU. It counts short phrases, and learns what the counts do not know from a random network
# that stays as it was drawn (an echo-state network).
#
# {figure reservoir_budget: Bits per byte of held-out stories after so many processor seconds (fewer is better): counting alone, this model, and the same with a trained memory}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips). Without one it goes on
# with the GPU or the CPU. XLA compiles the first steps, which takes long. The default text is TinyStories (CDLA-Sharing-1.0).
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown]
# ## Your settings
#
# 0 = choose for me. {own data} In a `.txt` the texts are separated by `<|endoftext|>`; without it by blank lines; without those each line is a
# text. A table has a column `text`; in a folder each `.txt` or `.md` file is a text. Never paste API keys here: put
# `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.
#
# Some texts are set aside: **dev** chooses the best checkpoint, **test** is used once, at the end. No text is in two of the three parts.

# %% tags=["parameters"]
# parameters: helpers.reservoir.parameters.ReservoirParameters

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock charset-normalizer wandb matplotlib

# %%
import time

from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.notebook.settings import say_changed
from helpers.reservoir.data import load_texts, tokens_of, train_tokenizer
from helpers.reservoir.parameters import ReservoirParameters
from helpers.run.run_folder import RunFolder
from helpers.show import tables

begun = time.perf_counter()
secrets.provide("HF_TOKEN")
params = parameters.check(ReservoirParameters, globals())  # every setting is checked before anything is downloaded
machine = runtime.detect(params.use_tpu, params.precision)
run = RunFolder.claim("tinystories_reservoir", params)
print(machine, f"output     {run.path}", sep="\n")

texts = load_texts(params.data_source, num_texts=params.num_texts, seed=params.seed)
run.note(data=texts.provenance)
tokenizer, reason = train_tokenizer(texts.train, params.vocab_size)
end = tokenizer.eos_token_id
train, dev, test = (tokens_of(part, tokenizer) for part in (texts.train, texts.dev, texts.test))
parts = {"train": (texts.train, train), "dev": (texts.dev, dev), "test": (texts.test, test)}
tables.show([{"": name, "texts": len(part), "tokens": len(ids)} for name, (part, ids) in parts.items()], reason)
print(f"{texts.repeated:,} repeated texts were left out. The first text:\n{texts.train[0][:400]}")
print([tokenizer.decode(int(token)) for token in train[:24]])

# %% [markdown]
# ## The method, in one file
#
# The model first counts phrases of up to five tokens (Kneser-Ney smoothing), with a cache of what the present text has contained so far. What
# the counts do not know it learns from a memory: at every token the state of a network moves a little towards what a random matrix makes of
# the old state and the new token:
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

# %% [markdown]
# ## Count and train
#
# The stock Hugging Face trainer trains the readout. The network is not trained, so the host reads a stretch of text once, and a step learns from 256
# tokens that are drawn from everywhere in it. The counts for a training text come from the other texts: so the model learns how far counts can be
# trusted on unseen text.

# %%
run.use_method()
from helpers.reservoir.counts import Counts
from helpers.reservoir.data import cooccurrence_codes
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.parameters import ADAM_BETA2
from helpers.reservoir.training import DrawnTokens, LanguageModelTrainer, make_plan
from helpers.train.arguments import training_arguments

config = ReservoirConfig(
    vocab_size=len(tokenizer),
    units=params.units,
    unit_blocks=params.units // 128,
    reservoir_seed=params.seed,
    bos_token_id=end,
    eos_token_id=end,
    pad_token_id=end,
)
# What the model sees of a token at first: tokens with similar neighbours have similar codes.
codes = cooccurrence_codes(train, len(tokenizer), min(192, len(tokenizer) // 2), params.seed)
model = ReservoirForCausalLM.initialise(config, codes, seed=params.seed)
model.counts = counts = Counts.fit(train, len(tokenizer), end)
frozen = sum(tensor.numel() for tensor in model.memory.buffers())
print(f"{model.num_parameters():,} weights are trained, {frozen:,} stay as they were drawn")

chosen = {"batch_size": params.batch_size, "learning_rate": params.learning_rate, "max_steps": params.max_steps}
plan = make_plan(model, len(train), machine, **chosen)
tables.show(plan.rows())

# %%
READ_DEV = 12_000  # tokens of dev that choose the best checkpoint
drawn = {"multiple_of": plan.batch_size, "seed": params.seed}
trainer = LanguageModelTrainer(
    model=model,
    args=training_arguments(
        plan,
        machine,
        run.path,
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
    train_dataset=DrawnTokens(train, model, trained=True, **drawn),
    eval_dataset=DrawnTokens(dev[:READ_DEV], model, trained=False, **drawn),
    processing_class=tokenizer,
    plan=plan,
    runtime=machine,
    max_hours=params.max_hours,
)
waited, used = time.perf_counter() - begun, time.process_time()
print(f"the first step begins {waited:.0f} s after the settings; {used:.0f} s of processor time since the start")
say_changed(params, globals())
run.note(examples_a_step=plan.batch_size)
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))

# %% [markdown]
# ## Try it
#
# Type the beginning of a text and run the cell.

# %%
# @title Continue a text
import torch

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
# Two rivals cost nothing: counting alone, and a compressor (`lzma`, which is `xz -9e`) that has read the same training texts. The interval says how
# much the difference to counting would vary with other test texts of the same kind. A trained recurrent network (a GRU) in the place of the random
# one is better from five minutes of one core on, and on some texts as good after one: [measurements](../docs/reservoir.md).

# %%
from helpers.reservoir import evaluation
from helpers.reservoir.data import token_bytes

bytes_V = token_bytes(tokenizer)


def score(model, tokens):
    """How well a model predicts texts."""
    return evaluation.Score.of(evaluation.probabilities(model, tokens, end), tokens, bytes_V, end)


untrained = ReservoirForCausalLM.initialise(config, codes, seed=params.seed)  # which counts
untrained.counts = counts
scores = {"counting": score(untrained, test), "reservoir": score(trained, test)}
bits = {name: each.bits_per_byte for name, each in scores.items()}
bits["xz"] = evaluation.compressed_bits(texts.train, texts.test)
tables.show([{"model": name, "bits per byte of test": f"{value:.3f}"} for name, value in bits.items()])
verdict = evaluation.verdict(scores["reservoir"], scores["counting"], bits["xz"])
verdict = " ".join([*trainer.unfinished(), verdict])
if params.data_source == "sample":
    verdict += " The sample is a few pages: its figures show that everything works, not how good such a model can be."
print(verdict)

# %% [markdown]
# ## Take it with you
#
# The folder contains the weights, the counts, the tokenizer and the method's file. It is loaded again and must write the same text.

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
say_changed(params, globals())
results_file = run.results(
    machine,
    **trainer.results(),
    data={
        **texts.provenance,
        "train_examples": len(texts.train),
        "eval_examples": len(texts.dev),
        "train_tokens": len(train),
        "vocab_size": len(tokenizer),
    },
    model={"trainable": trained.num_parameters(), "frozen": frozen},
    eval={
        "before": {"bits_per_byte": bits["counting"]},
        "after": {"bits_per_byte": bits["reservoir"]},
        "baselines": bits,
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
tokens = tokens_of([paragraph], tokenizer)
bits_before = score(reloaded, tokens).bits_per_byte
story_before = continue_text(reloaded, "Nim lives", 12, temperature=0.1)
began = time.process_time()
ids = tokenizer([paragraph])["input_ids"]
reloaded.learn(ids * 5)  # five times, since a text that was read once is little beside all others
seconds = time.process_time() - began
bits_after = score(reloaded, tokens).bits_per_byte
print(f"{bits_before:.2f} bits per byte of this text before, {bits_after:.2f} after {seconds:.1f} s of processor time")
print(f"before: {story_before}\nafter:  {continue_text(reloaded, 'Nim lives', 12, temperature=0.1)}")

# %% [markdown]
# ## Next
#
# - **Use it elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model", trust_remote_code=True)`, with
#   `AutoTokenizer.from_pretrained("<output_dir>/model/tokenizer")`, which runs no code of the folder.
# - **Better**: more text first (`num_texts`), since counting reads all of it in seconds; then more steps (`max_steps`), in a new `output_dir`.
# - **Another network**: change the activation, `leaks` or `spectral_radius` in the method's file and run all again.
# - **Classic reservoir computing** (ridge readouts, time series): [reservoirpy](https://github.com/reservoirpy/reservoirpy).
