"""What is wrong with a set of legal records: which rows are set aside and why, what is mended, and what is worth a look."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from helpers.legal.layout import HEADING, STEP, is_conversation
from helpers.legal.records import NEAR_DUPLICATE, Record, near_duplicates

SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>")
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


@dataclass(frozen=True)
class Finding:
    """One defect of one row."""

    row: int  # of the records given, from 1
    id: str
    defect: str  # a key of SET_ASIDE or WARNED
    detail: str


@dataclass(frozen=True)
class Report:
    kept: tuple[Record, ...]  # with their steps numbered 1, 2, 3
    set_aside: tuple[Record, ...]
    findings: tuple[Finding, ...]  # of all rows, in their order; a row can have several
    excluding: frozenset[str]  # defects that set a row aside

    def of(self, defect: str) -> list[Finding]:
        """Findings of one defect, the first of each row: all where it sets rows aside, else those of rows that are kept."""
        out = set() if defect in self.excluding else {f.row for f in self.findings if f.defect in self.excluding}
        first: dict[int, Finding] = {}
        for finding in self.findings:
            if finding.defect == defect and finding.row not in out:
                first.setdefault(finding.row, finding)
        return [*first.values()]

    def as_dict(self) -> dict[str, Any]:
        """Counts for results.json: records, and rows by defect. A row set aside for two defects counts under both; `warned`
        are rows that are kept.
        """
        rows = {defect: len(self.of(defect)) for defect in SET_ASIDE | WARNED}
        return {
            "records": len(self.kept) + len(self.set_aside),
            "kept": len(self.kept),
            "set_aside": {defect: rows[defect] for defect in rows if defect in self.excluding},
            "warned": {defect: rows[defect] for defect in rows if defect not in self.excluding},
        }

    def listed(self) -> list[dict[str, Any]]:
        """Each finding as a row of a table, and whether it sets the record aside."""
        return [asdict(finding) | {"set_aside": finding.defect in self.excluding} for finding in self.findings]

    def rows(self, examples: int = 3) -> list[dict[str, Any]]:
        """What there is, what is set aside for which defect, and what is kept, for `tables.show`."""
        all_records = len(self.kept) + len(self.set_aside)
        found = [("all", all_records, "", ""), ("kept", len(self.kept), f"{len(self.kept) / all_records:.0%}", "")]
        for defect, meaning in (SET_ASIDE | WARNED).items():
            title = "set aside" if defect in self.excluding else "kept, but look at"
            hits = self.of(defect)
            details = "; ".join(f"row {f.row} {f.id!r}: {f.detail}".removesuffix(": ") for f in hits[:examples])
            found += [(f"{title}: {defect}", len(hits), meaning, details)] if hits else []
        return [dict(zip(("records", "number", "meaning", "details"), each, strict=True)) for each in found]


def validate(records: Sequence[Record], excluding: Collection[str] = frozenset(SET_ASIDE)) -> Report:
    """Checks every record; those with a defect of `excluding` are set aside, all others kept in their order.

    Nothing is dropped or changed in silence: each defect of each row is a `Finding`. Near-duplicates are looked for among
    the records that are kept, so that being one sets no row aside. Raises ValueError where no record is kept.
    """
    excluding = frozenset(excluding)
    findings: list[Finding] = []
    texts: dict[tuple[str, str], int] = {}
    for row, record in enumerate(records, 1):
        defects = _defects(record)
        same = (_plain(record.asked), _plain(record.answer))
        if same in texts:
            defects.append(("repeated row", f"as row {texts[same]}"))
        if excluding.isdisjoint(defect for defect, _ in defects):  # a row that is set aside hides no good one after it
            texts[same] = row
        findings += [Finding(row, record.id, *defect) for defect in defects]
    bad = {finding.row for finding in findings if finding.defect in excluding}
    kept = [(row, record) for row, record in enumerate(records, 1) if row not in bad]
    if not kept:
        most = Counter(f.defect for f in findings if f.defect in excluding).most_common(3)
        raise ValueError(
            f"records: none of {len(records)} can be used ({', '.join(f'{defect} {rows}' for defect, rows in most)}); "
            "repair them, or leave these defects out of `excluding`"
        )
    for i, j, jaccard in near_duplicates([record.asked for _, record in kept]):
        (first, _), (row, record) = kept[i], kept[j]
        findings.append(Finding(row, record.id, "near-duplicate question", f"of row {first}, Jaccard {jaccard:.2f}"))
    return Report(
        kept=tuple(_renumbered(record) for _, record in kept),
        set_aside=tuple(record for row, record in enumerate(records, 1) if row in bad),
        findings=tuple(sorted(findings, key=lambda finding: finding.row)),
        excluding=excluding,
    )


def _defects(record: Record) -> list[tuple[str, str]]:
    """Defects that show in one record alone, with their details."""
    found = [(f"no {name}", "") for name in ("question", "answer") if not getattr(record, name)]
    written = [record.topic, record.difficulty, record.reasoning, record.answer, record.case_citation]
    special = [SPECIAL.search(text) for text in (*(text for _, text in record.turns), record.question, *written)]
    headings = [] if is_conversation(record) else [HEADING.search(text) for text in (record.question, *written)]
    found += [("markup", hit[0].strip()) for hit in (*special, *headings) if hit]
    steps = _steps(record)
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


def _steps(record: Record) -> list[int]:
    return [int(number) for number in STEP.findall(record.reasoning)]


def _increasing(numbers: Sequence[int]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _renumbered(record: Record) -> Record:
    """The record with gaps in its numbering closed."""
    if not _increasing(_steps(record)):
        return record
    numbers = itertools.count(1)
    return replace(record, reasoning=STEP.sub(lambda _: f"Step {next(numbers)}:", record.reasoning))


def citations(text: str) -> list[str]:
    """Entries of a citation field, parted by ";" or a line's end. Whether a source exists is not checked."""
    return [entry.strip() for entry in re.split(r"[;\n]", text) if entry.strip()]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
