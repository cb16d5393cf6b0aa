"""Steps of a TinyStories run: parameters, recipe, blocks, measures by hand, stories, and the real trainer's evaluation."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from helpers import xla
from helpers.reservoir import experiment
from helpers.reservoir.blocks import states_before
from helpers.reservoir.parameters import (
    EPOCHS,
    HUB_STORIES,
    LONGEST_RECIPE,
    SMALL_TEXT,
    ReservoirParameters,
    recipe,
)
from helpers.reservoir.stories import load_stories
from helpers.reservoir.tokens import load_tokenizer
from helpers.runtime import Runtime

from . import forked
from .workloads import plan_by_hand

GOOD = {
    "data_source": "sample",
    "output_dir": "out",
    "max_steps": 0,
    "batch_size": 0,
    "learning_rate": 0.0,
    "seed": 3,
    "max_hours": 0.0,
    "resume": True,
    "use_tpu": False,
    "precision": "auto",
    "report_to": "none",
    "tokenizer": "train",
    "vocab_size": 300,
    "num_stories": 0,
    "sequence_length": 16,
    "trim_vocabulary": False,
    "reservoirs": "delay:8 delays:3 quadratic:8 + tanh:32 blocks:2 leak:0.6 + linear:8",
    "input_codes": 8,
    "recall_tokens": 12,
    "embedding_size": 16,
    "readout_blocks": 1,
    "readout_size": 24,
    "attention_heads": 0,
    "tie_embeddings": True,
    "dropout": 0.1,
    "token_dropout": 0.1,
    "compare_transformer": False,
    "further_seeds": 0,
    "patience": 0,
    "logging_steps": 1,
    "eval_steps": 10,
    "save_steps": 10,
    "prompt": "Once upon a time",
    "max_new_tokens": 30,
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.95,
}
STORIES = 120


def params(**changes) -> ReservoirParameters:
    return ReservoirParameters(**{**GOOD, **changes})


def planned(batch_size: int = 8, length: int = 16, device_count: int = 1, kind: str = "cpu"):
    machine = Runtime(
        kind=kind,
        reason="",
        device_name="",
        device_count=device_count,
        memory=None,
        compute_capability=None,
        precision="fp32",
        precision_reason="",
        torch="",
        torch_xla=None,
    )
    return plan_by_hand(machine, batch_size=batch_size, steps=4, length=length)


@pytest.fixture(scope="module")
def splits():
    return load_stories("sample", num_stories=STORIES, seed=0)


@pytest.fixture(scope="module")
def corpus(splits):
    tokenizer, _ = load_tokenizer("train", splits.train, GOOD["vocab_size"])
    return experiment.tokenise(splits, tokenizer)


# ---- parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", "no such thing!"),
        ("tokenizer", "sample"),
        ("vocab_size", 256),
        ("num_stories", -1),
        ("num_stories", 5),
        ("sequence_length", 7),
        ("sequence_length", 4097),
        ("input_codes", -1),
        ("embedding_size", 0),
        ("readout_blocks", -1),
        ("readout_size", 0),
        ("attention_heads", -1),
        ("further_seeds", -1),
        ("patience", -1),
        ("patience", 4097),
        ("logging_steps", 0),
        ("eval_steps", -1),
        ("save_steps", 0),
        ("max_new_tokens", 0),
        ("dropout", -0.1),
        ("dropout", 0.95),
        ("token_dropout", -0.1),
        ("token_dropout", 0.95),
        ("temperature", 0.0),
        ("temperature", 1e-40),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("prompt", ""),
        ("seed", -1),
    ],
)
def test_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name}={re.escape(repr(value))}"):
        params(**{name: value})


@pytest.mark.parametrize(
    ("reservoirs", "named"),
    [
        ("", "kind:size"),
        ("tanh:10 blocks:3", "blocks=3"),
        ("delay:4 + tanh:10 leak:1.5", "leak=1.5"),
        ("tanh:10 | linear:4 spectral_radius:1.0", "spectral_radius=1.0"),
        ("tanh:10 spectral_radius:0.0", "spectral_radius=0.0"),
    ],
)
def test_impossible_reservoirs_are_refused_by_name(reservoirs, named):
    with pytest.raises(ValueError, match=rf"^reservoirs: .*{re.escape(named)}"):
        params(reservoirs=reservoirs)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_value_of_a_wrong_type_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"^{name}=\[\]"):
        params(**{name: []})


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 1.0, "top_k": 0, "dropout": 0.0, "input_codes": 0, "readout_blocks": 0, "attention_heads": 0},
        {"sequence_length": 8, "vocab_size": 257, "num_stories": 20, "reservoirs": "delay:1", "temperature": 0.05},
        {"sequence_length": 4096, "reservoirs": "tanh:8192", "tokenizer": "gpt2", "dropout": 0.9, "patience": 4096},
    ],
    ids=["one end", "smallest", "largest"],
)
def test_values_at_the_ends_are_taken(changes):
    made = params(**changes)
    assert {name: getattr(made, name) for name in changes} == changes


def test_zero_stories_means_the_recipes_count_for_the_hub_and_all_elsewhere(tmp_path):
    (tmp_path / "stories.txt").write_text("a story")
    wanted = [
        params(data_source=source, num_stories=count).stories_wanted
        for source in ("sample", str(tmp_path / "stories.txt"), str(tmp_path), "roneneldan/TinyStories")
        for count in (0, 70)
    ]
    assert wanted == [0, 70, 0, 70, 0, 70, HUB_STORIES, 70]


# ---- recipe


SMALL, LARGE = (SMALL_TEXT - 1, 2048), (SMALL_TEXT, 8192)  # tokens of the text and of a step


@pytest.mark.parametrize(("text", "step"), [SMALL, LARGE])
@pytest.mark.parametrize("length", [8, 16, 32, 64, 128, 256])
def test_a_step_of_the_recipe_has_2048_tokens_and_8192_of_a_large_text(length, text, step):
    assert recipe(length, text).batch_size * length == step


@pytest.mark.parametrize(("text", "step"), [SMALL, LARGE])
@pytest.mark.parametrize("length", [9, 100, 513, 600, 1000, 1025, 2048, 4096])
def test_blocks_of_a_step_are_the_multiple_of_eight_that_fits_best(length, text, step):
    batch_size = recipe(length, text).batch_size
    assert batch_size % 8 == 0
    assert batch_size == 8 or batch_size * length <= step < (batch_size + 8) * length


@pytest.mark.parametrize("tokens", [50_000, 1_000_000, 5_000_000])
def test_recipe_reads_the_text_as_often_as_it_says(tokens):
    made = recipe(256, tokens)
    step = made.batch_size * 256
    assert 0 <= EPOCHS * tokens - made.max_steps * step < step or made.max_steps == LONGEST_RECIPE


def test_steps_of_the_recipe_are_bounded():
    assert recipe(256, 10**9).max_steps == LONGEST_RECIPE
    assert recipe(256, 1).max_steps == 1


# ---- blocks


@pytest.mark.parametrize(("batch_size", "length", "devices"), [(8, 16, 1), (24, 10, 8), (5, 33, 1), (16, 16, 2)])
def test_blocks_fill_whole_steps_and_whole_evaluation_batches(corpus, batch_size, length, devices):
    made = planned(batch_size, length, devices)
    train, validation = corpus.blocks(made)
    batch = corpus.evaluation_batch(made)
    assert len(train) % batch_size == 0 and 0 <= len(corpus.train) // length - len(train) < batch_size
    assert len(validation) % batch == 0 and 0 <= len(corpus.validation) // length - len(validation) < batch
    assert batch % devices == 0 and batch <= made.micro_batch_size


def test_evaluation_batch_shrinks_to_a_short_validation_text(corpus):
    available = len(corpus.validation) // 64
    assert 4 <= available < 64
    assert corpus.evaluation_batch(planned(64, 64)) == available
    assert corpus.evaluation_batch(planned(64, 64, device_count=4)) == available // 4 * 4
    assert len(corpus.blocks(planned(64, 64, device_count=4))[1]) == available // 4 * 4


def test_validation_text_that_devices_cannot_share_is_refused(corpus):
    with pytest.raises(ValueError, match=r"sequence_length=64, batch_size=64.*use more stories"):
        corpus.blocks(planned(64, 64, device_count=64))


def test_validation_reads_no_more_tokens_than_it_needs(corpus, monkeypatch):
    monkeypatch.setattr(experiment, "VALIDATION_TOKENS", 600)
    assert len(corpus.blocks(planned(8, 16))[1]) == 600 // 16 // 8 * 8
    monkeypatch.setattr(experiment, "VALIDATION_TOKENS", 16)
    assert len(corpus.blocks(planned(8, 16))[1]) == 8


# ---- measures


def test_measures_by_hand_on_a_tiny_text(corpus):
    _, validation = corpus.blocks(planned(4, 16))
    blocks = [block["input_ids"].tolist()[1:] for block in validation]
    text = "".join(corpus.tokenizer.decode(ids, skip_special_tokens=True) for ids in blocks)
    assert len(text.encode()) < sum(map(len, blocks)) * 5  # plain text, nothing lost or doubled
    measured = experiment.metrics(2.0, corpus, validation)
    assert measured == {
        "loss": 2.0,
        "perplexity": pytest.approx(math.exp(2.0), rel=1e-12),
        "bits_per_byte": pytest.approx(2.0 / math.log(2) * 15 * len(validation) / len(text.encode()), rel=1e-12),
    }


def test_perplexity_of_a_hopeless_model_is_large_and_finite(corpus):
    _, validation = corpus.blocks(planned(4, 16))
    assert 1e300 < experiment.metrics(5000.0, corpus, validation)["perplexity"] < math.inf


def test_baselines_order_as_they_must(corpus):
    _, validation = corpus.blocks(planned(4, 16))
    found = experiment.baselines(corpus, validation)
    assert list(found) == ["unigram", "bigram", "Kneser-Ney trigram"]
    for measure in ("loss", "perplexity", "bits_per_byte"):
        assert found["bigram"][measure] < 0.8 * found["unigram"][measure]
        assert found["Kneser-Ney trigram"][measure] < found["bigram"][measure]
    assert found["unigram"]["loss"] < math.log(GOOD["vocab_size"]) - 0.5


# ---- model and stories


def test_new_model_is_of_the_asked_for_kind(corpus):
    asked = params(
        reservoirs="tanh:100 spectral_radius:0.7 leak:0.3 input_scaling:0.5 density:0.25 | linear:7",
        input_codes=0,
        embedding_size=12,
        readout_blocks=3,
        readout_size=20,
        attention_heads=2,
        tie_embeddings=False,
        dropout=0.2,
        token_dropout=0.3,
    )
    model = experiment.new_model(asked, corpus)
    (tanh,), (linear,) = model.reservoirs.layers
    assert np.abs(np.linalg.eigvals(tanh.weight[0].numpy())).max() == pytest.approx(0.7, abs=1e-3)
    assert float((tanh.weight != 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert 0.49 < float(tanh.input_weight.max()) <= 0.5
    assert (tanh.spec.leak, linear.spec.size) == (0.3, 7)
    assert (model.dropout.p, model.config.token_dropout) == (0.2, 0.3)
    assert model.embedding.weight.shape == (len(corpus.tokenizer), 12)
    assert sum(len(blocks) for blocks in model.blocks) == 3 and model.blocks[0][0].down.in_features == 20
    assert model.projections[0].attention.out_features == 2
    assert model.head.weight is not model.embedding.weight
    assert model.head.out_features == len(corpus.tokenizer)
    assert model.generation_config.eos_token_id == corpus.tokenizer.eos_token_id


def test_codes_of_more_numbers_than_there_are_tokens_are_refused_by_name(corpus):
    size = len(corpus.tokenizer)
    with pytest.raises(ValueError, match=f"input_codes={size}: must be below the vocabulary's {size} tokens"):
        experiment.new_model(params(input_codes=size), corpus)


@pytest.mark.parametrize(("input_codes", "rank"), [(0, 32), (5, 5)])
def test_reservoirs_see_a_token_by_as_many_numbers_as_its_code_has(corpus, input_codes, rank):
    tanh = experiment.new_model(params(input_codes=input_codes), corpus).reservoirs.layers[0][1]
    assert np.linalg.matrix_rank(tanh.input_weight.numpy(), tol=1e-3) == rank


def test_seed_parameter_sets_reservoirs_codes_and_readout(corpus):
    first, again, other = (experiment.new_model(params(seed=seed), corpus).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    same = [name for name in first if torch.equal(first[name], other[name])]
    assert not [name for name in same if not name.endswith("bias") and "norm" not in name and "recall" not in name], (
        same
    )


# ---- the closed-form readout and the diagnostics


def ridge(model, corpus, length: int = 16, batch_size: int = 8) -> dict[str, float]:
    made = planned(batch_size, length)
    train, validation = corpus.blocks(made)
    train.states_BS, validation.states_BS = states_before(model, train), states_before(model, validation)
    trainer = SimpleNamespace(model=model, train_dataset=train, eval_dataset=validation, plan=made)
    return experiment.ridge(trainer, corpus)[1]


def test_ridge_readout_of_the_last_token_alone_is_a_bigram_model(corpus):
    """A delay line of one token with more floats than tokens: least squares then estimates P(next | last)."""
    model = experiment.new_model(params(reservoirs=f"delay:{len(corpus.tokenizer)} delays:1", input_codes=0), corpus)
    found, counted = ridge(model, corpus), experiment.baselines(corpus, corpus.blocks(planned())[1])
    assert (
        counted["bigram"]["loss"] - 0.05
        < found["loss"]
        < 0.5 * (counted["unigram"]["loss"] + counted["bigram"]["loss"])
    )


def test_ridge_readout_sees_further_back_with_more_memory(corpus):
    size = len(corpus.tokenizer)
    losses = [
        ridge(experiment.new_model(params(reservoirs=f"delay:{size} delays:{delays}", input_codes=0), corpus), corpus)[
            "loss"
        ]
        for delays in (1, 2)
    ]
    assert losses[1] < losses[0] - 0.02


def test_ridge_readout_is_of_the_last_layer_and_changes_nothing(corpus):
    """What stands above a layer that says nothing of the text cannot say more than the unigram."""
    model = experiment.new_model(
        params(reservoirs="delay:300 delays:1 | tanh:4 input_scaling:1e-6 bias_scaling:0"), corpus
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = [ridge(model, corpus) for _ in range(2)]
    unigram = experiment.baselines(corpus, corpus.blocks(planned())[1])["unigram"]
    assert found[0] == found[1]
    assert found[0]["loss"] > unigram["loss"] - 0.02
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_ridge_readout_is_fitted_without_dropped_tokens(corpus):
    dropped, whole = (experiment.new_model(params(token_dropout=share), corpus).train() for share in (0.5, 0.0))
    assert ridge(dropped, corpus) == ridge(whole, corpus)


def test_ridge_readout_of_a_text_of_few_blocks_is_fitted_too(corpus):
    length = 2000
    assert 4 <= len(corpus.train) // length < experiment.RIDGE_ROWS  # one batch of the usual size
    assert math.isfinite(ridge(experiment.new_model(params(), corpus), corpus, length, batch_size=1)["loss"])


def test_the_ridge_model_predicts_tells_and_is_saved_as_a_trained_one(corpus, tmp_path):
    made, model = planned(8, 16), experiment.new_model(params(), corpus)
    train, validation = corpus.blocks(made)
    train.states_BS, validation.states_BS = states_before(model, train), states_before(model, validation)
    trainer = SimpleNamespace(model=model, train_dataset=train, eval_dataset=validation, plan=made)
    ridge_model, found = experiment.ridge(trainer, corpus)
    ids_BT = torch.from_numpy(validation.ids_BT.astype(np.int64))
    states_BS = torch.from_numpy(np.array(validation.states_BS))[:, : ridge_model.reservoirs.state_size]
    with torch.no_grad():
        loss = float(ridge_model(ids_BT, labels=ids_BT, state=states_BS).loss)
    assert loss == pytest.approx(found["loss"], abs=1e-5)
    ridge_model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert experiment.tell(loaded, corpus.tokenizer, params()) == experiment.tell(
        ridge_model, corpus.tokenizer, params()
    )
    with torch.no_grad():
        kept = model.eval()(ids_BT[:2]).logits  # the trained model shares the reservoirs
        ids = corpus.tokenizer(" ".join(["Zed the zebra zooms to the zoo."] * 8), return_tensors="pt")["input_ids"]
        labels = ids.masked_fill(torch.arange(ids.shape[1]) < ids.shape[1] * 3 // 4, -100)
        before = float(loaded(ids, labels=labels).loss)
        loaded.learn(ids[:, : ids.shape[1] * 3 // 4], times=50)
        assert float(loaded(ids, labels=labels).loss) < before - 0.5
        assert torch.equal(model(ids_BT[:2]).logits, kept)


def test_diagnostics_name_each_reservoir_and_measure_what_was_asked_for(corpus, tmp_path):
    model = experiment.new_model(
        params(reservoirs="delay:8 delays:3 + tanh:32 spectral_radius:0.8 + linear:8 | tanh:9"), corpus
    )
    numbers, figure = experiment.diagnose(model, corpus, seed=0, path=tmp_path / "figures" / "diagnostics.png")
    assert list(numbers) == ["delay 1", "tanh 2", "linear 3"]
    assert numbers == json.loads(json.dumps(numbers))
    assert numbers["tanh 2"]["spectral_radius"] == pytest.approx(0.8, rel=0.01)
    assert numbers["linear 3"]["spectral_radius"] == pytest.approx(0.98, rel=0.01)
    assert numbers["delay 1"]["spectral_radius"] is None and numbers["delay 1"]["washout_tokens"] == 3
    assert all(values["memory_capacity"] > 0 for values in numbers.values())
    assert (tmp_path / "figures" / "diagnostics.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 3


@pytest.fixture(scope="module")
def model(corpus):
    return experiment.new_model(params(), corpus)


def test_a_story_leaves_the_global_generator_and_the_mode_as_they_were(corpus, model):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    experiment.tell(model.train(), corpus.tokenizer, params())
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    experiment.tell(model.eval(), corpus.tokenizer, params())
    assert not model.training


def test_a_story_depends_on_its_seed_alone(corpus, model):
    stories = []
    for global_seed, seed in ((1, 3), (2, 3), (3, 4)):
        torch.manual_seed(global_seed)
        stories.append(experiment.tell(model, corpus.tokenizer, params(seed=seed)))
    assert stories[0] == stories[1] != stories[2]
    assert stories[0].startswith(GOOD["prompt"])


def test_a_story_is_as_long_as_asked_for(corpus, model):
    lengths = [
        len(experiment.tell(model, corpus.tokenizer, params(), max_new_tokens=count).encode()) for count in (1, 10)
    ]
    prompt = len(GOOD["prompt"].encode())
    assert prompt < lengths[0] <= prompt + 16
    assert lengths[1] > lengths[0]


def test_temperature_changes_the_story(corpus, model):
    stories = {experiment.tell(model, corpus.tokenizer, params(temperature=t)) for t in (0.05, 5.0)}
    assert len(stories) == 2


def test_special_tokens_of_a_tokenizer_do_not_get_into_the_prompt(corpus, model, splits):
    tokenizer, _ = load_tokenizer("train", splits.train, GOOD["vocab_size"])
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    assert tokenizer("a")["input_ids"][0] == tokenizer.eos_token_id
    assert experiment.tell(model, tokenizer, params()) == experiment.tell(model, corpus.tokenizer, params())


# ---- the real trainer, in a process of its own: transformers takes the device that it finds first

TRAINER = """
import dataclasses, json, math, os, shutil, sys
given = json.loads(sys.argv[1])
from helpers import runtime
machine = runtime.detect(use_tpu=False, precision="fp32")
import torch
torch.set_num_threads(1)
from helpers.plan import plan
from helpers.reservoir import experiment
from helpers.reservoir.parameters import ReservoirParameters, recipe
from helpers.reservoir.transformer import equal_transformer
from helpers.reservoir.workload import workload
from torch.utils.flop_counter import FlopCounterMode
from helpers.reservoir.blocks import states_before
from helpers.reservoir.stories import load_stories
from helpers.reservoir.tokens import load_tokenizer

