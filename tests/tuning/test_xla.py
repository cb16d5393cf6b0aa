"""The classifier on eight virtual XLA devices: its trainer."""

from tests.harness import result, train
from tests.train.test_trainer import ON_XLA

pytestmark = ON_XLA
DRIVER = "tests.tuning_run"


def test_eight_devices_train_without_recompiling_and_evaluate_every_row(tmp_path):
    found = result(train(DRIVER, tmp_path, kind="xla", settings={"bf16": True}))
    assert found["late"] == {"compiles": 0, "transfers": 0}
    assert len(found["logits"]) == 19 and found["train"]["loss_last"] < 2  # 19 is no multiple of eight
