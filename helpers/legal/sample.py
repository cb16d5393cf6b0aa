"""A small grammar of legal questions and answers in a fictional jurisdiction: data for a run with no network.

Acts, cases and parties are invented, and every year is 2071 or later, so that nothing can be taken for law in force.
The citations have the shape of real ones. The text is ours; nothing is copied from a data set.

No record can be learnt by heart: the question holds the rule, the facts and two cases. A claim succeeds if every element
asked for is shown, and the case that went the same way supports it. Whether a fact shows its element follows from how it is
told ("did not fail to" is "managed to"; the absence of something is shown by what was not done). Names are two syllables,
facts an act and a circumstance. A fifth of the names, of the facts and of the sets of elements is not in training, and two
areas of law are not.
"""

import random
from typing import Any, NamedTuple


class Gold(NamedTuple):
    """What is right for one record of the sample."""

    part: str  # a key of PARTS
    verdict: str  # "succeeds" or "fails"
    findings: tuple[tuple[str, bool], ...]  # each element asked for, and whether it is shown
    facts: tuple[str, ...]  # as the question tells them, one an element
    parties: tuple[str, ...]  # named in the question; who asks for himself has no name
    citation: str  # the case that supports the verdict
    other_citation: str  # and the one that does not


# A block is one area: topic; Act, section; two places where its cases are reported, one that was allowed and one that was not;
# what happened, before the other party's name; remedy; then a line an element, "name: its acts" (infinitives without "to").
# " | " parts alternatives. Of the last two areas nothing is in training.
AREAS = """
Employment Law - Night Bakers
Night Bakers Act 2077, 21
[2083] EAT 41 | [2087] ICR 902
worked nights for | minded the ovens of
pay for missed rest
written proof: sign a contract | keep a copy | agree wages on paper
steady service: turn up each week | finish a full year | wear the uniform
missed rest: work all night | go without a pause | skip every break
timely notice: warn the manager | file a complaint | send the form
absence of waiver: accept money | give up the right | sign a release

Administrative Law - Carnival Permits
Carnival Permits Act 2088, 17
[2092] EWHC 96 (Admin) | [2091] AC 201
was refused a parade by | lost a licence to
a quashing order
public standing: fill in the form | live on the route | run the event
open hearing: speak at the meeting | see the papers | answer each point
prompt action: issue the claim | go to court | ask for a review
public benefit: invite the schools | open the gates | sweep the streets
absence of danger: block the lane | light a fire | crowd the bridge

Family Law - Shared Pets
Shared Pets Act 2086, 8
[2089] EWFC 52 | [2095] 2 FLR 610
shared a parrot with | quarrelled about a cat with
an order for alternate weeks
joint care: feed the animal | share the bills | take it for walks
calm home: fence the garden | heat the stable | keep the rooms quiet
good faith: keep each promise | tell of its illness | return its basket
close distance: move to the village | stay in the street | travel by road
absence of cruelty: starve the animal | leave it in the rain | tease it

Intellectual Property - Recipe Rights
Recipe Rights Act 2082, 5
[2087] EWHC 233 (IPEC) | [2085] FSR 41
created a soup sold by | wrote down a cake used by
an injunction
original work: invent the method | test new spices | combine the parts
fixed record: write it down | register the text | film each step
proven copying: find the misprint | trace a leaked page | taste the dish
secret kept: lock the kitchen | swear in the cooks | hide the list
absence of licence: sell the rights | lend the method | print it

Maritime Law - Ferry Lanterns
Ferry Lanterns Act 2090, 12
[2094] EWHC 18 (Admlty) | [2093] 1 Lloyd's Rep 77
lost a cargo on a boat of | shipped an organ with
the value of the goods
paid passage: buy a ticket | pay the freight | settle the toll
sound packing: pad the crates | seal the lids | tie the ropes
clear marking: paint a number | attach a label | list the goods
swift protest: call the harbour | write to the owner | report the loss
absence of recklessness: sail alone | ignore the bell | race another boat

Planning Law - Shadow Gardens
Shadow Gardens Act 2079, 33
[2084] UKUT 140 (LC) | [2086] PTSR 58
grew ferns beside a wall of | planted moss under the windows of
removal of the wall
long use: tend the beds | water the soil | gather a harvest
lawful planting: obtain a certificate | follow the plan | respect the hedge
real harm: measure the light | photograph the leaves | record the loss
fair offer: propose a trellis | meet the neighbour | suggest a fence
absence of spite: mock the builder | block the path | spoil the mortar
""".strip().split("\n\n")