params = ReservoirParameters(**given["params"])
splits = load_stories("sample", num_stories=given["stories"], seed=0)
tokenizer, _ = load_tokenizer("train", splits.train, params.vocab_size)
corpus = experiment.tokenise(splits, tokenizer)
step = workload(experiment.new_model(params, corpus), "small", params.sequence_length)
made = plan(recipe(16, len(corpus.train)), step, machine, batch_size=8, max_steps=20, learning_rate=1e-2)

def trainer(name, settings=made, model=None):
    model = model or experiment.new_model(params, corpus)
    return experiment.new_trainer(model, corpus, params, settings, machine, experiment.Path(given["folder"]) / name)

uniform = trainer("uniform")
with torch.no_grad():
    uniform.model.head.weight.zero_()  # the embedding too, which is tied to it
answers = {"uniform": experiment.evaluate(uniform, corpus), "vocabulary": len(tokenizer)}

untrained = trainer("untrained")
answers["untrained"] = experiment.evaluate(untrained, corpus)
total, count, state = 0, 0, None
with torch.no_grad():
    for block in untrained.eval_dataset:  # one after the other, the state handed on
        output = untrained.model.eval()(block["input_ids"][None], state=state)
        state, logits = output.state, output.logits[0].double().log_softmax(-1)
        total -= float(logits[:-1].gather(-1, block["input_ids"][1:, None]).sum())
        count += len(logits) - 1
