"""A few hundred records of invented law, for tests and for a run with no network. Nothing is claimed from them.

Acts and years are invented (2071 or later), so that nothing can be taken for law in force. The text is ours.
"""

import random

RECORDS = 240
AREAS = {
    "Employment Law": (
        "Night Bakers Act 2077",
        21,
        "pay for missed rest",
        "written proof",
        "steady service",
        "timely notice",
    ),
    "Family Law": (
        "Shared Pets Act 2086",
        8,
        "an order for alternate weeks",
        "joint care",
        "a calm home",
        "good faith",
    ),
    "Maritime Law": (
        "Ferry Lanterns Act 2090",
        12,
        "the value of the goods",
        "paid passage",
        "sound packing",
        "swift protest",
    ),
    "Planning Law": (
        "Shadow Gardens Act 2079",
        33,
        "removal of the wall",
        "long use",
        "lawful planting",
        "a fair offer",
    ),
}
CLAIMANTS = [
    "Alba",
    "Bertha",
    "Corin",
    "Dora",
    "Elfina",
    "Grelind",
    "Holmar",
    "Imsina",
    "Jaswen",
    "Kerthea",
    "Leonald",
    "Marvino",
]
DEFENDANTS = [
    "Aldercott",
    "Bexmoor",
    "Dunfold",
    "Emberley",
    "Gorsefield",
    "Inkbridge",
    "Kestrelton",
    "Lowbrook",
    "Nettlemarsh",
    "Orchardby",
]
DIFFICULTIES = ("basic", "intermediate", "advanced")  # by how many elements are asked for


def sample_records(count: int = RECORDS, seed: int = 0) -> list[dict[str, str]]:
    """`count` different records with question, answer, topic, difficulty, reasoning and case_citation."""
    generator = random.Random(seed)
    found: dict[str, dict[str, str]] = {}
    while len(found) < count:
        record = _draw(generator)
        found.setdefault(record["question"], record)
    return list(found.values())


def _draw(generator: random.Random) -> dict[str, str]:
    topic, (act, section, remedy, *elements) = generator.choice(list(AREAS.items()))
    claimant, defendant = generator.choice(CLAIMANTS), generator.choice(DEFENDANTS)
    asked = sorted(generator.sample(elements, generator.randint(1, 3)), key=elements.index)
    shown = {name: generator.random() < 0.7 for name in asked}
    facts = [f"{name} was {'proved' if met else 'never proved'}" for name, met in shown.items()]
    rule = f"Section {section} of the {act} asks for {' and '.join(asked)}."
    succeeds = all(shown.values())
    steps = [rule, *(f"{name} is {'shown' if met else 'not shown'}." for name, met in shown.items())]
    steps.append(f"The claim {'succeeds' if succeeds else 'fails'}.")
    return {
        "question": f"{claimant} claims {remedy} from {defendant}. {rule} At the hearing {', '.join(facts)}. Does the claim succeed?",
        "answer": f"{'Yes' if succeeds else 'No'}. {claimant} {'may' if succeeds else 'may not'} have {remedy}.",
        "topic": topic,
        "difficulty": DIFFICULTIES[len(asked) - 1],
        "reasoning": " ".join(f"Step {number}: {step}" for number, step in enumerate(steps, 1)),
        "case_citation": f"{act}, s {section}",
    }
