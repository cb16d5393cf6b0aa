"""A few hundred records of invented law with their reasoning, for tests and for a run with no network. Nothing is claimed from them.

A claim is heard if the two towns differ and the sum is above a limit: counting words cannot tell, two steps can. Acts and years
are invented (2071 or later), so that nothing can be taken for law in force. The text is ours.
"""

import random

RECORDS = 300
HOLDS = 0.7  # how often each of the two conditions does
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
    differ, above = generator.random() < HOLDS, generator.random() < HOLDS
    other = other if differ else home
    limit, amount = sorted((10 * number for number in generator.sample(range(10, 100), 2)), reverse=not above)
    steps = [
        f"{home} and {other} are {'different towns' if differ else 'the same town'}.",
        f"{amount} is {'more' if above else 'less'} than {limit}.",
        f"{'Both hold' if differ and above else 'Not both hold'}, so the claim is {'' if differ and above else 'not '}heard.",
    ]
    return {
        "question": f"{claimant} of {home} sues {defendant} of {other} for {ACTS[act]} and asks for {amount} crowns. The {act} hears a "
        f"claim between different towns for more than {limit} crowns. Is it heard?",
        "reasoning": "\n".join(f"Step {number}: {step}" for number, step in enumerate(steps, 1)),
        "answer": "Yes" if differ and above else "No",
    }