answers["untrained by hand"] = total / count

two = dataclasses.replace(made, device_count=2, per_device_batch_size=4)
answers["eval batch"] = [trainer("two", two).args.per_device_eval_batch_size, corpus.evaluation_batch(two)]
with FlopCounterMode(display=False) as counter:
    step.loss(step.model.train(), step.batch(8, 16)).backward()
answers["flops"] = [untrained.meter.flops_per_token, counter.get_total_flops() / (8 * 16)]
llama = equal_transformer(len(tokenizer), 20_000, 16, seed=0, eos_token_id=tokenizer.eos_token_id)
patient = params.model_copy(update={"patience": 7})
chosen = experiment.new_trainer(llama, corpus, patient, made, machine, experiment.Path(given["folder"]) / "patient")
answers["patience"] = [
    [callback.early_stopping_patience for callback in each.callback_handler.callbacks if "EarlyStopping" in str(callback)]
    for each in (trainer("plain"), chosen)
]

weights = []
for name in ("with stories", "without"):
    run = trainer(name)
    if name == "without":
        run.remove_callback(experiment.StoryAtEvaluation)
    before = {n: b.clone() for n, b in run.model.named_buffers()}
    run.train()
    weights.append({n: p.detach().clone() for n, p in run.model.named_parameters()})
    answers["reservoir unchanged"] = all(torch.equal(b, before[n]) for n, b in run.model.named_buffers())
