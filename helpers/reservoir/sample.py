"""A small generative grammar of children's stories: data for a run with no network and no account.

Each story keeps one hero, one friend, one relative and one object to the last sentence, so that a model with a longer
memory predicts it better. The text is ours.
"""

import random
import re

SHE, HE = ("she", "her", "her"), ("he", "him", "his")
GIRLS = ("Lily", "Mia", "Anna", "Sue", "Rosie", "Ella", "Maya", "Nora", "Zoe", "Amina")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Tim", "Noah", "Hugo", "Kenji")
CHILDREN = [(name, "girl", *SHE) for name in GIRLS] + [(name, "boy", *HE) for name in BOYS]
ANIMALS = [("Pip", "rabbit", *SHE), ("Dot", "duck", *SHE), ("Luna", "cat", *SHE), ("Pearl", "mouse", *SHE)]
ANIMALS += [("Bruno", "bear", *HE), ("Ollie", "owl", *HE), ("Rex", "dog", *HE), ("Moss", "frog", *HE)]
RELATIVES = (("mom", "she"), ("grandma", "she"), ("dad", "he"), ("grandpa", "he"))

# One entry is drawn from each pool for each story; several words in one entry belong together.
POOLS = {
    "trait": "little|kind|brave|curious|quiet|clever",
    "adj": "red|blue|green|yellow|old|new|big|small",
    "toy": "ball|kite|drum|doll|toy boat|robot|hat|book",
    "hobby": "sing songs|paint pictures|look for bugs|tell jokes|climb trees|pick flowers",
    "at place": "at:the park|in:the garden|in:the forest|at:the beach|on:the farm|by:the river|on:the hill|by:the lake",
    "day": "One day|One sunny morning|Early one morning|After lunch",
    "spot": "under a bush|behind a big rock|in the tall grass|near the old gate|behind the shed",
    "sad": "sad|upset|worried|very sad",
    "glad": "happy|glad|proud|so happy",
    "game": "tag|hide and seek|catch|pirates",
    "fragile": "vase|teapot|lamp|plate|mirror",
    "skill fail tip": "ride a bike:the bike tipped over:Look straight ahead and keep going"
    "|whistle a tune:only air came out:Make your lips round and blow softly"
    "|build a tower:the tower fell down:Put the biggest block at the bottom",
    "fear trial cure": "the dark:sleep without a light:The dark is only the day taking a nap"
    "|thunder:listen to a whole storm:Thunder is only the clouds clapping their hands"
    "|deep water:step into the pond:Stay near the edge and hold my hand",
    "found trap tool": "kitten:was stuck high in a tree:a ladder|puppy:had fallen into a deep hole:a long board"
    "|lamb:was caught in a thorny bush:some gloves",
}

