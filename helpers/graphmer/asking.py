"""A trained GraphMER as a tool: saved with all that asking needs, and asked about a repository that it has never seen.

save(folder, corpus, scorer)  # beside the model's weights
GraphMER.load(folder).ask("path/to/repository", "package.module.function", "called_by")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers.graphmer.graph.extraction import cached_graph
from helpers.graphmer.graph.knowledge_graph import UNRESOLVED, Entity, KnowledgeGraph
from helpers.graphmer.graph.ontology import ONTOLOGY, read_ontology
from helpers.graphmer.links.baselines import Frequency, lexical_scorers
from helpers.graphmer.links.fusion import ScoreFusion
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.links.ranking import HEAD, TAIL, admitted, score, true_answers
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.windows import EncodedDocuments, Windows
from helpers.machine.cpu_copy import cpu_copy

if TYPE_CHECKING:
    from helpers.graphmer.experiment import Corpus

SETTINGS = "graphmer.json"
SCHEMA = 1
KNOWN, OPEN, GUESS = "known", "open", "guess"
DOCUMENTS = 64  # one to two seconds on a laptop


class Answer(NamedTuple):
    """An entity that may stand at the other end of the relation.

    status: "known", the resolver has it · "open", the source names it there and the resolver cannot tell what is meant ·
        "guess", the model's alone.
    probability: that this is the next answer, if there is another than those that are known and its source was read; None
        for known ones.
    defined, mentioned: file:line of its definition, and of where the source that the relation is about names it; or "".
    """

    name: str
    status: str
    probability: float | None
    defined: str
    mentioned: str


def save(folder: str | Path, corpus: Corpus, scorer: ScoreFusion) -> None:
    """Writes tokenizer, ontology, sizes and what the scorer weighs into the folder of the model's weights."""
    folder, chains = Path(folder), corpus.validation
    frequency = Frequency.of(corpus.splits.train)
    settings = {
        "schema": SCHEMA,
        "trained_on": corpus.source,
        "relations": chains.relations.names[1:],
        "roots": chains.roots,
        "windows": chains.encoded.windows,
        "leaf_tokens": chains.leaf_tokens,
        "head_tokens": chains.encoded.head_tokens,
        "entity_tokens": chains.encoded.text_ids_EC.shape[1],
        "weights": _by_relation(scorer.weights),
        "counts": _by_relation(frequency.counts),
    }
    corpus.tokenizer.save_pretrained(folder)
    (folder / ONTOLOGY).write_text(corpus.ontology.text, encoding="utf-8")
    (folder / SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")


class GraphMER:
    """A saved model with its tokenizer, ontology and scorer; what it reads of a repository it remembers, on disk as well.

    Args:
        folder: where `save` and `save_pretrained` wrote.
        cache: folder for what is extracted and read of repositories, under the hash of their files.
    """

    def __init__(self, folder: str | Path, cache: str | Path | None = None):
        folder = Path(folder).expanduser()
        if not (folder / SETTINGS).is_file():
            raise FileNotFoundError(f"{str(folder)!r}: no {SETTINGS} there; give the folder of a model that was saved")
        self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        if self.settings["schema"] != SCHEMA:
            raise ValueError(
                f"{folder / SETTINGS}: schema={self.settings['schema']!r}: this code reads {SCHEMA}; ask with the code that saved it, or train anew"
            )
        # A copy, since tensors of a mapped file begin at any byte, and the last bit of a product depends on where.
        self.model = cpu_copy(GraphMERForPreTraining.from_pretrained(folder)).eval()
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.ontology = read_ontology(folder / ONTOLOGY)
        self.relations = Relations(self.ontology)
        if list(self.relations.names[1:]) != self.settings["relations"]:
            raise ValueError(f"{folder / ONTOLOGY}: its relations are not those that the model was trained with")
        self._cache = cache
        self._read: dict[str, Repository] = {}  # by hash of the sources

    @classmethod
    def load(cls, folder: str | Path, cache: str | Path | None = None) -> GraphMER:
        """Raises FileNotFoundError: nothing was saved there; ValueError: another version's, or parts of different models."""
        return cls(folder, cache)

    def read(self, repository: str | Path) -> Repository:
        """The graph of a folder, and what is needed to ask about it; extracted once for the same files.

        Raises what `load_graph` does.
        """
        graph = cached_graph(repository, self._cache)
        digest = graph.digest()
        if digest not in self._read:
            self._read[digest] = Repository(self, graph, Documents.read(graph, repository))
        return self._read[digest]

    def ask(
        self, repository: str | Path, name: str, relation: str, *, most: int = 5, documents: int = DOCUMENTS
    ) -> list[Answer]:
        """What the resolver knows, then the likeliest further answers, at most `most`.

        name: qualified name of an entity, or the end of one that no other has.
        relation: of the ontology, in either direction: `calls`, `called_by`, `inverse raises`.
        documents: candidates whose own source the encoder reads, the likeliest by names, mentions and the entity's own
            source; 0 for all, as in the notebook's table. With fewer candidates the answers are the same.

        Raises ValueError: an unknown name (with near ones) or relation, or a relation that such an entity does not have.
        """
        return self.read(repository).ask(name, relation, most, documents)


@dataclass
class Repository:
    """One repository as a model sees it."""

    of: GraphMER
    graph: KnowledgeGraph
    documents: Documents
    _candidates: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @cached_property
    def _predictor(self) -> LinkPredictor:
        sizes = {name: self.of.settings[name] for name in ("roots", "windows", *_TOKENS)}
        encoded = EncodedDocuments(self.documents, self.of.tokenizer, **sizes)
        windows = Windows(encoded, self.of.relations, sizes["roots"])
        return LinkPredictor(self.of.model, windows)

    @cached_property
    def scorer(self) -> ScoreFusion:
        """The scorer that was saved, on this repository's names and sources."""
        weights = _flat(self.of.settings["weights"])
        scorers = self._predictor.ends() | {"counts": Frequency(_flat(self.of.settings["counts"]))}
        # Added up in the order of the fitted one.
        wanted = dict.fromkeys(name for each in weights.values() for name in each)
        if wanted.keys() - scorers.keys():
            scorers |= lexical_scorers(self.graph, self.documents.text)
        return ScoreFusion({name: scorers[name] for name in wanted}, weights)

    @cached_property
    def _quick(self) -> ScoreFusion:
        """The scorer without what the candidates' own sources ask for."""
        scorers = self.scorer.scorers
        return ScoreFusion(
            {name: scorers[name] for name in scorers if not name.startswith("other end")}, self.scorer.weights
        )

    def ask(self, name: str, relation: str, most: int, documents: int) -> list[Answer]:
        given, number = self._entity(name), self.of.relations.id(relation)
        self._check(given, relation, number)
        forward = number <= self.of.relations.forward
        canonical = self.of.relations.names[number if forward else self.of.relations.inverse(number)]
        direction = TAIL if forward else HEAD
        known = self._known.get((direction, canonical, given.id), set())
        if canonical not in self._candidates:
            self._candidates |= admitted(self.graph, self.of.ontology, [canonical])
        candidates = self._candidates[canonical][direction]
        answers = [self._answer(given, canonical, forward, one, KNOWN, None) for one in sorted(known)]
        no_guess = known | {given.id}  # its source begins with its own name; a recursion is known to the resolver
        if not most or not set(candidates) - no_guess:
            return answers

        def order(scorer: ScoreFusion, candidates: list[str]) -> tuple[np.ndarray, np.ndarray]:
            """Places of the guesses, the likeliest first, and the share of each candidate."""
            scores_X = score(scorer, [given.id], canonical, candidates, direction)[0].astype(np.float64)
            scores_X[[one in no_guess for one in candidates]] = -np.inf
            shares_X = np.exp(scores_X - scores_X.max())
            places = np.argsort(-scores_X, kind="stable")
            return places[: np.isfinite(scores_X).sum()], shares_X / shares_X.sum()

        if 0 < documents < len(candidates):
            candidates = [candidates[place] for place in order(self._quick, candidates)[0][:documents]]
        places, shares_X = order(self.scorer, candidates)
        for place in places[:most]:
            answers.append(self._answer(given, canonical, forward, candidates[place], "", float(shares_X[place])))
        return answers

    def _answer(
        self, given: Entity, relation: str, forward: bool, one: str, status: str, probability: float | None
    ) -> Answer:
        other = self.graph.entities[one]
        head, tail = (given, other) if forward else (other, given)
        is_open = {(head.id, each, f"?.{tail.name}") for each in (relation, "calls")} & self._stated
        line, place = self.documents.mention(head.id, tail.name), self.graph.place
        mentioned = place(head, line) if line else ""
        return Answer(one, status or (OPEN if is_open else GUESS), probability, place(other), mentioned)

    @cached_property
    def _stated(self) -> set[tuple[str, str, str]]:
        return {tuple(triple) for triple in self.graph.triples if triple.tail.startswith("?.")}

    @cached_property
    def _known(self) -> dict[tuple[str, str, str], set[str]]:
        return true_answers(self.graph.resolved())

    def _entity(self, name: str) -> Entity:
        entities = {one: entity for one, entity in self.graph.entities.items() if entity.status != UNRESOLVED}
        if name in entities:
            return entities[name]
        ending = [one for one in entities if one.endswith((f".{name}", f"/{name}"))]
        if len(ending) == 1:
            return entities[ending[0]]
        last = name.rpartition(".")[2].lower()
        near = ending or [one for one in entities if entities[one].name.lower() == last]
        hint = f"; there are {', '.join(sorted(near)[:5])}" if near else "; give a qualified name"
        raise ValueError(f"name={name!r}: {len(ending) or 'no'} entities of {len(entities):,} are called so{hint}")

    def _check(self, given: Entity, relation: str, number: int) -> None:
        if number not in (may_have := self.of.relations.of_head(given.type)):
            names = ", ".join(self.of.relations.names[one] for one in may_have)
            raise ValueError(f"relation={relation!r}: {given.id} is a {given.type}, which has: {names or 'none'}")


_TOKENS = ("leaf_tokens", "head_tokens", "entity_tokens")


def _by_relation(values: Mapping[tuple[str, str], Mapping]) -> dict[str, dict[str, dict]]:
    """(relation, direction) -> ... as JSON can hold it: relation -> direction -> ..."""
    found: dict[str, dict[str, dict]] = {}
    for (relation, direction), inner in sorted(values.items()):
        found.setdefault(relation, {})[direction] = dict(inner)
    return found


def _flat(values: Mapping[str, Mapping[str, Mapping]]) -> dict[tuple[str, str], Mapping]:
    return {(relation, direction): inner for relation, two in values.items() for direction, inner in two.items()}
