"""A small generative grammar of children's stories: data for a run with no network and no account.

Each story keeps one hero, one friend, one relative and one object to the last sentence, so that a model with a longer
memory predicts it better. The text is ours.
"""

import random
from typing import NamedTuple

MIN_WORDS, MAX_WORDS = 60, 150


class Character(NamedTuple):
    """Somebody in a story: name, what they are, and how to speak of them."""

    name: str
    kind: str
    he: str
    him: str
    his: str


def _characters(pairs: str, pronouns: tuple[str, str, str]) -> tuple[Character, ...]:
    return tuple(Character(*pair.split(":"), *pronouns) for pair in pairs.split())


_SHE, _HE = ("she", "her", "her"), ("he", "him", "his")
_GIRLS = "Lily Mia Anna Sue Rosie Ella Maya Nora Jane Zoe Ruby Clara Ivy Emma Tess Lucy Hana Amina Sofia Greta"
_BOYS = "Tom Ben Max Sam Leo Jack Tim Noah Finn Omar Hugo Eli Paul Ravi Oscar Luke Adam Kenji Peter Milo"
CHILDREN = _characters(" ".join(f"{name}:girl" for name in _GIRLS.split()), _SHE) + _characters(
    " ".join(f"{name}:boy" for name in _BOYS.split()), _HE
)
ANIMALS = _characters(
    "Pip:rabbit Dot:duck Hazel:squirrel Pearl:mouse Bella:bear Minnow:otter Poppy:pig Luna:cat Clover:goat", _SHE
) + _characters("Bruno:bear Ollie:owl Fuzz:hedgehog Chip:squirrel Rex:dog Moss:frog Buck:deer Ziggy:fox Toby:mole", _HE)
RELATIVES = _characters("mom:mother grandma:grandmother", _SHE) + _characters("dad:father grandpa:grandfather", _HE)

# One entry is drawn from each pool for each story; several words in one entry belong together.
POOLS = {
    "trait": "little kind brave curious cheerful quiet clever friendly silly gentle polite young",
    "adj": "red blue green yellow purple orange shiny new old big small special striped golden",
    "toy": "ball|kite|drum|doll|toy boat|toy train|robot|hat|book|blanket|puzzle|wagon|spinning top|teddy bear|bucket",
    "hobby": "sing songs|paint pictures|count the clouds|jump in puddles|look for bugs|tell jokes|climb trees|read stories"
    "|dance in the rain|draw stars|pick flowers|make up rhymes|watch the birds|collect round stones|bake cookies",
    "at place": "at:the park|in:the garden|in:the forest|at:the beach|in:the meadow|on:the farm|by:the river"
    "|at:the playground|in:the village|on:the hill|by:the lake|in:the orchard",
    "day": "One day|One sunny morning|One warm afternoon|One windy day|One quiet morning|On a bright spring day"
    "|One cool autumn day|Early one morning|After lunch one day",
    "spot": "under a bush|behind a big rock|in the tall grass|near the old gate|under a pile of leaves"
    "|beside a muddy puddle|behind the shed|between two roots of a tree|next to the stone wall|under a wooden bench",
    "empty": "in the sandbox|behind the fence|under the stairs|by the well|inside a hollow log|near the pond|on the path",
    "sad": "sad|upset|worried|gloomy|very sad|unhappy",
    "glad": "happy|glad|proud|full of joy|very happy|so happy",
    "game": "tag|hide and seek|catch|hopscotch|pirates|follow the leader|a counting game|a jumping game",
    "fragile": "vase|teapot|lamp|plate|mirror|flower pot|glass bowl|picture frame|sugar jar",
    "skill fail tip": "ride a bike:the bike tipped over:Look straight ahead and keep going"
    "|whistle a tune:only air came out:Make your lips round and blow softly"
    "|jump rope:the rope got tangled:Listen to the rope and jump when it clicks"
    "|skip stones:the stone sank with a plop:Use a flat stone and throw it low"
    "|build a tall tower:the tower fell down:Put the biggest block at the bottom"
    "|juggle:the balls rolled away:Start with two and keep your eyes up",
    "fear trial cure": "the dark:sleep without a light:The dark is only the day taking a nap"
    "|thunder:listen to a whole storm:Thunder is only the clouds clapping their hands"
    "|deep water:step into the pond:Stay near the edge and hold my hand"
    "|the big dog next door:say hello to the big dog:That dog barks because he wants a friend"
    "|high places:climb to the top of the hill:Take one step at a time and look ahead"
    "|singing for others:sing one short song:Sing to one friend and forget the rest",
    "found trap tool": "kitten:was stuck high in a tree:a ladder|puppy:had fallen into a deep hole:a long board"
    "|baby bird:had fallen out of its nest:a soft scarf|lamb:was caught in a thorny bush:a pair of thick gloves"
    "|duckling:was stuck behind a fence:a small shovel|beetle:had fallen into a bucket of water:a leaf",
}

