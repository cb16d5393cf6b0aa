"""The public texts of `lejepa_study.py`: what is trained on, what chooses, and what is tested on.

The folder that the study is given holds, as JSON lines or CSV:

    cranfield/           corpus.jsonl, queries.jsonl, qrels/test.tsv    Cranfield 1400 in BEIR's layout
    pairs/scitldr_title_abstract.jsonl      anchor: a paper's title, positive: its abstract. github.com/allenai/scitldr, SciTLDR-A
    pairs/xquad_en_question_passage.jsonl   anchor: a question, positive: the passage. github.com/google-deepmind/xquad
    pairs/disflqa_paraphrase.jsonl          anchor: a disfluent question, positive: the fluent one.
                                            github.com/google-research-datasets/Disfl-QA
    legal_uk_qa/uk_legal_qa.jsonl           question, answer. Questions about the law of the United Kingdom
    stsb_en/stsb-en-test.csv                sentence1, sentence2, score, no header. github.com/PhilipMay/stsb-multi-mt
    banking77/train.csv, test.csv           text, category. github.com/PolyAI-LDN/task-specific-datasets

Trained on are documents alone: abstracts, Cranfield's, XQuAD's passages and the legal answers. No query is.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.lejepa.beir import Benchmark, from_pairs, read_beir

QUERIES = 500  # of a test corpus at most
NEIGHBOURS, CLASSIFIED = 1_500, 800  # texts of banking77 that a class is looked up in, and that are tested
CHOOSING, UNSEEN = 250, 355  # abstracts whose titles choose, and whose isotropy is measured; neither is trained on


@dataclass(frozen=True)
class Corpora:
    train: list[str]  # documents
    dev: Benchmark  # SciTLDR: chooses every setting
    retrieval: dict[str, Benchmark]  # these and the following choose nothing
    similar: list[tuple[str, str, float]]  # STS-B
    known: list[tuple[str, str]]  # banking77: text and class, for the nearest neighbours
    classified: list[tuple[str, str]]
    unseen: list[str]  # documents for isotropy

    def digest(self) -> str:
        """Of all texts, for a results file."""
        return hashlib.sha256(json.dumps(vars(self), default=_plain).encode()).hexdigest()

    def tested(self) -> list[str]:
        """Every text that an evaluation needs, once."""
        texts = [
            text
            for each in (self.dev, *self.retrieval.values())
            for text in (*each.queries.values(), *each.corpus.values())
        ]
        texts += [text for first, second, _ in self.similar for text in (first, second)]
        return list(dict.fromkeys((*texts, *(text for text, _ in (*self.known, *self.classified)), *self.unseen)))


def _plain(value):
    return sorted(value) if isinstance(value, set) else vars(value)


def load(folder: Path) -> Corpora:
    """Reads and splits them, the same each time. Raises FileNotFoundError for a file that is missing."""
    drawn = random.Random(0)
    papers = _once(_pairs(folder / "pairs/scitldr_title_abstract.jsonl"))
    drawn.shuffle(papers)
    held, unseen, papers = papers[:CHOOSING], papers[CHOOSING : CHOOSING + UNSEEN], papers[CHOOSING + UNSEEN :]
    cranfield = read_beir(folder / "cranfield")
    passages = _pairs(folder / "pairs/xquad_en_question_passage.jsonl")
    legal = _once((row["question"], row["answer"]) for row in _rows(folder / "legal_uk_qa/uk_legal_qa.jsonl"))
    disfluent = _once(_pairs(folder / "pairs/disflqa_paraphrase.jsonl"))
    answers = [answer for _, answer in legal]
    for rows in (passages, legal, disfluent):
        drawn.shuffle(rows)
    with _file(folder / "stsb_en/stsb-en-test.csv").open(encoding="utf-8") as file:
        similar = [(first, second, float(score)) for first, second, score in csv.reader(file)]
    known, classified = (_classes(folder / f"banking77/{name}.csv", drawn) for name in ("train", "test"))
    return Corpora(
        train=[*(abstract for _, abstract in papers), *cranfield.corpus.values(), *dict.fromkeys(text for _, text in passages), *answers],
        dev=from_pairs(held, "SciTLDR, title to abstract", [abstract for _, abstract in unseen]),
        retrieval={
            "Cranfield": cranfield,
            "XQuAD": from_pairs(passages[:QUERIES], "XQuAD", [passage for _, passage in passages]),
            "UK legal": from_pairs(legal[:QUERIES], "UK legal", answers[:1_000]),
            "Disfl-QA": from_pairs(disfluent[:QUERIES], "Disfl-QA", [fluent for _, fluent in disfluent[:1_000]]),
        },
        similar=similar,
        known=known[:NEIGHBOURS],
        classified=classified[:CLASSIFIED],
        unseen=[abstract for _, abstract in (*held, *unseen)],
    )  # fmt: skip


def _once(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs without those whose first or second text was there already."""
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        if not seen & set(pair):
            kept.append(pair)
        seen.update(pair)
    return kept


def _pairs(path: Path) -> list[tuple[str, str]]:
    return [(row["anchor"], row["positive"]) for row in _rows(path)]


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in _file(path).read_text(encoding="utf-8").splitlines()]


def _classes(path: Path, drawn: random.Random) -> list[tuple[str, str]]:
    with _file(path).open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    drawn.shuffle(rows)
    return rows


def _file(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"--data: {path} is missing; the head of {Path(__file__).name} says where each file is from"
        )
    return path
