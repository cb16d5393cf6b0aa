"""Hybrid search: cosines of an embedding beside BM25, with feedback from the best results (`standalone.hybrid`).

Its constants were chosen once, on the questions of two collections, by benchmarks/lejepa.py: docs/results/lejepa_search_cpu.json
has what was tried. A run does not tune them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from helpers.data.bm25 import import_bm25s
from helpers.lejepa.data import Passage
from helpers.lejepa.model import on_cpu
from helpers.lejepa.standalone import terms, unit

# Q questions · N passages · K dimensions


def lexical_index(texts: Sequence[str]):
    """The BM25 index of texts (Robertson and Zaragoza 2009, as in Lucene, with k1 = 1.5 and b = 0.75), by bm25s."""
    index = import_bm25s().BM25()
    index.index([terms(text) or [""] for text in texts], show_progress=False)
    return index


def lexical_scores(index, questions: Sequence[str]) -> np.ndarray:
    """BM25 [Q, N] of every passage."""
    return np.stack([index.get_scores_from_ids(index.get_tokens_ids(terms(question))) for question in questions])


def save(folder: Path, model: SentenceTransformer, passages: Sequence[Passage], embeddings_NK: np.ndarray) -> Path:
    """Writes all that a search needs, over what was there: model, FAISS index, BM25 index, passages and `search.py`.

    embeddings_NK: of the passages' texts, by this model, in fp32.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index = faiss.IndexFlatIP(embeddings_NK.shape[1])
    index.add(unit(embeddings_NK))
    faiss.write_index(index, str(folder / "index.faiss"))
    lexical_index([passage.text for passage in passages]).save(folder / "bm25", show_progress=False)
    written = json.dumps([(passage.document, passage.text) for passage in passages], ensure_ascii=False)
    (folder / "passages.json").write_text(written, encoding="utf-8")
    export(model, folder / "model")
    shutil.copyfile(Path(__file__).with_name("standalone.py"), folder / "search.py")
    return folder


def export(model: SentenceTransformer, folder: Path) -> None:
    """Saves a model for `SentenceTransformer(folder)`, without asking the hub for a licence or embedding examples."""
    model = on_cpu(model)
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
    model.save_pretrained(str(folder))


def load(folder: Path) -> Any:
    """The module `search.py` of a saved folder: `load(folder).search("a question")`."""
    import_bm25s()
    spec = importlib.util.spec_from_file_location("saved_search", folder / "search.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
