"""helpers.planning.architectures and jobs: closed forms against the real modules, torch's FLOP counter and autograd's saved tensors."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.planning import architectures, catalogue, jobs, workloads
from helpers.planning.calibration import sizes_of
from helpers.planning.live_bytes import LiveBytes

pytestmark = pytest.mark.once

SMALL = {
    "lejepa_training": {},
    "legal_cot_sft": {},
    "tinystories_reservoir": {},
    "graphmer_se": {},
    "hardware_tuning": {},
}
SIZES = ((4, 48), (6, 80))


@pytest.fixture(scope="module")
def built():
    made = {}

    def make(name, **settings):
        key = (name, *settings.items())
        if key not in made:
            job = catalogue.job(name, "small", **settings)
            made[key] = job, workloads.build(job)
        return made[key]

    return make


def counts(model) -> tuple[int, int]:
    """All weights, and those that take a gradient."""
    weights = list(model.parameters())
    return sum(w.numel() for w in weights), sum(w.numel() for w in weights if w.requires_grad)


def saved_bytes(workload, batch) -> int:
    """Bytes of storages that autograd keeps, weights and buffers apart."""
    known = {t.untyped_storage().data_ptr() for t in (*workload.model.parameters(), *workload.model.buffers())}
    seen, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # or its address would be given to the next one
        if tensor.untyped_storage().data_ptr() not in known:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        workload.loss(batch)
    return sum(seen.values())


# -- weights --


@pytest.mark.parametrize("name", ["lejepa_training", "legal_cot_sft", "graphmer_se", "hardware_tuning"])
def test_weights_are_counted_exactly(built, name):
    job, workload = built(name)
    loose = sum(part.parameters for part in job.parts if part.loose and part.trained)
    assert counts(workload.model) == (job.parameters, job.updated + loose)


def test_a_reservoirs_weights_are_counted_exactly(built):
    job, workload = built("tinystories_reservoir")
    assert workload.model.parameter_counts()["trainable"] == job.updated
    integers = sum(b.numel() for b in workload.model.buffers() if not b.is_floating_point())
    assert workload.model.parameter_counts()["frozen"] - integers == job.still


def test_loose_weights_are_those_without_a_gradient(built):
    for name in SMALL:
        job, workload = built(name)
        workload.model.train()
        workload.loss(workload.batch(*sizes_of(job, SIZES)[0])).backward()
        got = sum(w.numel() for w in workload.model.parameters() if w.grad is not None)
        workload.model.zero_grad(set_to_none=True)
        assert got == job.updated, name


@pytest.mark.parametrize(
    ("name", "model", "total", "trained"),
    [
        ("lejepa_training", "embeddinggemma", 302_863_104 + 2 * 768 * 3072 + 768 * 512 + 512, None),
        ("lejepa_training", "minilm", 22_713_216 + 384 * 512 + 512, None),
        ("legal_cot_sft", "qwen2.5-0.5b", 494_032_768 + 17_596_416, 17_596_416),
        ("hardware_tuning", "bert-base", 109_483_778, 109_483_778),
        ("hardware_tuning", "phobert", 134_999_810, 134_999_810),
    ],
)
def test_published_models_have_their_published_counts(name, model, total, trained):
    job = catalogue.job(name, model)
    assert job.parameters == total and (trained is None or job.updated == trained)


@pytest.mark.parametrize("name", ["small", "80m"])
def test_graphmer_agrees_with_its_own_count(name):
    from helpers.graphmer.architecture import GraphMERConfig, parameter_count

    job = catalogue.job("graphmer_se", name)
    sizes = job.sizes
    config = GraphMERConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        num_relations=job.settings["relations"],
        embedding_size=job.settings["embedding_size"],
    )
    assert job.parameters == parameter_count(config)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lejepa_training", {"freeze_layers": 0}),
        ("lejepa_training", {"freeze_layers": 3}),
        ("legal_cot_sft", {"method": "full"}),
        ("legal_cot_sft", {"lora_rank": 3}),
    ],
)
def test_what_is_trained_follows_the_settings(built, name, settings):
    job, workload = built(name, **settings)
    loose = sum(part.parameters for part in job.parts if part.loose)
    assert counts(workload.model) == (job.parameters, job.updated + loose)


def test_a_gemma_encoder_is_counted_exactly():
    job = architectures.lejepa_training(
        jobs.Sizes(family="gemma", vocab=300, width=32, layers=3, heads=2, kv_heads=1, head_size=16, inner=48),
        "tiny",
        freeze_layers=1,
        output_dim=8,
        num_slices=4,
        past_texts=4,
    )
    assert counts(workloads.build(job).model) == (job.parameters, job.updated)


# -- products --


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", SIZES)
def test_products_agree_with_the_flop_counter(built, name, size):
    job, workload = built(name)
    ((sequences, length),) = sizes_of(job, [size])
    workload.model.train()
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        workload.loss(workload.batch(sequences, length)).backward()
    workload.model.zero_grad(set_to_none=True)
    # What is left out: contrastive scores of a batch, recall's weights, H-GAT's scores.
    assert sum(job.flops(sequences, length)) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_backward_is_twice_forward_where_everything_is_trained():
    forward, backward = catalogue.job("hardware_tuning").flops(4)
    assert backward == 2 * forward


def test_frozen_first_layers_cost_no_backward():
    free, frozen = (catalogue.job("lejepa_training", freeze_layers=layers).flops(4) for layers in (0, 12))
    assert free[0] == frozen[0] and frozen[1] < 0.55 * free[1]


# -- what is kept for backward --


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", SIZES)
def test_what_backward_keeps_agrees_with_autograd(built, name, size):
    job, workload = built(name)
    ((sequences, length),) = sizes_of(job, [size])
    workload.model.train()
    counted = job.activation_bytes(sequences, length, "fp32", "cpu", job.is_fused("cpu")) - job.step_bytes * (
        name == "lejepa_training"  # the past texts are buffers
    )
    if job.logits and not job.logit_tile:
        counted += 4 * sequences * length * job.logits  # log-probabilities
    assert counted == pytest.approx(saved_bytes(workload, workload.batch(sequences, length)), rel=0.06)


def test_fused_attention_keeps_no_pairs_and_the_other_does():
    job = catalogue.job("hardware_tuning")
    fused, unfused = ([job.activation_bytes(1, T, "fp32", "cuda", on) for T in (128, 256)] for on in (True, False))
    assert fused[1] == 2 * fused[0] and unfused[1] > 2.1 * unfused[0]
    # Twelve layers of twelve heads keep two fp32 and one mask of a byte a pair, against one fp32 a query.
    assert unfused[0] - fused[0] == 12 * 12 * 128 * (9 * 128 - 4)


@pytest.mark.parametrize(("kind", "fused"), [("cuda", True), ("cpu", False), ("xla", False)])
def test_dropout_of_attention_weights_unfuses_it_on_a_cpu_and_xla_never_fuses(kind, fused):
    assert catalogue.job("hardware_tuning").is_fused(kind) is fused
    assert catalogue.job("graphmer_se").is_fused(kind) is False


# -- the catalogue --


@pytest.mark.parametrize("name", ["lejepa", "", "Legal_cot_sft"])
def test_an_unknown_job_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=r"unknown.*lejepa_training.*hardware_tuning"):
        catalogue.job(name)


def test_an_unknown_model_lists_the_jobs_own():
    with pytest.raises(ValueError, match=r"unknown for legal_cot_sft.*qwen2.5-0.5b"):
        catalogue.job("legal_cot_sft", "llama")


@pytest.mark.parametrize("examples", [100, 9_999, 10_000, 50_000])
def test_batch_and_rate_are_the_recipes(examples):
    from helpers.legal.parameters import recipe as legal
    from helpers.lejepa.parameters import recipe as lejepa
    from helpers.reservoir.parameters import recipe as reservoir

    recipes = {
        "lejepa_training": lejepa(examples, 2, 128),
        "legal_cot_sft": legal(round(examples * 0.72), 1024, "lora"),
        "tinystories_reservoir": reservoir(128, 10**8),
    }
    for name, recipe in recipes.items():
        job = catalogue.job(name)
        assert (job.recipe_batch(examples), job.learning_rate) == (recipe.batch_size, recipe.learning_rate)
        factors = (job.tpu_batch_factor, job.tpu_learning_rate_factor)
        assert factors == (recipe.tpu_batch_factor, recipe.tpu_learning_rate_factor)


# -- bytes that are alive --


def test_live_bytes_counts_a_storage_once_and_forgets_what_is_freed():
    model = torch.nn.Linear(4, 4, bias=False)
    with LiveBytes(model) as live:
        one = torch.zeros(1000)
        view = one.view(10, 100)
        two = one + 1
        del one, view, two
        three = torch.zeros(500)
    assert live.peak == 4 * (16 + 2000) and live.now == 4 * (16 + 500)
    del three


def test_live_bytes_begins_with_weights_gradients_and_optimizer_state():
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    assert LiveBytes(model, optimizer).now == 4 * (64 * 4 + 1)  # and AdamW's step counter
