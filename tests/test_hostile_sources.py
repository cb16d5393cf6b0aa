"""Source files and configurations of GraphMER against what somebody else may have put there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.graphmer.configuration import read_configuration
from helpers.graphmer.graph.build import build_graph
from helpers.graphmer.graph.index import read_index

from .hostile import MARKER, cases, guarded

pytestmark = pytest.mark.once


PYTHON = [
    b"\0", b"\xff\xfe", b"# coding: no-such-code\n", b"# coding: utf-7\n+AAA-", b"(" * 10_000, b"a = " + b"-" * 50_000 + b"1",
    b"a" + b".b" * 20_000, b"f" + b"()" * 20_000, b"class A(A): pass\nclass B(C): pass\nclass C(B): pass",
    b"import os; os.system('touch executed')", b"from . import *\nfrom .... import x\n", b"if 1:\n" * 200, b"'" * 3,
    b"if x: pass\n" + b"elif x: pass\n" * 900, "ﬁ = ﬁ.ﬁ()".encode(), b"a = b\nb = a\nc = a.c.a()\n",
]  # fmt: skip


@cases(10)
@given(data=st.data())
def test_sources_of_anything_make_a_graph_that_lists_what_could_not_be_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("sources")
    sources = data.draw(st.lists(st.sampled_from(PYTHON) | st.binary(max_size=60), min_size=1, max_size=3))
    (folder / "whole.py").write_bytes(b"class A: pass")
    for i, source in enumerate(sources):
        (folder / f"m{i}.py").write_bytes(source)
    with guarded(folder):
        index = read_index(folder)
        assert "whole.A" in build_graph(index).entities
        assert index.modules.keys() | {failure["path"].removesuffix(".py") for failure in index.failed} == {
            "whole",
            *(f"m{i}" for i in range(len(sources))),
        }


LAUGHS = "".join(f"{c}: &{c} [*{b}, *{b}, *{b}]\n" for b, c in zip("abcdefghijklm", "bcdefghijklmn", strict=True))
YAML = [
    f"a: &a [x, x]\n{LAUGHS}", "run: &a\n  <<: *a\n", "- " * 5_000, "[" * 2_000, "? " * 3_000, "run: {seed: !!binary aGk=}\n",
    f"run: !!python/object/apply:os.system [touch {MARKER}]\n", "run: *b\n", "\0", "run: {1: 2, null: 3, [a]: 4}\n",
    "run: 1\n---\nrun: 2\n", "run: {seed: " + "9" * 10_000 + "}", "model: {dropout: 1e999}\n", "run:\n\tseed: 1\n",
    "optimizer: {betas: {a: 1}}\n", "x" * 10**7, "run: {}\n" * 10**6, "run: {seed: \ud800}\n",
    "training_data: {short_to_long_curriculum: {enabled: true, schedule: [1, {steps: a}, {}]}}\n",
]  # fmt: skip


@cases(40)
@given(text=st.sampled_from(YAML) | st.text(max_size=40).map(lambda text: f"run: {text}\n"))
def test_a_configuration_of_anything_is_read_or_refused_by_name_in_seconds(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("yaml")
    (path := folder / "mine.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with guarded(folder, path.name):
        read_configuration(path)
