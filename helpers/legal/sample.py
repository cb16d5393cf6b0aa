"""A small grammar of legal questions and answers in a fictional jurisdiction: data for a run with no network.

Acts, cases and parties are invented, and every year is 2071 or later, so that nothing can be taken for law in force.
The citations have the shape of real ones. Each record is a small reasoning task: a claim succeeds if every element in
dispute is shown, and the facts in the question decide which are. The text is ours; nothing is copied from a data set.
"""

import random
import re
from typing import NamedTuple


class _Element(NamedTuple):
    name: str
    met: list[str]  # what the claimant did, past tense, so that "I" fits as well as a name
    unmet: list[str]


class _Area(NamedTuple):
    topic: str
    act: str
    section: str
    event: list[str]  # what happened, before the other party's name
    things: list[str]
    remedy: str
    purpose: str
    cases: list[str]
    elements: list[_Element]  # four


# A block is one area: topic; Act, section; events with {thing}; things; remedy; purpose; cases; then one line an element,
# "name: met | met / unmet | unmet". " | " parts alternatives.
_AREAS = """
Employment Law - Night Bakers
Night Bakers' Rest Act 2077, 21
worked nights among {thing} for | was employed to mind {thing} by | tended {thing} on the late shift for
the rye ovens | the croissant line | the sourdough vats | the pretzel belt | the honey cake trays | the bagel kettles
compensation for missed rest
those who bake through the night can sleep by day
Mistry v Goldcrust Ltd [2083] EAT 41 | Vane v Harbour Bakery [2087] ICR 902
employment: held a written contract of service | drew a monthly wage and wore the uniform / ran an independent stall and sent invoices | helped as a guest without pay
length of service: had completed a full year | joined four years earlier / started only nine days earlier | left after a trial of one week
missed breaks: was refused every break for a month | worked through ten nights without a pause / took each break in full | rested for an hour each night
timely claim: lodged the claim within six weeks | filed at the tribunal the next month / waited three years to claim | filed long after the time limit had run

Administrative Law - Carnival Permits
Carnival Permits Act 2088, 17
was refused a permit for {thing} by | applied to show {thing} before | lost a licence for {thing} at the hands of
a parade of giants | a lantern procession | a brass band raft | a stilt race | a mask market | a fireworks barge
an order quashing the decision
permits are decided fairly and in the open
R (Juniper) v Eastmere Council [2092] EWHC 96 (Admin) | R (Dray) v Mayor of Coldharbour [2091] AC 201
standing: was the applicant named in the form | lived on the route and ran the event / had no link to the town at all | acted for a rival who wished to stay unnamed
an unfair hearing: was never told the objections | was refused a word at the meeting / spoke for an hour and answered every point | received all papers a month ahead
promptness: issued the claim within three weeks | went to court the same fortnight / let two carnivals pass before acting | delayed for nineteen months without cause
lack of another remedy: had no right of appeal | used up the internal review first / ignored a free appeal | withdrew an appeal that was about to succeed

Family Law - Shared Pets
Shared Pets Act 2086, 8
shared {thing} for years with | raised {thing} together with | quarrelled about {thing} with
a grey parrot | an elderly tortoise | two whippets | a one-eyed cat | a talking mynah | a miniature donkey
an order for alternate weeks
an animal keeps the company that it is used to
Amory v Amory [2089] EWFC 52 | Re T (A Tortoise) [2095] 2 FLR 610
joint care: fed and walked it every other day | shared each bill of the veterinary surgeon / met it only at new year | left all its care to others
welfare: offered a large garden and a calm home | had a letter from the veterinary surgeon in support / lived where animals were forbidden | forgot its medicine for a month
workable distance: lived two streets away | moved to the same village / moved to another continent | lived nine hours away by train
good faith: kept every handover so far | told the other side of each illness / hid it in a friend's barn | renamed it and denied that it was the same animal

Intellectual Property - Recipe Rights
Recipe Rights Act 2082, 5
created {thing} later sold by | wrote down {thing} now used by | invented {thing} copied by
a plum dumpling | a saffron broth | a seaweed biscuit | a chestnut glaze | a pickled quince | a smoked butter
an injunction
cooks share freely what they choose to share
Saltmarsh v Bramble Foods Ltd [2087] EWHC 233 (IPEC) | Fennel v Rusk [2085] FSR 41
originality: tried sixty versions before the final one | combined the parts in a way unknown before / took it word for word from an old book | changed only the name of a common dish
fixation: recorded it in a dated notebook | filed the text at the registry / never put it into writing | only ever hummed the steps
copying: found the same misprint in the other text | traced a leaked page to the other kitchen / faced a rival who had worked alone | faced a text that was older than the claim
lack of a licence: never allowed any other use | limited the use to one evening / had sold all rights for a fee | gave the recipe to the public in print
"""


