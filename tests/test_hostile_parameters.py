"""Every parameter of every notebook against what a person, a shell or an attacker may put there."""

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.graphmer.parameters import GraphParameters
from helpers.legal.parameters import LegalParameters
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.reservoir.parameters import ReservoirParameters
from helpers.tuning.parameters import TuningParameters

from .hostile import MARKER, cases, guarded

pytestmark = pytest.mark.once

ROOMS = (ReservoirParameters, EmbeddingParameters, LegalParameters, GraphParameters, TuningParameters)
FIELDS = [(room, name) for room in ROOMS for name in room.model_fields]
TEXTS = (
    "../../etc/passwd", "/dev/zero", "/dev/stdin", "~nobody-of-this-name/x", "~\0", "./a\0b", "./" + "x/" * 3_000, "x" * 10**7,
    "\ud800", "./\ud800", "\u202e./x.txt", "é" * 300, "", " ", "\n", f"$(touch {MARKER})", "| cat /etc/passwd", "%s%n{0.__class__}",
    f"!!python/object/apply:os.system ['touch {MARKER}']", "model.num_layers=" + "[" * 3_000, "run.seed=&a [*a, *a]", "CON", "٣",
    f"run.seed=!!python/object/apply:os.system ['touch {MARKER}']", "run.seed=" + "9" * 5_000, "model.dropout=1e999", "=",
    "a.b=c;a.b=c", "run=1", "optimizer.betas=[1, 2, 3]", "training_data.short_to_long_curriculum.schedule={a: 1}", "run.__class__=1",
)  # fmt: skip
NUMBERS = (-1, 2**31, 2**64, 10**30, math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0)
OTHERS = (None, True, b"x", [], {}, object(), ["x"] * 9, 1j, range(3))


@cases(250)
@given(
    field=st.sampled_from(FIELDS),
    value=st.sampled_from(TEXTS)
    | st.sampled_from(NUMBERS)
    | st.sampled_from(OTHERS)
    | st.text(max_size=40)
    | st.integers()
    | st.floats(),
)
def test_a_value_is_taken_for_what_it_is_or_refused_with_its_parameter(tmp_path_factory, field, value):
    (room, name), around = field, tmp_path_factory.mktemp("around")
    os.chdir(around)
    with guarded(around, name, *GRAPH_KEYS if name in ("changes", "config") else ()):
        params = room(**{"data_source": "sample", name: value})
        assert type(getattr(params, name)) is type(room.model_fields[name].default)


GRAPH_KEYS = ("run", "model", "optimizer", "training_data", "config")