# A line is one sentence slot, " | " parts its alternatives, a blank line is a new paragraph.
OPENING = """
Once upon a time, there was a {trait} {kind} named {hero}. | In a house near {place} lived a {trait} {kind} named {hero}.
{he} loved to {hobby}. | Every day, {he} liked to {hobby}.
"""
PLOTS = (
    """{he} had a {adj} {toy}. | {his} {relative} had given {him} a {adj} {toy}.

{day}, {hero} was playing {at} {place} when {he} saw that the {toy} was gone.
"Oh no! Where is my {toy}?" {he} cried. | "My {toy}! I had it this morning!" {he} said. {he} felt {sad}.
{intro} heard {him} and came running. "I will help you look," said {friend}.

They looked everywhere {at} {place}. No {toy}!
Then {friend} looked {spot} and shouted, "Come here, I see it!" | Then {hero} looked {spot}, and there it was.
{hero} held the {adj} {toy} tight. {he} was {glad}. | "Thank you, {friend}," said {hero}. "You are a good friend."
After that, {hero} always put the {toy} back in its place. | On the way home, {hero} and {friend} played {game}.
""",
    """
{day}, {hero} took {his} {adj} {toy} to play {at} {place}. | {hero} got a {adj} {toy} from {his} {relative}.
{intro} came by. "Can I play with your {toy}?" asked {friend}. | "May I have a turn?" asked {intro}.
"No! It is mine," said {hero}, and {he} held the {toy} behind {his} back.
{friend} felt {sad} and walked away. | {friend} sat down {spot}, looking {sad}.
{hero} played alone with the {adj} {toy}, but it was not much fun.

{his} {relative} saw this and said, "A {toy} is more fun with two."
{hero} ran to {friend}. "I am sorry. Let's play together," {he} said. | "{friend}, take the first turn!" {hero} said.
They took turns with the {toy} until the sun went down. | They played with the {adj} {toy}, and then {game}.
{hero} was {glad}. Sharing was better than keeping. | {hero} told {his} {relative} that sharing made {him} {glad}.
""",
    """
{day}, {hero} played {game} {at} {place} with {intro}. They heard a tiny cry.
"Listen!" said {friend}. Not far away there was a {found}. It {trap}.
"Poor {found}! We have to help," said {hero}. | "Do not be afraid, little {found}," {hero} said.

{hero} tried to reach it, but {he} could not do it alone.
"We can use {tool}," said {friend}. | Then {hero} had an idea. "We need {tool}!" {he} said.
They ran to ask {his} {relative}, who gave them {tool}.
Slowly and carefully, they went to work, and soon the {found} was safe.

"You did well," said {his} {relative}. {hero} and {friend} were {glad}. | The {found} looked at {hero} as if to say thank you.
""",
    """But {hero} was afraid of one thing. {he} was afraid of {fear}.

{day}, {intro} asked {him} to {trial}. | "Will you {trial} with me?" asked {intro} {at} {place}.
"I am too scared," said {hero} in a small voice. | {hero} felt {sad}. "What if something bad happens?"
{friend} did not laugh. "Everyone is scared of something," {fhe} said.

That evening, {hero} asked {his} {relative} what to do.
{his} {relative} smiled and said, "{cure}." | "{cure}," said {his} {relative}, and gave {him} a hug.
The next day, {hero} held {his} {adj} {toy} and took a deep breath. {he} was ready to {trial}, and {he} did!

"I did it!" shouted {hero}. "I am not afraid of {fear} anymore!" | "You were so brave," said {friend}. {hero} was {glad}.
""",
    """
{day}, {hero} was playing with {his} {adj} {toy} inside the house.
Crash! The {toy} hit the {fragile}, and it broke. | {he} threw the {toy} up high. It came down on the {fragile}, which broke.
"Oh no," whispered {hero}. "My {relative} loves that {fragile}."

{hero} thought about hiding the pieces {spot}. | At first {he} wanted to say that the wind did it.
{intro} said, "It is better to tell the truth." | "Just say you are sorry," said {intro}.
{hero} felt {sad}, but {he} told {his} {relative} the whole story.

"Thank you for telling me," said {his} {relative}.
Together they picked up the pieces and fixed the {fragile} with glue.
{hero} was {glad}. After that, {he} played with the {toy} {at} {place}. | {hero} put the {adj} {toy} away and gave {his} {relative} a hug.
""",
    """
{day}, {he} saw {intro} {at} {place}. {friend} could {skill}. | {intro} knew how to {skill}.
"Can you show me how to {skill}?" asked {hero}. | "I want to {skill} just like you," {hero} said.
{hero} tried, but {fail}. {he} tried again, and again {fail}.
"I will never learn it!" said {hero}. | {hero} kicked {his} {adj} {toy} and sat down {spot}. {he} was {sad}.

"{tip}," said {friend}. | {his} {relative} had watched. "{tip}," {rhe} said.
{hero} got up and tried one more time. This time, it worked! | {he} tried and tried until it worked.
"Look! I can {skill}!" {he} shouted.

That evening, {hero} showed {his} {relative}, who was proud of {him}. | {friend} cheered, and {hero} was {glad}.
Now {hero} likes to {hobby} and to {skill}.
""",
)


def sample_stories(count: int, seed: int) -> list[str]:
    """`count` different stories of some 115 words; the first n are the same for every `count` >= n.

    Paragraphs are parted by one newline. Raises ValueError when `count` is more than one seed can give.
    """
    generator = random.Random(seed)
    stories: dict[str, None] = {}
    for _ in range(20 * count + 100):
        if len(stories) == count:
            return list(stories)
        stories[_story(generator)] = None
    raise ValueError(f"count={count}: seed {seed} gives only {len(stories)} different stories; ask for fewer")


def _story(generator: random.Random) -> str:
    words = _cast(generator)
    for names, pool in POOLS.items():
        words |= zip(names.split(), generator.choice(pool.split("|")).split(":"), strict=True)
    slots = (OPENING + generator.choice(PLOTS)).strip().split("\n")
    sentences = [generator.choice(slot.split(" | ")).format_map(words) for slot in slots]
    begun = [re.sub(r"(^|[.!?] )[a-z]", lambda found: found[0].upper(), sentence) for sentence in sentences]
    return re.sub(r"\b(a) (?=[aeiou])", r"\1n ", " ".join(begun).replace("  ", "\n"))


def _cast(generator: random.Random) -> dict[str, str]:
    """The words for hero, friend and relative; the friend of a child is a child, and of an animal an animal."""
    world = CHILDREN if generator.random() < 0.7 else ANIMALS
    (hero, kind, he, him, his), (friend, friend_kind, fhe, *_) = generator.sample(world, 2)
    relative, rhe = generator.choice(RELATIVES)
    intro = f"{his} friend {friend}" + (f" the {friend_kind}" if world is ANIMALS else "")
    words = {"hero": hero, "kind": kind, "he": he, "him": him, "his": his}
    return words | {"friend": friend, "fhe": fhe, "intro": intro, "relative": relative, "rhe": rhe}
