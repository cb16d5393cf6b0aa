"""The classifier on eight virtual XLA devices: its trainer, and windows of the ladder."""

import pytest

from tests.harness import ROOT, result, results, train, train_all
from tests.test_resume import ON_XLA

pytestmark = ON_XLA
DRIVER = ROOT / "tests/tuning_run.py"


def test_eight_devices_train_without_recompiling_and_evaluate_every_row(tmp_path):
    settings = {"xla": {"bf16": True}, "eager": {"attn_implementation": "eager"}}
    runs = [(tmp_path / name, {"kind": "xla", "settings": changes}) for name, changes in settings.items()]
    found, eager = results(train_all(DRIVER, runs))
    for each in (found, eager):
        assert each["xla"]["compiles_after_warmup"] == each["xla"]["host_syncs_per_step"] == 0
    assert len(found["logits"]) == 19 and found["train"]["loss_last"] < 2  # 19 is no multiple of eight


@pytest.mark.slow
def test_on_eight_virtual_devices_real_windows_are_compared_until_the_rule_decides(tmp_path):
    """Sixteen real windows; their speed is that of a machine whose steps take as long as what they pad."""
    changes = [{"pad_to": 8}, {"bf16": True}]
    found = result(train(DRIVER, tmp_path, kind="xla", compare=changes))
    shorter, same = found["compared"]
    assert shorter["outcome"] == "kept" and shorter["detail"] == "2.00 x (2.00 to 2.00, 6 pairs)"
    assert same["outcome"] == "not faster" and same["detail"] == "1.00 x (1.00 to 1.00, 2 pairs)"
    # Within a pair they take turns, the other way round every second time.
    assert shorter["changed"] == 3 * [False, True, True, False] and same["changed"] == [False, True, True, False]
    assert all(0 < each["window"]["loss"] < 3 and each["window"]["step_seconds"] > 0 for each in (shorter, same))
