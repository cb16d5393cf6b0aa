"""A few hundred records of invented law with their reasoning, for tests and for a run with no network. Nothing is claimed from them.

A claim is heard if the two towns differ and the sum is above a limit: counting words cannot tell, two steps can. Acts and years
are invented (2071 or later), so that nothing can be taken for law in force. The text is ours.
"""

import random

RECORDS = 300
CHANCE = 0.7  # of each of the two conditions
ACTS = {
    "Night Bakers Act 2077": "missed rest",
    "Shared Pets Act 2086": "a broken promise",
    "Ferry Lanterns Act 2090": "lost goods",
    "Shadow Gardens Act 2079": "a high wall",
    "Quiet Bells Act 2082": "noise at night",
}
PEOPLE = ["Alba", "Bertha", "Corin", "Dora", "Elfina", "Grelind", "Holmar", "Imsina", "Jaswen", "Kerthea", "Leonald"]
TOWNS = ["Bexmoor", "Dunfold", "Emberley", "Gorsefield", "Inkbridge", "Kestrelton", "Lowbrook", "Orchardby"]


def sample_records(count: int = RECORDS, seed: int = 0) -> list[dict[str, str]]:
    """`count` different records with question, reasoning and answer."""
    generator = random.Random(seed)
    records: dict[str, dict[str, str]] = {}
    while len(records) < count:
        record = _draw(generator)
        records.setdefault(record["question"], record)
    return list(records.values())


def _draw(generator: random.Random) -> dict[str, str]:
    act = generator.choice(list(ACTS))
    claimant, defendant = generator.sample(PEOPLE, 2)
    home, other = generator.sample(TOWNS, 2)
    differ = generator.random() < CHANCE
    above = generator.random() < CHANCE
    amounts = [10 * number for number in generator.sample(range(10, 100), 2)]
    limit, amount = sorted(amounts, reverse=not above)
    if not differ:
        other = home
    towns = ["the same town", "different towns"][differ]
    size = ["less", "more"][above]
    conclusion = ["Not both hold, so the claim is not heard", "Both hold, so the claim is heard"][differ and above]
    steps = [
        f"Step 1: {home} and {other} are {towns}.",
        f"Step 2: {amount} is {size} than {limit}.",
        f"Step 3: {conclusion}.",
    ]
    return {
        "question": f"{claimant} of {home} sues {defendant} of {other} for {ACTS[act]} and asks for {amount} crowns. The {act} hears a "
        f"claim between different towns for more than {limit} crowns. Is it heard?",
        "reasoning": "\n".join(steps),
        "answer": ["No", "Yes"][differ and above],
    }