HELD_OUT_AREAS = 2
HELD_OUT = 5  # one in so many of the names, the facts and the sets of elements
PARTS = {"train": 7, "validation": 1, "test": 1, "areas": 1}  # of ten records; "areas" is law that is not in training
DIFFICULTIES = {"basic": 1, "intermediate": 2, "advanced": 3, "expert": 4}  # elements asked for; steps are three more
DONE = ("managed to", "took care to", "remembered to", "did not fail to", "did not forget to", "did not decline to")
NOT_DONE = ("failed to", "forgot to", "declined to", "did not manage to", "did not take care to", "did not remember to")
CIRCUMSTANCES = "in January|before noon|at the gate|with a cousin|on a Sunday|near the mill|without help|in public|after supper|for a wager"
FIRST = "Al Ben Cor Dor El Fa Gre Hol Im Jas Ker Leo Mar Nik Ot Per Ros Seb Tab Ul"
FIRST_ENDS = "bert dora fina gard linda mira nald sine thea vino wena zar"
OTHER = "Alder Bex Dun Ember Gorse Ink Jolly Kestrel Low Nettle Orchard Quarry Rook Silver Thistle"
OTHER_ENDS = "cott moor fold whistle bridge field penny brook ton marsh"
CASE = "Ash Birk Colt Dray Finch Grim Hay Jux Kell Lang Mort Nor Pell Rud Stan Tew Vane Wick Yar Zell"
CASE_ENDS = "son worth man ett by ham"
TOWNS = "Eastmere|Coldharbour|Sallow|Port Meridian|Upper Finch|Marlstone|Gullhaven|Old Tarn"

# The three forms of an answer; in a question " | " parts alternatives of one sentence.
FORMS = {
    "case analysis": (
        "In {town}, {who} {event} {other}. | The parties are {who} and {other}; {who} {event} {other}.",
        "{law}",
        "It is agreed {facts}. | The court found {facts}.",
        "Is {who} entitled to {remedy}? | What should the judge in {town} order?",
        "ISSUE: Whether {who} may have {remedy} from {other}.\nRULE: Each element must be shown.\nAPPLICATION: {balance}\nCONCLUSION: {conclusion}",
    ),
    "educational": (
        "{law}",
        "Explain this to a student. | How is this taught?",
        "Take {who}, who {event} {other}. | In the textbook case {who} {event} {other} in {town}.",
        "The book says {facts}. | Suppose {facts}.",
        "DEFINITION: The section gives {remedy}.\nEXAMPLE: {who} against {other}; each element must be shown. {balance}\nRESULT: {conclusion}",
    ),
    "client interaction": (
        "I {event} {other}. | I live in {town}. I {event} {other}.",
        "My notes say {facts}. | I can prove {facts}.",
        "{law}",
        "Can I get {remedy}? | Should I sue?",
        "UNDERSTANDING: You ask {other} for {remedy}.\nLEGAL POSITION: Each element must be shown. {balance}\nRECOMMENDATION: {conclusion} {advice}",
    ),
}  # fmt: skip


def sample_records(count: int, seed: int) -> list[dict[str, Any]]:
    """The fields of `count` records with different questions; the first n are the same for every `count` >= n.

    Of ten records in a row seven are to train on, one to validate, one to test, and one is of an area that is not in
    training (`Gold.part`). The number of reasoning steps is 4, 5, 6 or 7 from basic to expert, and answers take one of
    three forms. Raises ValueError when `count` is negative or more than one seed can give.
    """
    if count < 0:
        raise ValueError(f"count={count}: must be 0 or more")
    generator = random.Random(seed)
    parts = [part for part, share in PARTS.items() for _ in range(share)]
    records: dict[str, dict[str, Any]] = {}
    for _ in range(20 * count + 100):
        if len(records) == count:
            return list(records.values())
        fields = _draw(generator, parts[len(records) % len(parts)])
        records.setdefault(fields["question"], {"id": f"sample-{len(records) + 1:05d}"} | fields)
    raise ValueError(f"count={count}: seed {seed} gives only {len(records)} different questions; ask for fewer")


