"""An encoder that reads the place of a call, and learns from resolved calls which class or module is meant.

The leaf of `graph_calls.py` asks what a whole function calls, and does not know which of its calls is meant. Here the query is the
call itself with the lines around it, and a candidate is its qualified name, its parameters and the members of its class; both
also in short, as the receiver and the owner's name. The encoder learns by contrast of pairs from calls in the standard library
that the resolver has proved, against the other pairs of the batch and a function of the same name.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph
from helpers.graphmer.text.documents import shown_name

LINES = 2  # before and after the call
SHORT, QUERY, CANDIDATE = 10, 44, 40  # tokens
TUNING = {"steps": 400, "batch": 64, "learning_rate": 1e-3, "warmup": 50, "temperature": 0.07}
NAMES = ("receiver and owner", "lines and candidate", "lines and owner")  # of the cosines
OWN = ("self", "cls", "super()")


@dataclass(frozen=True)
class Site:
    """A call in source: `lines` are those around it."""

    caller: str
    receiver: str  # source before the last dot
    name: str
    lines: str

    def short(self) -> str:
        return self.receiver or self.name

    def long(self) -> str:
        return f"{self.receiver}.{self.name} {self.caller.rpartition('.')[2]}\n{self.lines}"


def around(source: Sequence[str], line: int) -> str:
    """The lines around line number `line`, from 1."""
    return "\n".join(each.strip() for each in source[max(0, line - 1 - LINES) : line + LINES])


class Candidates:
    """Texts of functions and methods of a graph."""

    def __init__(self, graph: KnowledgeGraph):
        self._members, self._parameters = defaultdict(list), defaultdict(list)
        for head, relation, tail in graph.triples:
            if relation == "contains":
                self._members[head].append(graph.entities[tail].name)
            elif relation == "has_parameter":
                self._parameters[head].append(graph.entities[tail].name)

    @staticmethod
    def short(entity: str) -> str:
        return entity.split(".")[-2] if "." in entity else entity

    def long(self, entity: str) -> str:
        members = sorted(self._members[entity.rpartition(".")[0]])[:20]
        return f"{shown_name(entity)} ({' '.join(self._parameters[entity])}) {' '.join(members)}"


def resolved_sites(graph: KnowledgeGraph, root: Path) -> list[tuple[Site, str]]:
    """Calls through a receiver other than self whose one function or method the resolver knows; each receiver of it once."""
    known = defaultdict(set)
    for head, relation, tail in graph.triples:
        entity = graph.entities.get(tail)
        if relation == "calls" and entity and entity.status == "defined" and entity.type in ("function", "method"):
            known[head].add(tail)
    found: dict[tuple[str, str], Site] = {}
    for file in graph.manifest["files"]:
        source = (root / file["path"]).read_bytes().decode(errors="replace")
        lines = source.splitlines()
        for caller, call in _calls(ast.parse(source), file["module"]):
            receiver, name = ast.unparse(call.func.value), call.func.attr
            called = [each for each in known[caller] if each.rpartition(".")[2] == name]
            if len(called) == 1 and receiver not in OWN:
                site = Site(caller, receiver, name, around(lines, call.func.end_lineno))
                found.setdefault((receiver, called[0]), site)
    return [(site, entity) for (_, entity), site in found.items()]


def _calls(node: ast.AST, owner: str) -> Iterable[tuple[str, ast.Call]]:
    """Calls of attributes, each with the function, class or module that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(child, f"{owner}.{child.name}")
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield owner, child
        yield from _calls(child, owner)


def _tokens(tokenizer, texts: list[str], most: int) -> torch.Tensor:
    options = {"truncation": True, "padding": True, "add_special_tokens": False, "return_tensors": "pt"}
    return tokenizer(texts, max_length=most, **options)["input_ids"]


