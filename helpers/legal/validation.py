"""What is wrong with a set of legal records: which rows are set aside and why, and what is worth a look in the rest."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from helpers.legal.layout import HEADING, STEP
from helpers.legal.records import NEAR_DUPLICATE, Record, near_duplicates

STEPS = {"foundational": 4, "basic": 4, "intermediate": 5, "advanced": 6, "expert": 7}  # least steps of reasoning
MIN_ANSWER, MIN_REASONING = 100, 50  # characters; from the data set's own checklist for curators
FILLED = ("id", "question", "answer", "topic", "difficulty", "reasoning")
SET_ASIDE = {
    "empty field": "id, question, answer, topic, difficulty or reasoning has no text",
    "unknown difficulty": f"not one of {', '.join(STEPS)}",
    "duplicate id": "an earlier row that is kept has the same id",
    "repeated row": "an earlier row that is kept has the same question and answer",
    "no steps": "reasoning has no `Step 1:`",
    "broken steps": "steps are not numbered 1, 2, 3, ...",
    "markup": "a text holds a section heading (`### Answer:`) or a special token (`<|im_end|>`), which would break the layout",
}
WARNED = {
    "near-duplicate question": f"an earlier question shares at least {NEAR_DUPLICATE:.0%} of its shingles; kept in the same split",
    "few steps": "fewer than the difficulty asks for: " + ", ".join(f"{name} {steps}" for name, steps in STEPS.items()),
    "short text": f"answer below {MIN_ANSWER} or reasoning below {MIN_REASONING} characters",
    "no citation": "case_citation is empty",
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
    kept: tuple[Record, ...]
    set_aside: tuple[Record, ...]
    findings: tuple[Finding, ...]  # of all rows, in their order; a row can have several
    excluding: frozenset[str]  # defects that set a row aside
    counts: dict[str, Any]  # facts about the records kept, as `as_dict` gives them

    def of(self, defect: str) -> list[Finding]:
        """Findings of one defect, the first of each row: all where it sets rows aside, else those of rows that are kept."""
        out = set() if defect in self.excluding else {f.row for f in self.findings if f.defect in self.excluding}
        first: dict[int, Finding] = {}
        for finding in self.findings:
            if finding.defect == defect and finding.row not in out:
                first.setdefault(finding.row, finding)
        return [*first.values()]

    def as_dict(self) -> dict[str, Any]:
        """Counts for results.json: records, rows by defect, and of the records kept steps by difficulty and
        words of an answer. A row set aside for two defects counts under both; `warned` are rows that are kept.
        """
        rows = {defect: len(self.of(defect)) for defect in SET_ASIDE | WARNED}
        return {
            "records": len(self.kept) + len(self.set_aside),
            "kept": len(self.kept),
            "set_aside": {defect: rows[defect] for defect in rows if defect in self.excluding},
            "warned": {defect: rows[defect] for defect in rows if defect not in self.excluding},
            **self.counts,
        }

    def listed(self) -> list[dict[str, Any]]:
        """Each finding as a row of a table, and whether it sets the record aside."""
        return [asdict(finding) | {"set_aside": finding.defect in self.excluding} for finding in self.findings]

    def rows(self, examples: int = 3) -> list[dict[str, Any]]:
        """What there is, what is set aside for which defect, and what is kept, for `tables.show`."""
        facts = self.as_dict()
        found = [("all", facts["records"], "", ""), ("kept", facts["kept"], "", "")]
        for defect, meaning in (SET_ASIDE | WARNED).items():
            title = "set aside" if defect in self.excluding else "kept, but look at"
            hits = self.of(defect)
            details = "; ".join(f"row {f.row} {f.id!r}: {f.detail}".removesuffix(": ") for f in hits[:examples])
            found += [(f"{title}: {defect}", len(hits), meaning, details)] if hits else []
        for difficulty, steps in facts["steps"].items():
            asked = f"at least {STEPS.get(difficulty, 0)} steps expected"
            found += [(f"kept, {difficulty}", sum(steps.values()), asked, _listed(steps, "{1:,} with {0}"))]
        found += [("kept, words of an answer", None, "", _listed(facts["answer_words"], "{0} {1:,}"))]
        return [dict(zip(("records", "number", "meaning", "details"), each, strict=True)) for each in found]


def _listed(counts: Mapping[Any, int], form: str) -> str:
    return ", ".join(form.format(*each) for each in counts.items())


def validate(records: Sequence[Record], excluding: Collection[str] = frozenset(SET_ASIDE)) -> Report:
    """Checks every record; those with a defect of `excluding` are set aside, all others kept in their order.

    Nothing is dropped in silence: each defect of each row is a `Finding`. Near-duplicates are looked for among the
    records that are kept, so that being one sets no row aside. Raises ValueError where no record is kept.
    """
    excluding = frozenset(excluding)
    findings: list[Finding] = []
    ids: dict[str, int] = {}
    texts: dict[tuple[str, str], int] = {}
    for row, record in enumerate(records, 1):
        defects = _defects(record)
        same = (_plain(record.question), _plain(record.answer))
        for seen, key, defect in ((ids, record.id, "duplicate id"), (texts, same, "repeated row")):
            if key in seen:
                defects.append((defect, f"as row {seen[key]}"))
        if excluding.isdisjoint(defect for defect, _ in defects):  # a row that is set aside hides no good one after it
            ids[record.id] = texts[same] = row
        findings += [Finding(row, record.id, *defect) for defect in defects]
    bad = {finding.row for finding in findings if finding.defect in excluding}
    kept = [(row, record) for row, record in enumerate(records, 1) if row not in bad]
    if not kept:
        most = Counter(f.defect for f in findings if f.defect in excluding).most_common(3)
        raise ValueError(
            f"records: none of {len(records)} can be used ({', '.join(f'{defect} {rows}' for defect, rows in most)}); "
            "repair them, or leave these defects out of `excluding`"
        )
    for i, j, jaccard in near_duplicates([record.question for _, record in kept]):
        (first, _), (row, record) = kept[i], kept[j]
        findings.append(Finding(row, record.id, "near-duplicate question", f"of row {first}, Jaccard {jaccard:.2f}"))
    return Report(
        kept=tuple(record for _, record in kept),
        set_aside=tuple(record for row, record in enumerate(records, 1) if row in bad),
        findings=tuple(sorted(findings, key=lambda finding: finding.row)),
        excluding=excluding,
        counts=_counts([record for _, record in kept]),
    )


def _defects(record: Record) -> list[tuple[str, str]]:
    """Defects that show in one record alone, with their details."""
    found = [("empty field", name) for name in FILLED if not getattr(record, name)]
    if record.difficulty and record.difficulty not in STEPS:
        found.append(("unknown difficulty", record.difficulty))
    steps = [int(number) for number in STEP.findall(record.reasoning)]
    if record.reasoning and not steps:
        found.append(("no steps", record.reasoning[:40]))
    if steps != list(range(1, len(steps) + 1)):
        found.append(("broken steps", ", ".join(map(str, steps))))
    found += [("markup", f"{name}: {text}") for name in FILLED[1:] if (text := _markup(getattr(record, name)))]
    if steps and len(steps) < STEPS.get(record.difficulty, 0):
        found.append(("few steps", f"{len(steps)}, {record.difficulty} asks for {STEPS[record.difficulty]}"))
    for name, least in (("answer", MIN_ANSWER), ("reasoning", MIN_REASONING)):
        if 0 < len(getattr(record, name)) < least:
            found.append(("short text", f"{name}: {len(getattr(record, name))} characters"))
    if not record.case_citation:
        found.append(("no citation", ""))
    return found


def citations(text: str) -> list[str]:
    """Entries of a citation field, parted by ";" or a line's end. Whether a source exists is not checked."""
    return [entry.strip() for entry in re.split(r"[;\n]", text) if entry.strip()]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _markup(text: str) -> str:
    found = HEADING.search(text) or re.search(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>", text)
    return found[0].strip() if found else ""


def _counts(records: Sequence[Record]) -> dict[str, Any]:
    steps: dict[str, Counter[int]] = {name: Counter() for name in STEPS}
    for record in records:
        steps.setdefault(record.difficulty, Counter())[len(STEP.findall(record.reasoning))] += 1
    words = sorted(len(record.answer.split()) for record in records)
    at = {"least": 0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1}
    return {
        "steps": {name: dict(sorted(counted.items())) for name, counted in steps.items() if counted},
        "answer_words": {name: words[round(share * (len(words) - 1))] for name, share in at.items()},
    }