answers["losses"] = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
answers["stories change nothing"] = all(torch.equal(p, weights[1][n]) for n, p in weights[0].items())
shutil.rmtree(experiment.Path(given["folder"]) / "without" / "checkpoint-20")  # as if the machine had gone before
run = trainer("without")
answers["state carried"] = [len(run.train_dataset), int(run.train_dataset.states_BS.any(1).sum())]
run.train(resume_from_checkpoint=True)
answers["resumed from"] = run.results()["train"]["resumed_from_step"]
answers["resumed to the same"] = all(torch.equal(p, weights[1][n]) for n, p in run.model.named_parameters())
print("ANSWERS " + json.dumps(answers))
"""

STORY_ON_XLA = """
import json, os, sys
os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8", TF_CPP_MIN_LOG_LEVEL="3")
given = json.loads(sys.argv[1])
import torch
from helpers import xla
device = xla.start()
from helpers.attention import use_one_dtype
from helpers.reservoir import experiment
from helpers.reservoir.parameters import ReservoirParameters
from helpers.reservoir.blocks import states_before
from helpers.reservoir.stories import load_stories
from helpers.reservoir.tokens import load_tokenizer
from helpers.reservoir.transformer import equal_transformer

params = ReservoirParameters(**given["params"])
splits = load_stories("sample", num_stories=given["stories"], seed=0)
tokenizer, _ = load_tokenizer("train", splits.train, 300)
corpus = experiment.tokenise(splits, tokenizer)
reservoir = experiment.new_model(params, corpus)
llama = equal_transformer(len(tokenizer), 20_000, 16, seed=0, eos_token_id=tokenizer.eos_token_id)
answers = {"stories": {}}
for name, model in {"reservoir": reservoir, "transformer": llama}.items():
    on_cpu = experiment.tell(model, tokenizer, params)
    model.to(device)
    use_one_dtype(model)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    answers["stories"][name] = [on_cpu, experiment.tell(model, tokenizer, params)]
    answers[f"generator unchanged by the {name}"] = torch.equal(torch.get_rng_state(), before)
    answers[f"device of the {name}"] = str(model.device)