# A line is one sentence slot, " | " parts its alternatives (an empty one may be left out), a blank line is a new paragraph.
OPENING = """
Once upon a time, there was {a_trait} {kind} named {hero}. | There once was {a_trait} {kind} called {hero}. | {hero} was {a_trait} {kind} who lived near {place}. | In a small house near {place} lived {a_trait} {kind} named {hero}.
{He} loved to {hobby}. | More than anything, {he} liked to {hobby}. | Every day after breakfast, {he} liked to {hobby}. |
"""
PLOTS = {
    "lost": """
{hero} had {a_adj} {toy} that {he} took everywhere. | {His} favorite thing was {a_adj} {toy}. | {His} {relative} had given {him} {a_adj} {toy}, and {he} took good care of it.

{day}, {hero} was playing {at} {place} when {he} saw that the {toy} was gone. | {day}, {hero} came home from {place} and could not find the {adj} {toy}.
"Oh no! Where is my {toy}?" {he} cried. | "My {toy}! I had it this morning!" {he} said. {He} felt {sad}.
{Friend_intro} heard {him} and came running. "Do not worry, {hero}. I will help you look," said {friend}. | {Friend_intro} saw that {hero} was {sad}. "Let's look for it together," {friend} said.

First they looked {empty}, but it was not there. | They looked {empty}. No {toy}!
Then {friend} looked {spot} and shouted, "Come here, I see it!" | Then {hero} looked {spot}, and there it was, a little dusty but safe.
It was the {toy}! {hero} hugged it and felt {glad}. | {hero} held the {adj} {toy} tight. {He} was {glad}.
"Thank you, {friend}," said {hero}. "You are a good friend." | "I could not have found it without you, {friend}," {hero} said.
After that, {hero} always put the {toy} back in its place. | From then on, {hero} checked for the {toy} before going home. | On the way home they played {game}, and {hero} did not let go of the {toy}.
""",
    "sharing": """
{day}, {hero} took {his} {adj} {toy} to play {at} {place}. | {day}, {hero} got {a_adj} {toy} from {his} {relative} and took it to {place}.
{Friend_intro} was there too. "Can I play with your {toy}?" asked {friend}. | There {he} met {friend_intro}. "What a nice {toy}! May I have a turn?" {friend} asked.

"No! It is mine," said {hero}, and {he} held the {toy} behind {his} back. | {hero} shook {his} head. "It is my {toy}, and I want it all for myself."
{friend} felt {sad} and walked away. | {friend} did not say a word. {FHe} sat down {spot}, looking {sad}.
{hero} played alone with the {adj} {toy}, but soon it was not much fun. | So {hero} played alone, but there was nobody to laugh with.

{His} {relative} saw this and said, "A {toy} is more fun with two." | "When you share, you get a friend to play with," said {his} {relative}.
{hero} thought about it. Then {he} ran to {friend}. "I am sorry. Let's play together," {he} said. | {hero} knew what to do. "{friend}, would you like the first turn?" {he} asked.
{friend} smiled, and they took turns with the {toy} until the sun went down. | {friend} jumped up at once. They played with the {adj} {toy} and then they played {game}.
{hero} was {glad}. Sharing was better than keeping. | That night, {hero} told {his} {relative} that sharing made {him} {glad}. |
""",
    "rescue": """

{day}, {hero} was walking {at} {place} with {friend_intro} when they heard a tiny cry. | {day}, {hero} and {friend_intro} were playing {game} {at} {place}. Suddenly, {hero} heard a small voice.
They followed the sound and saw a {found}. It {trap}. | "Listen!" said {friend}. Not far away there was a {found}. It {trap}.
"Poor little {found}! We have to help," said {hero}. | "Do not be afraid, little {found}," {hero} said softly.

{hero} tried to reach it, but {he} could not do it alone. | {friend} tried first, but it did not work.
"I know! We can use {tool}," said {friend}. | Then {hero} had an idea. "What we need is {tool}!" {he} said.
They ran to ask {his} {relative}, who gave them {tool}. | {hero} ran home to {his} {relative} and came back with {tool}.
Slowly and carefully, they went to work, and soon the {found} was safe. | They worked together with great care. At last the {found} was safe.

The {found} looked at {hero} and {friend} as if to say thank you. | The {found} rubbed its head on {hero}'s hand, and everyone laughed.
"You did well," said {his} {relative}. "It is good to be kind to those who are small." | {hero} felt {glad} all the way home. | "Good work, {friend}," said {hero}. They were both {glad}.
""",
    "fear": """
But {hero} was afraid of one thing. {He} was afraid of {fear}. | There was just one problem: {hero} was scared of {fear}.

{day}, {friend_intro} asked {him} to {trial}. | {day}, {hero} and {friend_intro} were {at} {place}. "Will you {trial} with me?" asked {friend}.
"I can't," said {hero} in a small voice. "I am too scared." | {hero} felt {sad}. "What if something bad happens?" {he} asked.
{friend} did not laugh. "Everyone is scared of something," {fhe} said. | "That is all right," said {friend}. "I was scared too, once."

{hero} went to {his} {relative} and told the truth about being afraid. | That evening, {hero} asked {his} {relative} what to do.
{His} {relative} smiled and said, "{cure}." | "{cure}," said {his} {relative}, and gave {him} a hug.
The next day, {hero} held {his} {adj} {toy} and took a deep breath. | The next day, {hero} told {friend}, "I want to try."
{He} wanted to run away, but {he} did not. {hero} was ready to {trial}, and {he} did! | {friend} counted to three, and {hero} found that {he} could {trial} after all.

"I did it!" shouted {hero}. "I am not afraid of {fear} anymore!" | "You were so brave," said {friend}. {hero} was {glad}.
From that day on, {hero} knew that being brave means trying even when you are scared. | Now, when {hero} thinks of {fear}, {he} only smiles. |
""",
    "truth": """

{day}, {hero} was playing with {his} {adj} {toy} inside the house. | {day}, it was too wet to go to {place}, so {hero} played in the kitchen with {a_adj} {toy}.
{He} was not careful. Crash! The {toy} hit the {fragile}, and it broke. | {He} threw the {toy} up high, and it came down on the {fragile}. The {fragile} broke into many pieces.
"Oh no," whispered {hero}. "My {relative} loves that {fragile}." | {hero} put a hand over {his} mouth. The {fragile} belonged to {his} {relative}.

{hero} thought about hiding the pieces {spot}. | At first {he} wanted to say that the wind did it.
{Friend_intro} said, "It is better to tell the truth." | But then {he} asked {friend_intro} what to do. "Just say you are sorry," said {friend}.
So {hero} went to {his} {relative}. "I broke the {fragile}. I am sorry," {he} said. | {hero} felt {sad}, but {he} walked up to {his} {relative} and told the whole story.

{His} {relative} looked at the {fragile} and then at {hero}. "Thank you for telling me," {rhe} said. | "I am not angry," said {his} {relative}. "You were honest, and that matters more than a {fragile}."
Together they picked up the pieces and fixed the {fragile} with glue. | They cleaned the floor, and {hero} helped to glue the {fragile} back together.
{hero} was {glad}. After that, {he} played with the {toy} outside. | {hero} put the {adj} {toy} away and gave {his} {relative} a big hug.
""",
    "learning": """
{day}, {he} saw {friend_intro} {at} {place}. {friend} could {skill}. | {His} friend {friend} knew how to {skill}, and {hero} wanted to learn it too.

"Can you show me how to {skill}?" asked {hero}. "Of course," said {friend}. | "I want to {skill} just like you," {hero} said. {friend} nodded.
{hero} tried, but {fail}. | The first time {hero} tried, {fail}.
{He} tried again, and again {fail}. | The second time was not better. Once more, {fail}.
"I will never learn it!" said {hero}. {He} was {sad}. | {hero} kicked {his} {adj} {toy} and sat down {spot}. {He} was {sad}.

"{tip}," said {friend}. | {His} {relative} had watched the whole time. "{tip}," {rhe} said.
{hero} got up and tried one more time. This time, it worked! | So {hero} did just that. {He} tried and tried until it worked.
"Look! I can {skill}!" {he} shouted. | {hero} was {glad}. "Did you see that, {friend}?" {he} asked.

That evening, {hero} showed {his} {relative}, who was proud of {him}. | {friend} cheered, and then they played {game} together.
{hero} had learned that nobody is good at something the first time. | Now {hero} likes to {hobby} and to {skill}. |
""",
}


