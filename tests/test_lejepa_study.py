"""The study of docs/lejepa.md: what chooses is not what is tested, rows are made once, and its intervals are what they say."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from benchmarks import lejepa_corpora as corpora
from benchmarks import lejepa_study as study

ROOT = Path(__file__).resolve().parents[1]


def lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def table(path: Path, rows: list[tuple]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def text(name: str, number: int) -> str:
    words = np.random.default_rng(abs(hash_of(name, number))).integers(0, 300, 30)
    return f"{name} {number} " + " ".join(f"word{word}" for word in words)


def hash_of(name: str, number: int) -> int:
    return sum(map(ord, name)) * 1000 + number


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Small sets in the layout of the public ones."""
    monkeypatch.setattr(corpora, "CHOOSING", 12)
    monkeypatch.setattr(corpora, "UNSEEN", 12)
    pairs = [{"anchor": f"title {n}", "positive": text("abstract", n)} for n in range(60)]
    lines(tmp_path / "pairs/scitldr_title_abstract.jsonl", [*pairs, pairs[0]])
    passages = [{"anchor": f"what is {n}", "positive": text("passage", n // 3)} for n in range(30)]
    lines(tmp_path / "pairs/xquad_en_question_passage.jsonl", passages)
    fluent = [{"anchor": f"er no {n} I mean {n}", "positive": f"what about {n}"} for n in range(30)]
    lines(tmp_path / "pairs/disflqa_paraphrase.jsonl", fluent)
    legal = [{"question": f"may I {n}", "answer": text("answer", n)} for n in range(30)]
    lines(tmp_path / "legal_uk_qa/uk_legal_qa.jsonl", legal)
    lines(tmp_path / "cranfield/corpus.jsonl", [{"_id": str(n), "text": text("wing", n)} for n in range(30)])
    lines(tmp_path / "cranfield/queries.jsonl", [{"_id": str(n), "text": f"lift of wing {n}"} for n in range(10)])
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"{n}\t{n}\t1\n" for n in range(10))
    (tmp_path / "cranfield/qrels").mkdir()
    (tmp_path / "cranfield/qrels/test.tsv").write_text(judged, encoding="utf-8")
    table(tmp_path / "stsb_en/stsb-en-test.csv", [(f"a {n}", f"b {n % 5}", n % 6) for n in range(24)])
    for name in ("train", "test"):
        rows = [(f"{name} card {n}", f"class {n % 4}") for n in range(20)]
        table(tmp_path / f"banking77/{name}.csv", [("text", "category"), *rows])
    return tmp_path


def test_no_query_is_trained_on_and_nothing_that_chooses_is_tested(folder):
    found = corpora.load(folder)
    trained, asked = set(found.train), set(found.dev.queries.values())
    tested = {query for each in found.retrieval.values() for query in each.queries.values()}
    tested |= {text for row in found.similar for text in row[:2]} | {text for text, _ in found.classified}
    assert tested and asked and not trained & (tested | asked) and not asked & tested
    searched = set(found.dev.corpus.values())
    assert not searched & trained and not searched & {
        t for each in found.retrieval.values() for t in each.corpus.values()
    }
    assert not set(found.unseen) & trained
    assert not {text for text, _ in found.known} & {text for text, _ in found.classified}
    assert corpora.load(folder).digest() == found.digest()


def test_a_missing_file_is_named(folder):
    (folder / "stsb_en/stsb-en-test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"--data: .*stsb-en-test.csv is missing"):
        corpora.load(folder)


def packed_rows(values_SQ: np.ndarray, corpus: str = "Cranfield") -> list[dict]:
    return [{"scores": {corpus: study._packed(row)}} for row in values_SQ]


def test_scores_are_kept_to_four_digits():
    values = np.random.default_rng(0).uniform(-1, 1, 300)
    assert np.abs(study.unpacked(study._packed(values)) - values).max() <= 5.1e-5


def test_the_interval_is_that_of_a_slow_bootstrap_over_queries_and_seeds():
    drawn = np.random.default_rng(1)
    ours, theirs = drawn.uniform(0, 1, (3, 80)), drawn.uniform(0, 0.9, (3, 80))
    found = study.difference(packed_rows(ours), packed_rows(theirs), "Cranfield", np.zeros(80))
    assert found["difference"] == pytest.approx((ours - theirs).mean(), abs=1e-4)
    means = []
    for _ in range(4000):
        seeds, queries = drawn.integers(0, 3, 3), drawn.integers(0, 80, 80)
        means.append((ours - theirs)[np.ix_(seeds, queries)].mean())
    assert (found["low"], found["high"]) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.01)


def test_the_interval_of_a_correlation_is_about_spearmans():
    drawn = np.random.default_rng(2)
    gold = drawn.integers(0, 6, 200).astype(float)
    near, far = gold / 10 + drawn.normal(0, 0.1, (3, 200)), gold / 10 + drawn.normal(0, 0.4, (3, 200))
    near, far = near.clip(-1, 1), far.clip(-1, 1)
    sides = [packed_rows(side, "STS-B") for side in (near, far)]
    found = study.difference(*sides, "STS-B", gold)
    expected = np.mean([spearmanr(a, gold)[0] - spearmanr(b, gold)[0] for a, b in zip(near, far, strict=True)])
    assert found["difference"] == pytest.approx(expected, abs=1e-3)
    assert found["low"] < found["difference"] < found["high"] and found["low"] > 0


def test_vicreg_is_its_formula():
    first, second = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))

    def embedded(column):
        return {"sentence_embedding": column["view"]}

    loss = study.VICReg(None, 2.0)
    loss.model = embedded
    expected = 25 * float(((first - second) ** 2).mean())
    for view in (first, second):
        centred = view - view.mean(0)
        covariance = centred.T @ centred / 5
        expected += 12.5 * float((1 - (covariance.diagonal() + 1e-4).sqrt()).clamp(min=0).mean())
        expected += 2.0 * sum(float(covariance[i, j] ** 2) for i in range(4) for j in range(4) if i != j) / 4
    assert float(loss([{"view": first}, {"view": second}])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_rows_are_made_once_and_a_second_call_goes_on(folder, monkeypatch):
    monkeypatch.setattr(
        study, "SIZES", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    )
    monkeypatch.setattr(study, "STEPS", dict.fromkeys(study.STEPS, 3))
    monkeypatch.setattr(study, "HEAD_TEXTS", 60)
    monkeypatch.setattr(study, "VOCABULARY", 400)
    monkeypatch.setattr(study, "SEEDS", (1, 2))
    arguments = argparse.Namespace(data=folder, output=folder / "rows.json", work=folder / "work", backbone=None)
    first = study.Study(arguments)
    for trial in (study.Trial(study.START), study.Trial(study.LEJEPA, 1e-4, study.WHITE, 32, 0.1)):
        first.test(study.SCRATCH, trial)
    first.write(comparisons=first.comparisons())
    written = json.loads(arguments.output.read_text(encoding="utf-8"))
    assert len(written["rows"]) == 4 and {"machine", "code", "versions", "data", "settings"} <= written.keys()
    [compared] = written["comparisons"]
    assert (compared["method"], compared["against"], compared["seeds"]) == (study.LEJEPA, study.START, 2)
    again = study.Study(arguments)
    monkeypatch.setattr(study, "trained", None)  # nothing is trained a second time
    assert (
        again.row("test", study.SCRATCH, study.Trial(study.LEJEPA, 1e-4, study.WHITE, 32, 0.1), 1) == written["rows"][2]
    )