print("ANSWERS " + json.dumps(answers))
"""


def answers_of(script: str, folder: Path) -> tuple[dict, str]:
    given = {"params": GOOD, "stories": STORIES, "folder": str(folder)}
    process = forked.run("-c", script, json.dumps(given), xla=script == STORY_ON_XLA)
    assert process.returncode == 0, process.stderr[-3000:]
    said, answers = process.stdout.rsplit("ANSWERS ", 1)
    return json.loads(answers), said


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[dict, str]:
    return answers_of(TRAINER, tmp_path_factory.mktemp("runs"))


@pytest.mark.once
def test_a_uniform_model_evaluates_to_the_logarithm_of_the_vocabulary(trained):
    answers, _ = trained
    assert answers["uniform"]["loss"] == pytest.approx(math.log(answers["vocabulary"]), abs=1e-5)
    assert answers["uniform"]["perplexity"] == pytest.approx(answers["vocabulary"], rel=1e-5)


@pytest.mark.once
def test_evaluation_is_the_mean_over_all_predicted_tokens_of_one_long_text(trained):
    answers, _ = trained
    assert answers["untrained"]["loss"] == pytest.approx(answers["untrained by hand"], rel=1e-5)


@pytest.mark.once
def test_two_processes_share_an_evaluation_batch(trained):
    per_device, whole = trained[0]["eval batch"]
    assert per_device * 2 == whole


@pytest.mark.once
def test_work_a_token_is_what_torch_counts_in_a_step(trained):
    planned_flops, counted = trained[0]["flops"]
    assert planned_flops == pytest.approx(counted, rel=1e-12)


@pytest.mark.once
def test_patience_reaches_the_trainer_and_zero_never_stops(trained):
    assert trained[0]["patience"] == [[], [7]]


@pytest.mark.once
def test_training_moves_the_loss_and_never_the_reservoir(trained):
    losses = trained[0]["losses"]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.3
    assert trained[0]["reservoir unchanged"] is True


@pytest.mark.once
def test_a_run_with_carried_states_resumes_to_the_same_weights(trained):
    answers, _ = trained
    blocks, with_state = answers["state carried"]
    assert with_state > blocks / 2
    assert answers["resumed from"] == 10 and answers["resumed to the same"] is True


@pytest.mark.once
def test_stories_told_at_evaluation_are_shown_and_change_no_weight(trained):
    answers, said = trained
    told = re.findall(r"^    step (\d+): (.*)$", said, re.MULTILINE)
    assert [step for step, _ in told] == ["10", "20", "20"]  # the last of the run that was resumed
    assert all(story.startswith(GOOD["prompt"]) for _, story in told)
    assert answers["stories change nothing"] is True


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_a_story_of_a_model_on_xla_is_the_cpus_and_leaves_the_generator_alone(tmp_path):
    answers, _ = answers_of(STORY_ON_XLA, tmp_path)
    for name in ("reservoir", "transformer"):
        on_cpu, on_xla = answers["stories"][name]
        assert on_cpu == on_xla
        assert answers[f"generator unchanged by the {name}"] is True
        assert answers[f"device of the {name}"].startswith("xla")


def test_every_parameter_of_a_run_is_checked_here():
    assert set(ReservoirParameters.model_fields) == set(GOOD)
