"""The classifier on eight virtual XLA devices: its trainer."""

from tests.harness import results, train_all
from tests.train.test_trainer import ON_XLA

pytestmark = ON_XLA
DRIVER = "tests.tuning_run"


def test_eight_devices_train_without_recompiling_and_evaluate_every_row(tmp_path):
    settings = {"bf16": {"bf16": True}, "fp32": {}}
    runs = [(tmp_path / name, {"kind": "xla", "settings": changes}) for name, changes in settings.items()]
    found, eager = results(train_all(DRIVER, runs))
    for each in (found, eager):
        assert each["late"] == {"compiles": 0, "transfers": 0}
    assert len(found["logits"]) == 19 and found["train"]["loss_last"] < 2  # 19 is no multiple of eight
