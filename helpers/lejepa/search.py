"""The search over passages: its indexes, its weights, and the folder that answers without this package (`standalone.py`)."""

import inspect
import json
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from helpers.data import words
from helpers.data.bm25 import Bm25, import_bm25s
from helpers.lejepa.documents import Passage
from helpers.lejepa.standalone import terms, unit
from helpers.train.sentence_encoder import encoder_on_cpu

# N passages · K dimensions


class Mix(NamedTuple):
    """Weights of the parts of a score; `standalone.combine` adds them up."""

    meaning: float = 0.0
    words: float = 0.0


def lexical_index(texts: Sequence[str]) -> Bm25:
    """The BM25 index of texts (k1 = 1.5 and b = 0.75)."""
    return Bm25([terms(text) or [""] for text in texts])


def save(
    folder: Path, model: SentenceTransformer, passages: Sequence[Passage], embeddings_NK: np.ndarray, mix: Mix
) -> None:
    """Writes all that a search needs: model, FAISS index, BM25 index, passages, weights and `search.py`.

    embeddings_NK: of the passages' texts, by this model, in fp32. What was in the folder is deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    encoder_on_cpu(model).save_pretrained(str(folder / "model"), create_model_card=False)
    index = faiss.IndexFlatIP(embeddings_NK.shape[1])
    index.add(unit(embeddings_NK))
    (folder / "index.faiss").write_bytes(faiss.serialize_index(index).tobytes())
    words_index = lexical_index([passage.text for passage in passages])
    words_index.index.save(folder / "bm25", show_progress=False)
    rows = [(passage.document, passage.text, passage.shown) for passage in passages]
    content = json.dumps({"mix": mix._asdict(), "passages": rows}, ensure_ascii=False)
    (folder / "search.json").write_text(content, encoding="utf-8")
    script = Path(__file__).with_name("standalone.py").read_text(encoding="utf-8")
    script = script.replace("from helpers.data.words import words\n", inspect.getsource(words))
    (folder / "search.py").write_text(script, encoding="utf-8")


def load(folder: Path):
    """The function `search` of a saved folder: `load(folder)("a question")`."""
    import_bm25s()
    return runpy.run_path(str(folder / "search.py"))["search"]
