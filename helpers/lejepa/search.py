"""The search over passages: its indexes, its weights, and the folder that answers without this package (`standalone.py`)."""

from __future__ import annotations

import importlib.util
import inspect
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from helpers.data import words
from helpers.data.bm25 import Bm25, import_bm25s
from helpers.lejepa.documents import Passage
from helpers.lejepa.standalone import terms, unit
from helpers.train.sentence_encoder import encoder_on_cpu

# Q questions · N passages · D documents · K dimensions


class Mix(NamedTuple):
    """Weights of the parts of a score; `standalone.combine` adds them up."""

    meaning: float = 0.0
    words: float = 0.0

    def __str__(self) -> str:
        if not self.words:
            return "meaning alone"
        if not self.meaning:
            return "BM25 alone"
        weight = "" if self.words == 1 else f"{self.words:g} "
        return f"meaning + {weight}BM25"


def lexical_index(texts: Sequence[str]) -> Bm25:
    """The BM25 index of texts (k1 = 1.5 and b = 0.75)."""
    return Bm25([terms(text) or [""] for text in texts])


def lexical_scores(index: Bm25, questions: Sequence[str]) -> np.ndarray:
    """BM25 [Q, N] of every passage."""
    return np.stack([index.scores(terms(question)) for question in questions])


def save(
    folder: Path, model: SentenceTransformer, passages: Sequence[Passage], embeddings_NK: np.ndarray, mix: Mix
) -> Path:
    """Writes all that a search needs: model, FAISS index, BM25 index, passages, weights and `search.py`.

    embeddings_NK: of the passages' texts, by this model, in fp32. What was there is replaced when all is written.
    """
    fresh = folder.with_name(f".{folder.name}-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    index = faiss.IndexFlatIP(embeddings_NK.shape[1])
    index.add(unit(embeddings_NK))
    (fresh / "index.faiss").write_bytes(faiss.serialize_index(index).tobytes())
    words_index = lexical_index([passage.text for passage in passages]).index
    words_index.save(fresh / "bm25", show_progress=False)
    rows = [(passage.document, passage.text, passage.shown) for passage in passages]
    (fresh / "passages.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    (fresh / "mix.json").write_text(json.dumps(mix._asdict()), encoding="utf-8")
    export(model, fresh / "model")
    own_words = "from helpers.data.words import words\n"
    script = Path(__file__).with_name("standalone.py").read_text(encoding="utf-8")
    assert own_words in script
    script = script.replace(own_words, inspect.getsource(words))
    (fresh / "search.py").write_text(script, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    return fresh.rename(folder)


def export(model: SentenceTransformer, folder: Path) -> None:
    """Saves a model for `SentenceTransformer(folder)`, without asking the hub for a licence or embedding examples."""
    model = encoder_on_cpu(model)
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
    model.save_pretrained(str(folder))


def load(folder: Path) -> Any:
    """The module `search.py` of a saved folder: `load(folder).search("a question")`."""
    import_bm25s()
    spec = importlib.util.spec_from_file_location("saved_search", folder / "search.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
