"""What links can be told without a trained encoder: from counts, from names, from words of the source, from all of them.

Each is a scorer of `ranking.evaluate`. The lexical baseline is all of `lexical_scorers` and counts, weighed on validation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph, Triple
from helpers.graphmer.links.ranking import DIRECTIONS, TAIL, Scorer, answer

# Q queries · X candidates · F features (n-grams or words) · S scorers

FIELDS = ("id", "owner", "name")  # of a.B.c: a.B.c, a.B, c
MENTIONS = ("name", "owner", "pair")  # of a.B.c: c, B, and B and c side by side
_IDENTIFIER = r"[^\W\d]\w*"


def owner_and_name(entity_id: str) -> tuple[str, str]:
    """("a.B.c", "x") of the parameter "a.B.c(x)", ("a.B", "c") of "a.B.c"."""
    if entity_id.endswith(")"):
        owner, _, name = entity_id[:-1].rpartition("(")
    else:
        owner, _, name = entity_id.rpartition(".")
    return owner, name


class Frequency:
    """How many training triples of the relation have the candidate in that place, as log(1 + count); whoever asks.

    counts: (relation, direction) -> candidate -> triples.
    """

    def __init__(self, counts: Mapping[tuple[str, str], Mapping[str, int]]):
        self.counts = counts

    @classmethod
    def of(cls, train: Sequence[Triple]) -> Frequency:
        """Of training triples."""
        counts: dict[tuple[str, str], Counter] = defaultdict(Counter)
        for triple in train:
            for direction in DIRECTIONS:
                counts[triple.relation, direction][answer(triple, direction)] += 1
        return cls(counts)

    def __call__(self, given: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        counts = self.counts.get((relation, direction), {})
        scores_X = np.log1p(np.array([counts.get(name, 0) for name in candidates], np.float32))
        return np.broadcast_to(scores_X, (len(given), len(candidates)))


class Names:
    """TF-IDF vectors of the character 2- to 4-grams of a field of every name; for several `NameSimilarity`, made once."""

    def __init__(self, graph: KnowledgeGraph):
        self._ids = list(graph.entities)
        self._of_field: dict[str, tuple] = {}

    @cached_property
    def _vectoriser(self):
        from sklearn.feature_extraction.text import TfidfVectorizer

        # n-grams of more than a tenth of all names say little and cost most of the product's time.
        vectoriser = TfidfVectorizer(
            analyzer="char_wb", ngram_range=(2, 4), max_df=0.1, sublinear_tf=True, lowercase=False, dtype=np.float32
        )
        return vectoriser.fit(self._ids)

    def vectors(self, names: Sequence[str], field: str) -> tuple:
        """[U, F] of the different texts that these names have in a field, and which of them each name has."""
        if field not in self._of_field:
            texts = [
                entity_id if field == "id" else owner_and_name(entity_id)[field == "name"] for entity_id in self._ids
            ]
            texts, numbers = np.unique(texts, return_inverse=True)
            number = dict(zip(self._ids, numbers.tolist(), strict=True))
            self._of_field[field] = (self._vectoriser.transform(texts), number)
        vectors_TF, number = self._of_field[field]
        different_U, place = np.unique([number[name] for name in names], return_inverse=True)
        return vectors_TF[different_U], place


class NameSimilarity:
    """Cosine of the vectors of two fields, one of what is given and one of the candidate.

    given, candidate: one of `FIELDS`. Whole ids are plain string similarity; the owner of the candidate against what is
    given finds members, name against name finds overriding methods.

    Raises ValueError: another field.
    """

    def __init__(self, names: Names, *, given: str = "id", candidate: str = "id"):
        for what, field in (("given", given), ("candidate", candidate)):
            if field not in FIELDS:
                raise ValueError(f"{what}={field!r}: must be one of {', '.join(FIELDS)}")
        self._names, self._given, self._candidate = names, given, candidate

    def __call__(self, given: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        """A likeness has no direction, but what is given has another field than what is looked for."""
        given_VF, place_Q = self._names.vectors(given, self._given)
        candidate_UF, place_X = self._names.vectors(candidates, self._candidate)
        return (given_VF @ candidate_UF.T).toarray()[:, place_X][place_Q]


class SourceWords:
    """Which identifiers, and which two side by side, each entity's source text has; for several `Mentions`.

    text: entity id -> its source, "" or the name alone where there is none.
    """

    def __init__(self, graph: KnowledgeGraph, text: Callable[[str], str]):
        self._ids, self._text = list(graph.entities), text

    @cached_property
    def matrix(self) -> tuple[dict[str, int], object, dict[str, int]]:
        """Row of an entity, IDF of what its source has [entities, F], column of a word or pair.

        How often it is there and how long the source is do not count: a long source mentions what it mentions.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectoriser = TfidfVectorizer(
            token_pattern=_IDENTIFIER, ngram_range=(1, 2), binary=True, norm=None, lowercase=False, dtype=np.float32
        )
        weights = vectoriser.fit_transform(map(self._text, self._ids))
        return {name: row for row, name in enumerate(self._ids)}, weights, vectoriser.vocabulary_


class Mentions:
    """Weight of the tail's name among the words of the head's source text, in both directions.

    what: one of `MENTIONS`. Raises ValueError for another one.
    """

    def __init__(self, words: SourceWords, what: str = "name"):
        if what not in MENTIONS:
            raise ValueError(f"what={what!r}: must be one of {', '.join(MENTIONS)}")
        self._words, self._what = words, what

    def __call__(self, given: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        asks, offers = (self._sources, self._names) if direction == TAIL else (self._names, self._sources)
        return (asks(given) @ offers(candidates).T).toarray()

    def _sources(self, names: list[str]):
        rows, weights, _ = self._words.matrix
        return weights[[rows[name] for name in names]]

    def _names(self, names: list[str]):
        from scipy.sparse import csr_array

        _, weights, columns = self._words.matrix
        wanted = [(row, columns.get(self._word(name))) for row, name in enumerate(names)]
        found = [(row, column) for row, column in wanted if column is not None]
        rows, places = zip(*found, strict=True) if found else ((), ())
        ones = np.ones(len(rows), np.float32)
        return csr_array((ones, (rows, places)), shape=(len(names), weights.shape[1]))

    def _word(self, entity_id: str) -> str:
        owner, name = owner_and_name(entity_id)
        last = owner_and_name(owner)[1] if owner else ""
        return {"name": name, "owner": last, "pair": f"{last} {name}"}[self._what]


class SameModule:
    """1 where both ends are defined in one module."""

    def __init__(self, graph: KnowledgeGraph):
        self._module = {name: entity.module or name for name, entity in graph.entities.items()}

    def __call__(self, given: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        given_Q, modules_X = (np.array([self._module[name] for name in names]) for names in (given, candidates))
        return (given_Q[:, None] == modules_X).astype(np.float32)


def lexical_scorers(graph: KnowledgeGraph, text: Callable[[str], str] | None) -> dict[str, Scorer]:
    """The parts of the lexical baseline that read names and, with `text`, sources."""
    names = Names(graph)
    scorers: dict[str, Scorer] = {
        f"{one} like {other}": NameSimilarity(names, given=one, candidate=other)
        for one, other in (("id", "id"), ("id", "owner"), ("owner", "id"), ("owner", "owner"), ("name", "name"))
    }
    scorers["same module"] = SameModule(graph)
    if text is not None:
        words = SourceWords(graph, text)
        scorers |= {f"mentions {what}": Mentions(words, what) for what in MENTIONS}
    return scorers
