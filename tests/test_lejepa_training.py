"""EmbeddingTrainer on real, tiny runs: exact resume with the loss's state, TPU rules, exports."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.lejepa.loss import LeJEPALoss, workload
from helpers.lejepa.model import column_prompts, freeze
from helpers.lejepa.sigreg import SIGReg
from helpers.lejepa.training import flops_per_token, padded
from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.plan.counting import LiveBytes, count
from helpers.plan.settings import Recipe, plan
from helpers.run import checkpoint

from . import forked
from .lejepa_run import PROBE, build_model, sentences
from .workloads import plan_by_hand

DRIVER = Path(__file__).with_name("lejepa_run.py")
ON_XLA = pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
KINDS = [pytest.param("cpu", marks=pytest.mark.once), pytest.param("xla", marks=ON_XLA)]
SPLIT_OVER_8 = "{devices=[8,1]0,1,2,3,4,5,6,7}"
NDCG = "eval_retrieval_cosine_ndcg@10"


def run(output_dir: Path, fresh: bool = False, **options) -> subprocess.CompletedProcess:
    return forked.run(DRIVER, output_dir, json.dumps(options), xla=options.get("kind") == "xla", fresh=fresh)


def result(process: subprocess.CompletedProcess) -> dict:
    assert process.returncode == 0, process.stderr[-3000:]
    # Of two processes the other may print on the same line.
    return json.JSONDecoder().raw_decode(process.stdout.split("RESULT ", 1)[1])[0]


def fingerprint(output_dir: Path, step: int) -> dict[str, str]:
    """Bytes of everything that training continues from."""
    last = checkpoint.folder(output_dir, step)
    assert checkpoint.damage(last) is None
    names = ["model.safetensors", "2_Dense/model.safetensors", "optimizer.pt", "scheduler.pt"]
    return {name: hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names}


def scores(outcome: dict) -> list[float]:
    """nDCG@10 of each evaluation."""
    return [entry[NDCG] for entry in outcome["history"] if NDCG in entry]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder and results of runs by their options; each runs once."""
    runs = {}

    def of(**options) -> tuple[Path, dict]:
        key = tuple(sorted(options.items()))
        if key not in runs:
            folder = tmp_path_factory.mktemp("run")
            runs[key] = folder, result(run(folder, **options))
        return runs[key]

    return of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("encoder"), dropout=0.0)


# ---- batches


@pytest.mark.parametrize("longest", [6, 16, 30, 48])
def test_texts_have_at_most_four_lengths_and_one_on_xla(model, longest):
    few, one = (padded(model, longest, one=one) for one in (False, True))
    texts = [" ".join(["word"] * words) for words in range(1, 60)]
    lengths = {few([text])["input_ids"].shape[1] for text in texts}
    assert len(lengths) <= 4 and max(lengths) == longest
    assert {one([text])["input_ids"].shape[1] for text in texts} == {longest}


def test_padding_changes_no_embedding_and_cuts_where_stock_does(model):
    texts = sentences(8, seed=5)
    stock = model.preprocess(texts, prompt="query: ", max_length=24)
    ours = padded(model, 24, one=False)(texts, prompt="query: ")
    short = padded(model, 64, one=True)(texts[:1], prompt="query: ")
    assert short["input_ids"].shape == (1, 64) and ours["input_ids"].shape == stock["input_ids"].shape == (8, 24)
    model.eval()
    with torch.no_grad():
        both = [model(dict(features))["sentence_embedding"] for features in (stock, ours)]
        alone = model(dict(model.preprocess(texts[:1], prompt="query: ")))["sentence_embedding"]
        wide = model(short)["sentence_embedding"]
    torch.testing.assert_close(both[1], both[0])
    torch.testing.assert_close(wide, alone)


def test_the_query_prompt_goes_to_the_first_column_and_the_document_prompt_to_the_others(model):
    expected = {"q": "query: ", "d": "document: ", "n": "document: "}
    assert column_prompts(model, ["q", "d", "n"]) == expected


# ---- bad input


# By hand: `detect` would settle for the whole process whether transformers may use XLA.
MACHINE = Runtime(
    kind="cpu", reason="", device_name="CPU", device_count=1, memory=None, compute_capability=None,
    precision="fp32", precision_reason="", torch=torch.__version__, torch_xla=None,
)  # fmt: skip
PLANNED = plan_by_hand(MACHINE, batch_size=8, steps=2, length=16)


