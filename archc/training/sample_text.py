"""A text to try a model on: short stories, dialogues and descriptions in English, each with its Chinese, from a seeded grammar.

    python -m archc.training.sample_text > text.txt

Documents are an English line and a Chinese line that says the same, with an empty line between documents. A model that reads it
can learn letters and characters, words, word order in both languages (measure words, places before verbs), sums that come out
and who has what, and that the second line says what the first one did. Nothing here imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

SAMPLE_CHARACTERS = 400_000
"""Length of the text that ``--data sample`` stands for, in characters."""
SAMPLE_SEED = 0


@dataclass(frozen=True, slots=True)
class Noun:
    """A thing in both languages. ``measure`` is the word between a number and it; ``size`` orders things by how big they are."""

    english: str
    chinese: str
    measure: str
    size: int = 0
    plural: str = ""

    @property
    def several(self) -> str:
        return self.plural or f"{self.english}s"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody, and the pronouns."""

    english: str
    chinese: str
    she: str
    ta: str


Pair = tuple[str, str]
"""What is said in English, and the same in Chinese."""

PEOPLE = (
    Person("Anna", "安娜", "she", "她"),
    Person("Lily", "丽丽", "she", "她"),
    Person("Mia", "米娅", "she", "她"),
    Person("Tom", "汤姆", "he", "他"),
    Person("Jack", "杰克", "he", "他"),
    Person("Leo", "里奥", "he", "他"),
)
ANIMALS = (
    Noun("bird", "鸟", "只", 1),
    Noun("cat", "猫", "只", 2),
    Noun("dog", "狗", "只", 3),
    Noun("sheep", "羊", "只", 4, "sheep"),
    Noun("horse", "马", "匹", 5),
    Noun("cow", "牛", "头", 6),
)
THINGS = (
    Noun("apple", "苹果", "个"),
    Noun("book", "书", "本"),
    Noun("flower", "花", "朵"),
    Noun("cup", "杯子", "个"),
    Noun("ball", "球", "个"),
    Noun("fish", "鱼", "条", 0, "fish"),
)
ANIMAL_COLOURS: tuple[Pair, ...] = (("white", "白色的"), ("black", "黑色的"), ("brown", "棕色的"))
THING_COLOURS: tuple[Pair, ...] = (("red", "红色的"), ("white", "白色的"), ("blue", "蓝色的"), ("yellow", "黄色的"))
KINDS_OF_ANIMALS: tuple[Pair, ...] = (("big", "大"), ("small", "小"), ("old", "老"))
PLACES: tuple[Pair, ...] = (
    ("under the tree", "树下"),
    ("on the hill", "山上"),
    ("by the river", "河边"),
    ("in the garden", "花园里"),
    ("behind the house", "房子后面"),
    ("on the table", "桌子上"),
)
ANIMAL_PLACES = PLACES[:5]
ACTS: tuple[Pair, ...] = (("sleeps", "睡觉"), ("plays", "玩"), ("waits", "等"), ("sings", "唱歌"), ("eats", "吃东西"))
DRINKS: tuple[Pair, ...] = (("tea", "茶"), ("milk", "牛奶"), ("water", "水"), ("coffee", "咖啡"))
WEATHERS: tuple[tuple[Pair, Pair], ...] = (
    (("It is raining", "下雨"), ("stays at home and reads a book", "在家看书")),
    (("It is sunny", "天晴"), ("goes to the river", "去河边")),
    (("It is snowing", "下雪"), ("drinks hot tea", "喝热茶")),
    (("It is windy", "刮风"), ("flies a kite on the hill", "在山上放风筝")),
)
TIMES: tuple[Pair, ...] = (
    ("In the morning", "早上"),
    ("In the evening", "晚上"),
    ("Today", "今天"),
    ("Every day", "每天"),
)
NUMBERS: tuple[Pair, ...] = tuple(
    zip(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        "一二三四五六七八九十",
        strict=True,
    )
)


def sample_text(seed: int = SAMPLE_SEED, characters: int = SAMPLE_CHARACTERS) -> str:
    """Whole documents, as many as reach ``characters``; equal seeds give equal texts, and a longer one begins alike."""
    draw, documents, length = Random(seed), list[str](), 0
    while length < characters:
        english, chinese = draw.choice(_KINDS)(draw)
        documents.append(f"{english}\n{chinese}\n\n")
        length += len(documents[-1])
    return "".join(documents)


def _scene(draw: Random) -> Pair:
    """An animal somewhere does something."""
    animal, colour = draw.choice(ANIMALS), draw.choice(ANIMAL_COLOURS)
    place, act = draw.choice(ANIMAL_PLACES), draw.choice(ACTS)
    return (
        f"A {colour[0]} {animal.english} {act[0]} {place[0]}.",
        f"一{animal.measure}{colour[1]}{animal.chinese}在{place[1]}{act[1]}。",
    )