DIFFICULTIES = {"basic": 1, "intermediate": 2, "advanced": 3, "expert": 4}  # elements in dispute; steps are three more
CLAIMANTS = (
    "Alba Benedek Cosima Dorian Elspeth Fabian Greta Horatio Imogen Jasper Kerensa Leopold Marguerite Nikolai Ottilie "
    "Percival Quentin Rosalind Sebastian Tabitha Ulrika Valentin Winifred Xavier Yolanda Zebedee"
)
OPPONENTS = (
    "Aldercott Bexmoor Cranfold Dunwhistle Emberly Foxbridge Gorsefield Harkwell Inkpenny Jollibrook Kestrelton Lowmarsh "
    "Mossgrave Nettlecombe Orchardson Pinchbeck Quarrington Rookhope Silverthorn Thistlewood Vellacott Yarrowby"
)
TOWNS = (
    "Eastmere|Coldharbour|Little Sallow|Port Meridian|Upper Finch|Marlstone|Gullhaven|Old Tarn|Rushy Bay|Windlebury|"
    "North Quill|Saint Osk"
)

# The four forms of an answer; in a question " | " parts alternatives of one sentence.
FORMS = {
    "case analysis": (
        "In {town}, {who} {event} {other}. | {who} of {town} {event} {other}. | The parties are {who} and {other}; {who} {event} {other}.",
        "{who} {facts}. | It is agreed that {who} {facts}. | The court found that {who} {facts}.",
        "Is {who} entitled to {remedy}? | Will a claim for {remedy} succeed? | Decide under section {section} of the {act}. | What should the judge in {town} order?",
        "ISSUE: Whether {who} may have {remedy}.\nRULE: {rule}\nAPPLICATION: {application}\nCONCLUSION: {conclusion}",
    ),
    "educational": (
        "What does the {act} mean by {elements}? | Explain {elements} to a first-year student. | How is section {section} of the {act} taught?",
        "Take {who}, who {event} {other} in {town}. | Use as an example {who}, who {event} {other}. | In the textbook case {who} {event} {other}.",
        "There {who} {facts}. | Suppose that {who} {facts}. | The students learn that {who} {facts}.",
        "DEFINITION: Section {section} gives {remedy} to those who show {elements}.\nLEGAL BASIS: {rule}\n"
        "KEY ELEMENTS: In dispute are {elements}.\nEXAMPLES: {application} {conclusion}\n"
        "DISTINCTIONS: If {who} {opposite}, {element} would {be} shown and the claim would {change}.",
    ),
    "client interaction": (
        "I {event} {other}. | Last spring in {town} I {event} {other}. | I live in {town}. I {event} {other}.",
        "I {facts}. | I should add that I {facts}. | To be honest, I {facts}.",
        "Can I get {remedy}? | Should I sue? | Is it worth going to court under the {act}? | What are my chances of {remedy}?",
        "UNDERSTANDING: You {your_event} {other} and ask for {remedy}.\nLEGAL POSITION: {rule} {your_application}\n"
        "OPTIONS: You can bring a claim or settle with {other}.\nRECOMMENDATION: {conclusion} {advice}\n"
        "NEXT STEPS: Collect the papers on {elements} and write to {other}.",
    ),
    "statutory interpretation": (
        "How should section {section} of the {act} be read? | What is the right reading of {elements} in the {act}? | Does section {section} cover this case?",
        "{who} {event} {other} in {town}. | The dispute began when {who} {event} {other}. | In {town}, {who} {event} {other}.",
        "The evidence is that {who} {facts}. | {who} {facts}. | Nobody doubts that {who} {facts}.",
        "STATUTORY TEXT: Section {section} of the {act} speaks of {elements}.\nPURPOSE: The Act sees to it that {purpose}.\n"
        "INTERPRETATION: The words are read in the light of that purpose.\n"
        "CASE LAW: {case} reads the section in the same way.\nAPPLICATION: {application} {conclusion}",
    ),
}