def test_flops_count_neither_tables_nor_the_head(model):
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert flops_per_token(model) == 6 * (2 * layer + 64)
    bottom = model.transformers_model.encoder.layer[0].requires_grad_(False)
    assert flops_per_token(model) == 6 * (layer + 64) + 2 * layer
    bottom.requires_grad_(True)


# ---- one CPU run


@pytest.mark.once
def test_every_weight_of_encoder_and_head_gets_a_gradient_and_moves(finished):
    _, outcome = finished()
    assert outcome["silent"] == [] and outcome["still"] == []


@pytest.mark.once
def test_logs_hold_the_terms_of_which_the_loss_is_made(finished):
    _, outcome = finished()
    logged = [entry for entry in outcome["history"] if "loss" in entry]
    assert len(logged) == 12
    for entry in logged:
        made = 0.95 * entry["invariance"] + 0.05 * entry["sigreg"] + 0.1 * entry["contrastive"]
        assert entry["loss"] == pytest.approx(made, abs=1e-5)
        assert entry["sigreg_excess"] == pytest.approx(entry["sigreg"] - 1.0525, abs=1e-4)


@pytest.mark.once
def test_groups_have_their_rates_and_everything_else_the_plans(finished):
    _, outcome = finished()
    sizes = {}
    for rate, _, size in outcome["groups"]:
        sizes[rate] = sizes.get(rate, 0) + size
    head, layer = 32 * 16 + 16, 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert sizes[1e-2] == head and sizes[1e-4] == layer
    assert sizes[1e-3] > layer
    assert {decay for _, decay, _ in outcome["groups"]} == {0.0, 0.01}


@pytest.mark.once
@pytest.mark.parametrize(("freeze_layers", "rates"), [(1, {2e-6, 1e-3}), (-1, {1e-3})])
def test_the_notebooks_head_and_nothing_else_has_its_rate_and_trains(freeze_layers, rates, tmp_path):
    from helpers.lejepa import experiment
    from helpers.lejepa.parameters import EmbeddingParameters

    rows = [{"anchor": one, "positive": two} for one, two in zip(sentences(40, 0), sentences(40, 1), strict=True)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {"base_model": "sample", "freeze_layers": freeze_layers, "output_dim": 8, "head_learning_rate": 1e-3}
    params = EmbeddingParameters(data_source=str(tmp_path / "pairs.jsonl"), **settings)
    corpus = experiment.load_corpus(params)
    model = experiment.new_backbone(params, corpus)
    experiment.set_head(model, params, corpus)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    planned = dataclasses.replace(PLANNED, learning_rate=2e-6)
    trainer = experiment.lejepa_trainer(model, corpus, params, planned, MACHINE, tmp_path / "run")
    groups = [group for group in trainer.create_optimizer().param_groups if group["params"]]
    assert {group["lr"] for group in groups} == rates
    fast = {id(weight) for group in groups for weight in group["params"] if group["lr"] == 1e-3}
    assert fast == {id(weight) for weight in model[-1].parameters()}
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight) if weight.requires_grad else None
    trainer.optimizer.step()
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.once
def test_a_batch_has_every_row_and_one_of_few_lengths(finished):
    assert finished()[1]["shapes"] == [[8, 24], [8, 36], [8, 48]]


@pytest.mark.once
def test_another_sampler_keeps_the_shapes_and_the_best_checkpoint_is_the_evaluators(finished):
    _, outcome = finished(batch_sampler="no_duplicates")
    assert outcome["shapes"] == [[8, 24], [8, 36], [8, 48]]
    found = {entry["step"]: entry[NDCG] for entry in outcome["history"] if NDCG in entry}
    assert set(found) == {4, 8, 12} and found[outcome["best_step"]] == max(found.values())
    assert (
        f"the best evaluation (retrieval_cosine_ndcg@10 {max(found.values()):.4f})" in outcome["train"]["messages"][-1]
    )


# ---- chunks of a batch


@pytest.mark.once
def test_a_plan_that_accumulates_trains_on_the_whole_batch_in_chunks(finished):
    _, whole = finished(dropout=0.0, batch_size=16, steps=4)
    _, chunked = finished(dropout=0.0, batch_size=4, accumulation=4, steps=4)
    assert (whole["chunk"], chunked["chunk"]) == (0, 4)
    assert {rows for rows, _ in chunked["shapes"]} == {16}
    assert relative(chunked["losses"], whole["losses"]) < 1e-5
    assert scores(chunked) == pytest.approx(scores(whole), rel=1e-5)
    assert chunked["plan"]["batch_size"] == 16 and chunked["train"]["steps"] == 4


