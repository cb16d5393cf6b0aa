"""Eight virtual XLA devices beside a CPU: SIGReg and the loss, the trainer, encoding; and a killed run on both."""

import pytest

from tests.harness import answers_on_xla, assert_killed_run_ends_as, result
from tests.train.test_trainer import ON_XLA, SLOW_ON_XLA

from .conftest import run

STOCK = pytest.param("cpu", "ranking", marks=pytest.mark.once)


@pytest.mark.parametrize(
    ("kind", "loss"), [*(pytest.param(*kind.values, "lejepa", marks=kind.marks) for kind in SLOW_ON_XLA), STOCK]
)
def test_a_killed_run_ends_with_identical_weights_and_losses(kind, loss, tmp_path):
    options = {"kind": kind, "loss": loss, "steps": 8, "accumulation": 2 if kind == "cpu" and loss == "lejepa" else 1}
    whole = tmp_path / "whole", result(run(tmp_path / "whole", **options))
    fresh = (kind, loss) == ("cpu", "lejepa")
    resumed = assert_killed_run_ends_as(whole, run, tmp_path / "cut", 7, 4, fresh=fresh, **options)
    assert resumed["late"]["compiles"] == 0


# ---- the loss

LOSS = """
import json
import torch
import torch_xla
torch.set_num_threads(1)
from helpers.machine import xla
from tests.harness import counters
from tests.lejepa.test_loss import INPUTS, K, SIGReg, batch, build, error, integral, lejepa, total, value_and_gradient

device = xla.start()
answers = {"error": {}, "sharded": []}
module = SIGReg(16).to(device)
for step, (name, draw) in enumerate(INPUTS.items()):
    torch.manual_seed(step)
    embeddings_NK = draw(64, K)
    leaf = xla.shard_batch(embeddings_NK.to(device)).requires_grad_()
    value = module(leaf[None], step)
    value.backward()
    xla.sync()
    answers["sharded"].append(torch_xla._XLAC._get_xla_sharding_spec(leaf))
    expected = value_and_gradient(lambda z: integral(z, module.slices(K, step)), embeddings_NK.double())
    answers["error"][name] = error((value.item(), leaf.grad), expected)


def train(device):
    loss = lejepa(build().to(device), contrastive_weight=0.2).to(device)
    optimizer = torch.optim.SGD(loss.parameters(), 0.05)
    on_xla = device.type == "xla"
    if on_xla:
        xla.replicate(loss.model)
    losses, compiles, syncs = [], [], []
    for step in range(6):
        features = [{k: v.to(device) for k, v in view.items()} for view in batch(N=16, seed=step)]
        if on_xla:
            for view in features:
                for tensor in view.values():
                    xla.shard_batch(tensor)
            xla.sync()
            before = counters()
        optimizer.zero_grad()
        value = total(loss(features))
        value.backward()
        optimizer.step()
        losses.append(value.detach())
        if on_xla:
            xla.sync()
            after = counters()
            compiles.append(after["compiles"] - before["compiles"])
            syncs.append(sum(after[name] - before[name] for name in ("host_transfers", "item_calls")))
    return [float(value) for value in losses], compiles, syncs


answers |= {"cpu": train(torch.device("cpu")), "xla": train(device)}
print("ANSWERS " + json.dumps(answers))
"""


def test_eight_devices_have_the_sigreg_and_gradient_of_the_whole_batch():
    on_xla = answers_on_xla(LOSS)
    assert set(on_xla["sharded"]) == {"{devices=[8,1]0,1,2,3,4,5,6,7}"}
    assert all(found < 1e-5 for found in on_xla["error"].values()), on_xla["error"]


def test_losses_on_eight_devices_equal_the_cpus_and_nothing_waits():
    on_xla = answers_on_xla(LOSS)
    losses, compiles, syncs = on_xla["xla"]
    assert losses == pytest.approx(on_xla["cpu"][0], rel=1e-4)
    assert compiles[0] > 0 and compiles[2:] == [0] * 4
    assert syncs == [0] * 6


# ---- the trainer


@ON_XLA
def test_a_run_on_eight_devices_has_the_losses_of_a_cpu(finished):
    options = {"steps": 12, "dropout": 0.0, "logging_steps": 4, "save_steps": 12}
    ours = finished(**options, kind="xla", lengths=(("query", 48), ("document", 32)))
    reference = finished(**options)
    assert ours["losses"] == pytest.approx(reference["losses"], rel=1e-4)
    assert ours["late"] == {"compiles": 0, "transfers": 0}
    assert ours["shapes"] == [[8, 32], [8, 48]]
    whole = {spec for name, spec in ours["sharding"].items() if name.endswith(("input_ids", "attention_mask"))}
    assert whole == {"{devices=[8,1]0,1,2,3,4,5,6,7}"}


ENCODED = """
import json, random
from helpers.machine import runtime, xla
from helpers.train.sentence_encoder import encode, load_sentence_encoder
from tests.harness import counters
machine = runtime.detect(True)
draw = random.Random(0)
texts = [" ".join(draw.choices(["tide", "harbour", "moon", "cliff"], k=draw.randint(1, 40))) for _ in range(150)]
model = load_sentence_encoder("sample", texts=texts, max_seq_length=48)
on_cpu, seen = encode(model, texts), []
model = model.to(machine.device)
for count in (150, 150, 70):
    before = counters()
    difference = float(abs(encode(model, texts[:count]) - on_cpu[:count]).max())
    after = counters()
    seen.append([difference, *(after[name] - before[name] for name in ("compiles", "host_transfers", "item_calls"))])
print("ANSWERS", json.dumps(seen))
"""


def test_texts_are_encoded_on_the_chip_in_four_lengths_that_compile_once():
    first, again, fewer = answers_on_xla(ENCODED)
    assert all(difference < 1e-5 for difference, *_ in (first, again, fewer))
    assert first[1] <= 4 and again[1:] == [0, 3, 0] and fewer[1:] == [0, 2, 0]