def _count(draw: Random) -> Pair:
    """Somebody gives some of what they have, and has the rest."""
    giver, taker = draw.sample(PEOPLE, 2)
    thing, had = draw.choice(THINGS), draw.randint(2, 10)
    given = draw.randint(1, had - 1)
    return (
        f"{giver.english} has {_some(had, thing)}. {giver.she.capitalize()} gives {NUMBERS[given - 1][0]} to {taker.english}. "
        f"Now {giver.english} has {_some(had - given, thing)}.",
        f"{giver.chinese}有{_measured(had, thing)}{thing.chinese}。{giver.ta}给{taker.chinese}{_measured(given, thing)}。"
        f"现在{giver.chinese}有{_measured(had - given, thing)}{thing.chinese}。",
    )


def _where(draw: Random) -> Pair:
    """Two people look for an animal."""
    asks, says = draw.sample(PEOPLE, 2)
    animal, place, act = draw.choice(ANIMALS), draw.choice(ANIMAL_PLACES), draw.choice(ACTS)
    return (
        f'"Where is the {animal.english}?" asks {asks.english}. "It is {place[0]}," says {says.english}. '
        f"The {animal.english} {act[0]} there.",
        f"{asks.chinese}问：“{animal.chinese}在哪里？”{says.chinese}说：“它在{place[1]}。”{animal.chinese}在那里{act[1]}。",
    )


def _whose(draw: Random) -> Pair:
    """Two people look for the owner of a thing."""
    asks, says, owner = draw.sample(PEOPLE, 3)
    thing, colour, place = draw.choice(THINGS), draw.choice(THING_COLOURS), draw.choice(PLACES)
    return (
        f"There is a {colour[0]} {thing.english} {place[0]}. "
        f'"Is it yours?" asks {asks.english}. "No, it is {owner.english}\'s," says {says.english}.',
        f"{place[1]}有一{thing.measure}{colour[1]}{thing.chinese}。{asks.chinese}问：“是你的吗？”"
        f"{says.chinese}说：“不，是{owner.chinese}的。”",
    )


def _taste(draw: Random) -> Pair:
    """Two people who like different drinks."""
    one, other = draw.sample(PEOPLE, 2)
    first, second = draw.sample(DRINKS, 2)
    time = draw.choice(TIMES)
    return (
        f"{one.english} likes {first[0]}, but {other.english} likes {second[0]}. "
        f"{time[0]} {one.english} drinks {first[0]}, and {other.english} drinks {second[0]}.",
        f"{one.chinese}喜欢{first[1]}，可是{other.chinese}喜欢{second[1]}。"
        f"{time[1]}{one.chinese}喝{first[1]}，{other.chinese}喝{second[1]}。",
    )


def _weather(draw: Random) -> Pair:
    """What the weather makes somebody do, alone or with a friend."""
    one, other = draw.sample(PEOPLE, 2)
    weather, act = draw.choice(WEATHERS)
    english, chinese = f"{weather[0]} today. {one.english} {act[0]}.", f"今天{weather[1]}。{one.chinese}{act[1]}。"
    if draw.random() < 0.5:
        return f"{english} {other.english} comes too.", f"{chinese}{other.chinese}也来了。"
    return f"{english} {one.she.capitalize()} is happy.", f"{chinese}{one.ta}很高兴。"


def _compare(draw: Random) -> Pair:
    """Which of two animals is bigger, which is as it always is."""
    one, other = draw.sample(ANIMALS, 2)
    english, chinese = ("bigger", "大") if one.size > other.size else ("smaller", "小")
    return (
        f"The {one.english} is {english} than the {other.english}.",
        f"{one.chinese}比{other.chinese}{chinese}。",
    )


def _meeting(draw: Random) -> Pair:
    """Somebody meets an animal and gives it something."""
    one, animal, place = draw.choice(PEOPLE), draw.choice(ANIMALS), draw.choice(ANIMAL_PLACES)
    kind, drink = draw.choice(KINDS_OF_ANIMALS), draw.choice(DRINKS[1:3])
    article = "an" if kind[0][0] in "aeiou" else "a"
    return (
        f"{one.english} sees {article} {kind[0]} {animal.english} {place[0]}. {one.she.capitalize()} gives it {drink[0]}. "
        f"The {animal.english} is happy.",
        f"{one.chinese}在{place[1]}看见一{animal.measure}{kind[1]}{animal.chinese}。{one.ta}给它{drink[1]}。"
        f"{animal.chinese}很高兴。",
    )


_KINDS: tuple[Callable[[Random], Pair], ...] = (
    _scene,
    _count,
    _where,
    _whose,
    _taste,
    _weather,
    _compare,
    _meeting,
)


def _some(number: int, thing: Noun) -> str:
    return f"{NUMBERS[number - 1][0]} {thing.english if number == 1 else thing.several}"


def _measured(number: int, thing: Noun) -> str:
    """Two of something is 两, the number two itself 二."""
    return f"{'两' if number == 2 else NUMBERS[number - 1][1]}{thing.measure}"


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(sample_text())