@pytest.mark.once
def test_out_of_memory_halves_the_chunk_and_keeps_the_batch(finished):
    _, whole = finished(dropout=0.0, batch_size=16, steps=4)
    _, shrunk = finished(dropout=0.0, batch_size=16, steps=4, fits=4)
    assert shrunk["chunk"] == 4 and {rows for rows, _ in shrunk["shapes"]} == {16}
    plan = shrunk["plan"]
    assert (plan["per_device_batch_size"], plan["gradient_accumulation_steps"], plan["batch_size"]) == (4, 4, 16)
    assert relative(shrunk["losses"], whole["losses"]) < 1e-5


@pytest.mark.once
@pytest.mark.parametrize(("freeze_layers", "chunk"), [(0, 16), (0, 4), (1, 4), (-1, 4)])
def test_the_planner_counts_the_step_in_chunks_as_it_is_taken(freeze_layers, chunk, tmp_path):
    model = build_model(tmp_path, dropout=0.1).train()
    freeze(model, freeze_layers)
    loss = LeJEPALoss(model, SIGReg(t_max=3, n_points=17, num_slices=16), sigreg_weight=0.05, contrastive_weight=1.0)
    step = workload(loss, "tiny", 48, views=2)
    counted = count(step, chunk, kind="cpu", precision="fp32", accumulating=chunk < 16)
    loss.chunk = chunk if chunk < 16 else 0
    columns = step.batch(16, 48)
    with LiveBytes([*loss.parameters(), *loss.buffers()]) as live:
        loss(columns).backward()
    assert counted.flops * 16 / chunk == pytest.approx(live.flops, rel=0.001)
    assert 0.95 < (counted.peak - counted.optimizer) / live.peak < 1.15


@pytest.mark.once
def test_a_batch_that_does_not_fit_is_planned_in_chunks(model):
    loss = LeJEPALoss(model, SIGReg(t_max=3, n_points=17, num_slices=16), sigreg_weight=0.05)
    recipe, step = (
        Recipe(batch_size=512, learning_rate=1e-3, max_steps=2, sequence_length=96),
        workload(loss, "tiny", 48, 2),
    )
    whole = plan(recipe, step, MACHINE)
    small = dataclasses.replace(MACHINE, memory=int(whole.memory.peak.low / 2))
    cut = plan(recipe, step, small)
    assert whole.per_device_batch_size == whole.batch_size == cut.batch_size == 512
    assert 2 <= cut.per_device_batch_size <= 256 and cut.memory.fits != "no"


