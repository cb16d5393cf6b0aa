"""Views of a text: random crops of it, the same ones again for the same (seed, pass, row, view).

Crops are better views of a text than two dropout masks (arXiv 2508.03453). The crops of all passes are written beforehand, to
files that are memory-mapped: a run that is resumed, and a second device, see the same views.
"""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.lejepa.data import TextData

if TYPE_CHECKING:
    import datasets

# A word is what stands between white space, or a character of a script that is written without any: Thai, Japanese, Chinese.
_SPACELESS = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")


def crop(
    text: str,
    generator: random.Random,
    *,
    min_share: float,
    max_share: float,
    max_words: int = 0,
) -> str:
    """A random span of `text`, white space within it as it was.

    Its length is uniform between these shares of the text's words, at least one word and at most `max_words`; 0: no limit.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    if not words:
        return text
    low, high = (max(1, min(round(share * len(words)), max_words or len(words))) for share in (min_share, max_share))
    length = generator.randint(low, high)
    begin = generator.randint(0, len(words) - length)
    return text[words[begin][0] : words[begin + length - 1][1]]


def make_views(
    texts: TextData,
    *,
    seed: int,
    crops: int,
    passes: int = 1,
    split: str = "train",
    folder: str | Path | None = None,
    **limits: float,
) -> datasets.Dataset:
    """`passes` times the rows of a split, each time in another order and with other crops.

    Columns, in the order in which a loss gets them, of documents: view_1 ... view_V; of pairs and triplets: anchor, positive,
    the crops of the positive, and the negative last.

    Train for one epoch of it, with `batch_sampler=in_order`: one that shuffled all passes would make a text its own negative.

    crops: at least 2 of a document, or 0 of a pair.
    folder: for an Arrow file, memory-mapped, which a later call for the same uses again. None: held in memory.
    limits: min_share, max_share and max_words of `crop`.

    Raises ValueError for a single crop of documents.
    """
    import datasets

    documents = texts.kind == "documents"
    if documents and crops < 2:
        raise ValueError(f"crops={crops}: must be at least 2 of documents (LeJEPA compares views), or 0 for 2")
    columns = (
        *(() if documents else ("anchor", "positive")),
        *(f"view_{number}" for number in range(1, crops + 1)),
        *(("negative",) if texts.kind == "triplets" else ()),
    )
    rows, cropped = getattr(texts, split), "text" if documents else "positive"
    drawn = []  # (pass, row) in the order of training
    for number in range(passes):
        order = list(range(len(rows)))
        random.Random(f"{seed} {number}").shuffle(order)
        drawn += [(number, row) for row in order]

    def views(batch, places):
        made = {column: batch[column] for column in columns if column in batch}
        for view in range(1, crops + 1):
            made[f"view_{view}"] = [
                crop(text, random.Random(f"{seed} {number} {row} {view}"), **limits)
                for text, (number, row) in zip(batch[cropped], (drawn[place] for place in places), strict=True)
            ]
        return made

    described = hashlib.sha256(repr((texts.source, split, seed, passes, columns, limits)).encode()).hexdigest()[:16]
    where = {"keep_in_memory": True}
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        where = {"cache_file_name": str(Path(folder) / f"{split}-{described}.arrow")}
    bars_were_on = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # a pass takes seconds at most
    made = rows.select([row for _, row in drawn]).map(
        views,
        batched=True,
        with_indices=True,
        remove_columns=[column for column in rows.column_names if column not in columns],
        new_fingerprint=described,
        **where,
    )
    if bars_were_on:
        datasets.enable_progress_bars()
    return made.select_columns(list(columns))


def in_order(dataset, **options):
    """For `SentenceTransformerTrainingArguments(batch_sampler=in_order)`: the rows as they come, as they are shuffled."""
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from torch.utils.data import SequentialSampler

    return DefaultBatchSampler(SequentialSampler(dataset), **options)