def sample_records(count: int, seed: int) -> list[dict[str, str]]:
    """The fields of `count` records with different questions; the first n are the same for every `count` >= n.

    The number of reasoning steps is 4, 5, 6 or 7 from basic to expert, and answers take one of four forms. Raises
    ValueError when `count` is negative or more than one seed can give.
    """
    if count < 0:
        raise ValueError(f"count={count}: must be 0 or more")
    generator = random.Random(seed)
    records: dict[str, dict[str, str]] = {}
    for _ in range(20 * count + 100):
        if len(records) == count:
            return list(records.values())
        texts = _draw(generator)
        records.setdefault(texts["question"], {"id": f"sample-{len(records) + 1:05d}"} | texts)
    raise ValueError(f"count={count}: seed {seed} gives only {len(records)} different questions; ask for fewer")


def _draw(generator: random.Random) -> dict[str, str]:
    """The texts of one record, without its id."""
    area = generator.choice(AREAS)
    difficulty = generator.choice(list(DIFFICULTIES))
    elements = sorted(generator.sample(area.elements, DIFFICULTIES[difficulty]), key=area.elements.index)
    wins = generator.random() < 0.5  # or with four elements nearly every claim would fail
    shown = [wins or generator.random() < 0.5 for _ in elements]
    if not wins and all(shown):
        shown[generator.randrange(len(shown))] = False
    facts = [generator.choice(e.met if met else e.unmet) for e, met in zip(elements, shown, strict=True)]
    who = generator.choice(CLAIMANTS.split())
    names = _series([element.name for element in elements])
    case = generator.choice(area.cases)
    findings = [
        f"{fact}, so {e.name} is {'shown' if met else 'not shown'}."
        for fact, e, met in zip(facts, elements, shown, strict=True)
    ]
    missing = [element.name for element, met in zip(elements, shown, strict=True) if not met]
    conclusion = (
        f"Not shown: {_series(missing)}. The claim fails." if missing else "All is shown, so the claim succeeds."
    )
    event = generator.choice(area.event).format(thing=generator.choice(area.things))
    rule = f"Section {area.section} of the {area.act} requires {names}; nothing else is in dispute."
    first = elements[0]
    words = area._asdict() | {
        "who": who,
        "other": generator.choice(OPPONENTS.split()),
        "town": generator.choice(TOWNS.split("|")),
        "case": case,
        "elements": names,
        "event": event,
        "your_event": _second_person(event),
        "facts": _series(facts),
        "rule": rule,
        "application": " ".join(f"{who} {finding}" for finding in findings),
        "your_application": " ".join(f"You {_second_person(finding)}" for finding in findings),
        "conclusion": conclusion,
        "advice": "Settle if you can." if missing else "Bring the claim.",
        "opposite": generator.choice(first.unmet if shown[0] else first.met),
        "element": first.name,
        "be": "not be" if shown[0] else "be",
        "change": "succeed" if missing == [first.name] else "fail",
    }
    *sentences, answer = FORMS[generator.choice(list(FORMS))]
    question = " ".join(generator.choice(sentence.split(" | ")).format_map(words) for sentence in sentences)
    steps = [
        f"The question is whether section {area.section} of the {area.act} gives {area.remedy}.",
        f"The section asks for {names}.",
        *(f"The claimant {finding}" for finding in findings),
        conclusion,
    ]
    return {
        "question": question,
        "answer": answer.format_map(words),
        "topic": area.topic,
        "difficulty": difficulty,
        "case_citation": f"{case}; {area.act}, s {area.section}",
        "reasoning": " ".join(f"Step {number}: {step}" for number, step in enumerate(steps, 1)),
    }


def _area(block: str) -> _Area:
    topic, act, event, things, remedy, purpose, cases, *elements = block.split("\n")
    parted = [re.split(": | / ", line) for line in elements]
    return _Area(
        topic,
        *act.rsplit(", ", 1),
        event.split(" | "),
        things.split(" | "),
        remedy,
        purpose,
        cases.split(" | "),
        [_Element(name, met.split(" | "), unmet.split(" | ")) for name, met, unmet in parted],
    )


def _series(phrases: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))


def _second_person(phrase: str) -> str:
    return re.sub(r"^was |(?<= and )was ", "were ", phrase)


AREAS = [_area(block) for block in _AREAS.strip().split("\n\n")]