# ---- resume


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_in_a_later_epoch_ends_with_identical_weights_and_losses(kind, finished, tmp_path):
    options = {"kind": "cpu"} if kind == "cpu" else {"kind": "xla", "steps": 8, "texts": 48, "accumulation": 2}
    last, killed_at, resumed_at = (12, 11, 8) if kind == "cpu" else (8, 6, 4)
    folder, reference = finished(**({} if kind == "cpu" else options))
    killed = run(tmp_path, **options, kill_step=killed_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    resumed = result(run(tmp_path, fresh=kind == "cpu", **options))
    assert resumed["train"]["resumed_from_step"] == resumed_at
    assert resumed["losses"] == reference["losses"]
    assert scores(resumed) == scores(reference)
    assert fingerprint(tmp_path, last) == fingerprint(folder, last)
    if kind == "xla":
        assert resumed["xla"]["compiles_after_warmup"] == 0


@pytest.mark.once
@pytest.mark.parametrize("options", [{"accumulation": 2}, {"loss": "ranking", "groups": False, "accumulation": 2}])
def test_chunks_and_a_loss_without_state_resume_exactly_too(options, tmp_path):
    options = {**options, "steps": 8, "texts": 24}
    reference = result(run(tmp_path / "whole", **options))
    assert run(tmp_path / "cut", **options, kill_step=7).returncode == -signal.SIGKILL
    resumed = result(run(tmp_path / "cut", **options))
    assert resumed["train"]["resumed_from_step"] == 4
    assert resumed["losses"] == reference["losses"]
    assert fingerprint(tmp_path / "cut", 8) == fingerprint(tmp_path / "whole", 8)


# ---- XLA


@pytest.fixture(scope="module")
def on_xla(finished, tmp_path_factory):
    """A run on 8 devices and the same on a CPU, with an evaluator and an export."""
    options = {"steps": 20, "dropout": 0.0, "logging_steps": 4, "eval_steps": 10, "save_steps": 10}
    options |= {"accumulation": 2, "texts": 80}
    export = str(tmp_path_factory.mktemp("export"))
    _, ours = finished(**options, kind="xla", export=export)
    _, reference = finished(**options)
    return ours, reference, export


def relative(values, reference) -> float:
    assert len(values) == len(reference) > 1
    return max(abs(value / expected - 1) for value, expected in zip(values, reference, strict=True))


@ON_XLA
def test_eight_xla_devices_and_a_cpu_give_the_same_losses_in_fp32(on_xla):
    ours, reference, _ = on_xla
    assert relative(ours["losses"], reference["losses"]) < 1e-4


@ON_XLA
def test_nothing_compiles_after_warm_up_and_no_value_leaves_the_device_between_logs(on_xla):
    assert on_xla[0]["xla"]["compiles_after_warmup"] == 0
    assert on_xla[0]["xla"]["host_syncs_per_step"] == 0
    moved = [after - before for before, after in zip(on_xla[0]["transfers"], on_xla[0]["transfers"][1:], strict=False)]
    # What a log moves is seen at the end of the step after it; step 1 is logged too.
    assert {step for step, count in enumerate(moved, start=2) if count} <= {2, 5, 9, 11, 13, 17}


def test_decays_never_round_to_the_same_factor_and_move_by_no_more_than_fp32_holds():
    for share in (1.0, 0.3, 0.04, 0.011, 1e-3, 1e-5):
        groups = [
            {"lr": rate * share, "weight_decay": decay}
            for rate, decay in [(1e-2, 0.01), (1e-3, 0.01), (1e-3, 0.0), (2e-3, 0.01), (1e-4, 0.01), (1e-3, 0.01)]
        ]
        decays = xla.distinct_decays(groups)
        factors = [1 - group["lr"] * decay for group, decay in zip(groups, decays, strict=True)]
        assert len({float(torch.tensor(factor)) for factor in factors}) == 5  # two groups are alike, one has none
        for group, factor in zip(groups, factors, strict=True):
            assert factor == pytest.approx(1 - group["lr"] * group["weight_decay"], abs=3e-7)


@ON_XLA
def test_all_columns_have_one_length_and_are_split_over_all_devices(on_xla):
    assert on_xla[0]["shapes"] == [[16, 48]]
    names = {f"{column}_{part}" for column in ("text", "part") for part in ("input_ids", "attention_mask")}
    assert on_xla[0]["sharding"] == dict.fromkeys(names, SPLIT_OVER_8)


@ON_XLA
def test_an_evaluator_sees_on_xla_what_it_sees_on_a_cpu(on_xla):
    ours, reference = map(scores, on_xla[:2])
    assert len(ours) == 2 and ours == pytest.approx(reference, abs=1e-6)


@ON_XLA
def test_a_model_saved_on_xla_loads_with_torch_alone_and_embeds_the_same(on_xla):
    ours, _, export = on_xla
    script = (
        "import json, sys; from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[1], device='cpu')\n"
        "rows = model.encode(json.loads(sys.argv[2]), show_progress_bar=False)\n"
        "print('RESULT', json.dumps([rows.tolist(), model.prompts, 'torch_xla' in sys.modules]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, export, json.dumps(PROBE)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "USE_TORCH_XLA": "0"},
    )
    rows, prompts, imported = result(process)
    assert not imported and prompts["query"] == "query: "
    torch.testing.assert_close(torch.tensor(rows), torch.tensor(ours["probe"]), rtol=0, atol=1e-6)
    names = {path.name for path in Path(export).rglob("*") if path.is_file()}
    assert {"modules.json", "README.md", "tokenizer.json"} <= names
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pth"))}


@pytest.mark.slow
@ON_XLA
def test_bf16_autocast_with_checkpointed_activations_stays_near_the_cpu(finished):
    options = {"steps": 4, "dropout": 0.0}
    _, on_cpu = finished(**options)
    _, ours = finished(**options, kind="xla", precision="bf16", checkpointing=True)
    assert relative(ours["losses"], on_cpu["losses"]) < 3e-2
    assert ours["losses"] != on_cpu["losses"]