def tuned(model, tokenizer, graph: KnowledgeGraph, sites: list[tuple[Site, str]], seed: int):
    """The model after it has learned which candidate is that of a call, by all three pairs of texts."""
    draw, texts, steps = random.Random(seed), Candidates(graph), TUNING["steps"]
    by_name = defaultdict(list)
    for entity in graph.entities.values():
        if entity.status == "defined" and entity.type in ("function", "method"):
            by_name[entity.name].append(entity.id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TUNING["learning_rate"])
    torch.manual_seed(seed)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            rising = min(1, (step + 1) / TUNING["warmup"])
            group["lr"] = TUNING["learning_rate"] * rising * (1 - step / steps)
        batch = draw.sample(sites, TUNING["batch"])
        right = [entity for _, entity in batch]
        offered = right + [draw.choice(by_name[site.name]) for site, _ in batch]
        owners = [texts.short(each) for each in offered]

        def entities(texts: list[str], most: int) -> torch.Tensor:
            return model.entities(_tokens(tokenizer, texts, most))

        receivers = entities([site.short() for site, _ in batch], SHORT)
        lines = entities([site.long() for site, _ in batch], QUERY)
        short, long = entities(owners, SHORT), entities([texts.long(each) for each in offered], CANDIDATE)
        loss = sum(
            _contrast(query, candidate, names)
            for query, candidate, names in ((receivers, short, owners), (lines, long, offered), (lines, short, owners))
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def _contrast(query_BE: torch.Tensor, offered_XE: torch.Tensor, names: list[str]) -> torch.Tensor:
    """Cross-entropy of the first B of X; the other ones of the same name are no wrong answer."""
    B = len(query_BE)
    also_BX = torch.tensor([[name == right for name in names] for right in names[:B]])
    also_BX.fill_diagonal_(False)
    score_BX = (query_BE @ offered_XE.T / TUNING["temperature"]).masked_fill(also_BX, -1e4)
    return torch.nn.functional.cross_entropy(score_BX, torch.arange(B))


@torch.no_grad()
def cosines(model, tokenizer, sites: list[Site], candidates: list[list[str]], texts: Candidates) -> list[dict]:
    """Of each site: `NAMES` -> cosines of its candidates."""

    def embedded(wanted: Iterable[str], most: int) -> dict[str, np.ndarray]:
        order, found = sorted(dict.fromkeys(wanted), key=len), {}
        for first in range(0, len(order), 64):
            part = order[first : first + 64]
            found |= zip(part, model.entities(_tokens(tokenizer, part, most)).numpy(), strict=True)
        return found

    asked = {"short": (embedded((one.short() for one in sites), SHORT), Site.short)}
    asked["long"] = (embedded((one.long() for one in sites), QUERY), Site.long)
    everything = {each for some in candidates for each in some}
    offered = {"short": (embedded(map(texts.short, everything), SHORT), texts.short)}
    offered["long"] = (embedded(map(texts.long, everything), CANDIDATE), texts.long)
    return [
        {
            name: np.stack([of_candidate[0][of_candidate[1](each)] for each in some]) @ of_site[0][of_site[1](site)]
            for name, of_site, of_candidate in zip(
                NAMES,
                (asked["short"], asked["long"], asked["long"]),
                (offered["short"], offered["long"], offered["short"]),
                strict=True,
            )
        }
        for site, some in zip(sites, candidates, strict=True)
    ]


def character_ngrams(sites: list[Site], candidates: list[list[str]]) -> list[np.ndarray]:
    """Cosines of TF-IDF of characters: the lines around each call, and the candidates' owners. What costs nothing."""
    owners = sorted({Candidates.short(each) for some in candidates for each in some})
    made = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    made.fit([*owners, *(one.lines for one in sites)])
    owner_NV, line_NV = made.transform(owners), made.transform([one.lines for one in sites])
    number = {owner: place for place, owner in enumerate(owners)}
    score_NO = (line_NV @ owner_NV.T).toarray()
    return [
        row_O[[number[Candidates.short(each)] for each in some]]
        for row_O, some in zip(score_NO, candidates, strict=True)
    ]


def of_sentence_encoder(folder: Path, sites: list[Site], candidates: list[list[str]]) -> list[np.ndarray]:
    """Cosines of an encoder that was pretrained on much text: receivers and owners as words."""
    from sentence_transformers import SentenceTransformer

    from helpers.graphmer.searching import WORD

    def in_words(text: str) -> str:
        return " ".join(WORD.findall(text))

    model = SentenceTransformer(str(folder), device="cpu")
    owners = sorted({in_words(Candidates.short(each)) for some in candidates for each in some})
    receivers = [in_words(one.short()) for one in sites]
    owner_OD, receiver_ND = (
        model.encode(texts, normalize_embeddings=True, show_progress_bar=False) for texts in (owners, receivers)
    )
    number = {owner: place for place, owner in enumerate(owners)}
    return [
        owner_OD[[number[in_words(Candidates.short(each))] for each in some]] @ receiver_D
        for receiver_D, some in zip(receiver_ND, candidates, strict=True)
    ]
