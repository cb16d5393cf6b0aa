"""What is wrong with a set of legal records: which rows are set aside and why, what is mended, and what is worth a look."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.legal.layout import HEADING, STEP, is_conversation, steps_of
from helpers.legal.records import NEAR_DUPLICATE, Record, near_duplicates

SPECIAL = re.compile(r"<[|｜][^|｜<>\s]{1,40}[|｜]>|</?s>|<(?:start|end)_of_turn>|<eos>")  # of the models in use
MIN_ANSWER, MIN_REASONING = 100, 50  # characters; from the data set's own checklist for curators
SET_ASIDE = {
    "no question": "question has no text, or a conversation does not end with a user and the answer",
    "no answer": "answer has no text, or a conversation does not end with the assistant",
    "repeated row": "an earlier row that is kept has the same question and answer",
    "broken steps": "steps go back (1, 3, 2), so that their order is not known",
    "markup": "a text holds a section heading (`### Answer:`) or a special token (`<|im_end|>`), which would break the layout",
}
WARNED = {
    "renumbered steps": "steps had gaps (1, 3, 4) and are now numbered 1, 2, 3",
    "prose reasoning": "reasoning has no `Step 1:`; prose is asked for",
    "no section": "topic, difficulty or reasoning has no text; that section is not asked for",
    "no citation": "case_citation has no text; no citation is asked for",
    "short text": f"answer below {MIN_ANSWER} or reasoning below {MIN_REASONING} characters",
    "near-duplicate question": f"an earlier question shares at least {NEAR_DUPLICATE:.0%} of its shingles; kept in the same split",
}
MEANINGS = SET_ASIDE | WARNED


@dataclass(frozen=True)
class Finding:
    """One defect of one row."""

    row: int  # of the records given, from 1
    id: str
    defect: str  # a key of SET_ASIDE or WARNED
    detail: str
    set_aside: bool  # this defect keeps the row from being used


@dataclass(frozen=True)
class Report:
    records: int
    kept: tuple[Record, ...]  # with their steps numbered 1, 2, 3
    findings: tuple[Finding, ...]  # of all rows, in their order; a row can have several

    def by_defect(self, set_aside: bool) -> dict[str, list[Finding]]:
        """The first finding of each row under its defect: of defects that set rows aside, or of rows that are kept."""
        out = {each.row for each in self.findings if each.set_aside}
        found: dict[str, dict[int, Finding]] = {}
        for each in self.findings:
            if each.set_aside if set_aside else each.row not in out:
                found.setdefault(each.defect, {}).setdefault(each.row, each)
        return {defect: [*found[defect].values()] for defect in MEANINGS if defect in found}

    def as_dict(self) -> dict[str, Any]:
        """Counts for results.json: records, and rows by defect. A row set aside for two defects counts under both."""
        ways = {"set_aside": self.by_defect(True), "warned": self.by_defect(False)}
        counts = {way: {defect: len(rows) for defect, rows in found.items()} for way, found in ways.items()}
        return {"records": self.records, "kept": len(self.kept)} | counts

    def rows(self, examples: int = 3) -> list[dict[str, Any]]:
        """What there is, what is set aside for which defect, and what is kept, for `tables.show`."""
        found = [("all", self.records, "", ""), ("kept", len(self.kept), f"{len(self.kept) / self.records:.0%}", "")]
        for title, way in (("set aside", True), ("kept, but look at", False)):
            for defect, hits in self.by_defect(way).items():
                details = "; ".join(f"row {f.row} {f.id!r}: {f.detail}".removesuffix(": ") for f in hits[:examples])
                found.append((f"{title}: {defect}", len(hits), MEANINGS[defect], details))
        return [dict(zip(("records", "number", "meaning", "details"), each, strict=True)) for each in found]


def validate(records: Sequence[Record], keeping: Collection[str] = ()) -> Report:
    """Checks every record; those with a defect of SET_ASIDE that is not in `keeping` are set aside, the order stays.

    Nothing is dropped or changed in silence: each defect of each row is a `Finding`. Near-duplicates are looked for among
    the records that are kept. Raises ValueError where no record is kept.
    """
    findings: list[Finding] = []
    kept: list[tuple[int, Record]] = []
    rows: dict[tuple[str, str], int] = {}  # of those kept, by their texts: a row set aside hides no good one after it
    for row, record in enumerate(records, 1):
        same = (_plain(record.asked), _plain(record.answer))
        defects = _defects(record) + ([("repeated row", f"as row {rows[same]}")] if same in rows else [])
        found = [Finding(row, record.id, *each, each[0] in SET_ASIDE and each[0] not in keeping) for each in defects]
        findings += found
        if not any(each.set_aside for each in found):
            rows[same] = row
            kept.append((row, record))
    if not kept:
        most = Counter(each.defect for each in findings if each.set_aside).most_common(3)
        named = ", ".join(f"{defect} {count}" for defect, count in most)
        raise ValueError(f"records: none of {len(records)} can be used ({named}); repair them")
    for i, j, jaccard in near_duplicates([record.asked for _, record in kept]):
        (first, _), (row, record) = kept[i], kept[j]
        told = f"of row {first}, Jaccard {jaccard:.2f}"
        findings.append(Finding(row, record.id, "near-duplicate question", told, set_aside=False))
    findings.sort(key=lambda finding: finding.row)
    return Report(len(records), tuple(_renumbered(record) for _, record in kept), tuple(findings))


def _defects(record: Record) -> list[tuple[str, str]]:
    """Defects that show in one record alone, with their details."""
    found = [(f"no {name}", "") for name in ("question", "answer") if not getattr(record, name)]
    written = [record.topic, record.difficulty, record.reasoning, record.answer, record.case_citation]
    special = [SPECIAL.search(text) for text in (*(text for _, text in record.turns), record.question, *written)]
    headings = [] if is_conversation(record) else [HEADING.search(text) for text in (record.question, *written)]
    found += [("markup", hit[0].strip()) for hit in (*special, *headings) if hit]
    steps = steps_of(record.reasoning)
    if not _increasing(steps):
        found.append(("broken steps", ", ".join(map(str, steps))))
    elif steps != [*range(1, len(steps) + 1)]:
        found.append(("renumbered steps", ", ".join(map(str, steps))))
    if not is_conversation(record):
        found += [("no section", name) for name in ("topic", "difficulty", "reasoning") if not getattr(record, name)]
        found += [("prose reasoning", record.reasoning[:40])] if record.reasoning and not steps else []
        found += [("no citation", "")] if not record.case_citation else []
    for name, least in (("answer", MIN_ANSWER), ("reasoning", MIN_REASONING)):
        if 0 < len(getattr(record, name)) < least:
            found.append(("short text", f"{name}: {len(getattr(record, name))} characters"))
    return found


def _increasing(numbers: Sequence[int]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _renumbered(record: Record) -> Record:
    """The record with gaps in its numbering closed."""
    if not _increasing(steps_of(record.reasoning)):
        return record
    numbers = itertools.count(1)
    return replace(record, reasoning=STEP.sub(lambda _: f"Step {next(numbers)}:", record.reasoning))


def citations(text: str) -> list[str]:
    """Entries of a citation field, parted by ";" or a line's end. Whether a source exists is not checked."""
    return [entry.strip() for entry in re.split(r"[;\n]", text) if entry.strip()]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