def sample_stories(count: int, seed: int) -> list[str]:
    """`count` different stories of 60 to 150 words; the first n are the same for every `count` >= n.

    Paragraphs are parted by one newline. Raises ValueError when `count` is more than one seed can give.
    """
    generator = random.Random(seed)
    stories: dict[str, None] = {}
    for _ in range(20 * count + 100):
        if len(stories) == count:
            return list(stories)
        story = _story(generator)
        if MIN_WORDS <= len(story.split()) <= MAX_WORDS:
            stories[story] = None
    raise ValueError(f"count={count}: seed {seed} gives only {len(stories)} different stories; ask for fewer")


def _story(generator: random.Random) -> str:
    words = _cast(generator)
    for names, pool in POOLS.items():
        entries = pool.split("|") if "|" in pool else pool.split()
        words |= dict(zip(names.split(), generator.choice(entries).split(":"), strict=True))
    words |= {f"a_{name}": _with_article(words[name]) for name in ("trait", "adj")}
    plot = OPENING.strip("\n") + "\n" + PLOTS[generator.choice(sorted(PLOTS))].removeprefix("\n").rstrip("\n")
    lines: list[list[str]] = [[]]
    for slot in plot.split("\n"):
        if not slot.strip():
            lines.append([])
            continue
        sentence = generator.choice(slot.split("|")).strip()
        if sentence:
            lines[-1].append(sentence.format_map(words))
    return "\n".join(" ".join(line) for line in lines if line)


def _cast(generator: random.Random) -> dict[str, str]:
    """The words for hero, friend and relative; the friend of a child is a child, and of an animal an animal."""
    world = CHILDREN if generator.random() < 0.7 else ANIMALS
    hero = generator.choice(world)
    friend = generator.choice([other for other in world if other.name != hero.name])
    relative = generator.choice(RELATIVES)
    friend_intro = f"{hero.his} friend {friend.name}" + (f" the {friend.kind}" if world is ANIMALS else "")
    words = {"hero": hero.name, "kind": hero.kind, "friend": friend.name, "relative": relative.name}
    words |= {"he": hero.he, "him": hero.him, "his": hero.his, "He": hero.he.title(), "His": hero.his.title()}
    words |= {"fhe": friend.he, "FHe": friend.he.title(), "rhe": relative.he, "rhis": relative.his}
    return words | {"friend_intro": friend_intro, "Friend_intro": friend_intro[0].upper() + friend_intro[1:]}


def _with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