def _draw(generator: random.Random, part: str) -> dict[str, Any]:
    """The fields of one record, without its id."""
    choice, held = generator.choice, part != "train"

    def drawn(starts: list[str], ends: list[str], shift: int = 0) -> str:
        """One of each, from a diagonal of their grid that is held out, or from none of these."""
        while True:
            row, column = generator.randrange(len(starts)), generator.randrange(len(ends))
            if ((row + column + shift) % HELD_OUT == 0) == held:
                return starts[row] + ends[column]

    def case(report: str) -> str:
        first, second = (drawn(CASE.split(), CASE_ENDS.split()) for _ in range(2))
        return f"{first} v {second} {report}"

    areas = AREAS[-HELD_OUT_AREAS:] if part == "areas" else AREAS[:-HELD_OUT_AREAS]
    area = choice(areas)
    topic, act, reports, events, remedy, *lines = area.split("\n")
    act, section = act.rsplit(", ", 1)
    difficulty = choice(list(DIFFICULTIES))
    while True:
        chosen = sorted(generator.sample(range(len(lines)), DIFFICULTIES[difficulty]))
        if part == "areas" or ((sum(chosen) + areas.index(area)) % HELD_OUT == 0) == held:
            break
    elements = [lines[each].split(": ") for each in chosen]
    wins = generator.random() < 0.5  # or with four elements nearly every claim would fail
    shown = [wins or generator.random() < 0.5 for _ in elements]
    if not wins and all(shown):
        shown[generator.randrange(len(shown))] = False
    asked = [name for name, _ in elements]
    facts = []
    for shift, (name, acts), met in zip(chosen, elements, shown, strict=True):
        verb = choice(DONE if met != name.startswith("absence") else NOT_DONE)
        facts.append(f"{verb} {drawn(acts.split(' | '), [f' {each}' for each in CIRCUMSTANCES.split('|')], shift)}")
    told = [f"on {name}: {fact}" for name, fact in zip(asked, facts, strict=True)]
    who, other = drawn(FIRST.split(), FIRST_ENDS.split()), drawn(OTHER.split(), OTHER_ENDS.split())
    form = choice(list(FORMS))
    claimant = "The client" if form == "client interaction" else who
    cases = dict(zip(("allowed", "dismissed"), map(case, generator.sample(reports.split(" | "), 2)), strict=True))
    outcome = "allowed" if wins else "dismissed"
    rule = f"Section {section} of the {act} asks for {_series(asked)}."
    missing = [name for name, met in zip(asked, shown, strict=True) if not met]
    balance = f"Not shown: {_series(missing)}." if missing else "All is shown."
    conclusion = "The claim fails." if missing else "The claim succeeds."
    law = " and ".join(f"{way} in {cases[way]}" for way in generator.sample(list(cases), 2))
    words = {
        "who": who,
        "other": other,
        "town": choice(TOWNS.split("|")),
        "remedy": remedy,
        "event": choice(events.split(" | ")),
        "facts": "; ".join(told),
        "law": f"{rule} A claim was {law}.",
        "balance": balance,
        "conclusion": conclusion,
        "advice": "Settle if you can." if missing else "Bring the claim.",
    }
    *sentences, answer = FORMS[form]
    steps = [
        f"{claimant} asks {other} for {remedy}.",
        rule,
        *(
            f"{text}, so {name} is {'shown' if met else 'not shown'}."
            for text, name, met in zip(told, asked, shown, strict=True)
        ),
        f"{balance} {conclusion} A claim was {outcome} in {cases[outcome].partition(' [')[0]}.",
    ]
    return {
        "question": " ".join(choice(sentence.split(" | ")).format_map(words) for sentence in sentences),
        "answer": answer.format_map(words),
        "topic": topic,
        "difficulty": difficulty,
        "case_citation": f"{act}, s {section}; {cases[outcome]}",
        "reasoning": " ".join(f"Step {number}: {step}" for number, step in enumerate(steps, 1)),
        "gold": Gold(
            part=part,
            verdict="fails" if missing else "succeeds",
            findings=tuple(zip(asked, shown, strict=True)),
            facts=tuple(facts),
            parties=(other,) if form == "client interaction" else (who, other),
            citation=cases[outcome],
            other_citation=cases["dismissed" if wins else "allowed"],
        ),
    }


def _series(phrases: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))
