"""What is wrong with a folder, one sentence each; those that say the same are put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from consilia.readers.files import Severity, split_name

#: So many problems that differ in the name of a file or the number of a line are told one by one;
#: of more, so many are named.
ALIKE = 3
#: What a sentence is about: "image 'a.png' of ...", "a.json of ...", "images 'a' and 'b' of ...",
#: and where in that file: "boxes.csv of ..., line 2, ...".
FILE = re.compile(r"^(?:[a-z]+ )*'(?P<name>[^']+)'(?= of (?:site|the common))")
PLAIN = re.compile(r"^(?P<name>[^']+\.[a-z]+)(?= of (?:site|the common))")
PAIR = re.compile(r"^images (?P<name>'[^']+' and '[^']+')(?= of (?:site|the common))")
PLACE = re.compile(r", (?P<name>(?:line|annotation|image|shape|object) \d+),")
QUOTED = re.compile(r"'(?P<folder>(?:[^'/]+/)*)(?P<name>[^'/]+)'")


@dataclass(frozen=True)
class Problem:
    """One sentence about a folder: an error stops a run, a warning does not."""

    severity: Severity
    sentence: str


class Problems:
    """A `Report` that notes each problem once."""

    def __init__(self) -> None:
        self.told: dict[Problem, None] = {}  # a damaged volume is told once, not for each slice

    def __call__(self, severity: Severity, sentence: str) -> None:
        """Note a problem."""
        self.told[Problem(severity, sentence)] = None

    def grouped(self) -> tuple[Problem, ...]:
        """Return the problems in order; many that differ in a name only come as the first of them."""
        alike: dict[tuple[Severity, str], list[tuple[int, tuple[str, str], Problem]]] = {}
        for at, problem in enumerate(self.told):
            file, place, rest = _subject(problem.sentence)
            alike.setdefault((problem.severity, rest), []).append((at, (file, place), problem))
        shown: list[tuple[int, Problem]] = []
        for group in alike.values():
            if len(group) <= ALIKE:
                shown += [(at, problem) for at, _, problem in group]
                continue
            (at, (file, _), first), *others = group
            names = [_named(*other, file) for _, other, _ in others[: ALIKE - 1]]
            more = f"{', '.join(names)} and {len(group) - ALIKE} more"
            shown.append((at, replace(first, sentence=f"{first.sentence} (also {more})")))
        return tuple(problem for _, problem in sorted(shown, key=lambda item: item[0]))


def _named(file: str, place: str, first: str) -> str:
    """Return what a sentence is about; of the file that the first is about, only the place."""
    return place if place and file == first else ", ".join(part for part in (file, place) if part)


def _subject(sentence: str) -> tuple[str, str, str]:
    """Return the file and the place that a sentence is about, and what it says but for these."""
    pair = PAIR.search(sentence)
    if pair is not None:
        return pair["name"], "", sentence[pair.end() :]
    found = FILE.search(sentence)
    if found is not None:
        return f"'{found['name']}'", "", _without(found["name"], sentence)
    place, rest = "", sentence
    if (spot := PLACE.search(rest)) is not None:
        place, rest = spot["name"], f"{rest[: spot.start()]}, ,{rest[spot.end() :]}"
    if (plain := PLAIN.search(rest)) is not None:
        return plain["name"], place, _without(plain["name"], rest[plain.end() :])
    return "", place, rest


def _without(file: str, sentence: str) -> str:
    """Return a sentence in which a file, and files of the same stem, have no names."""
    name = file.rpartition("/")[2]
    own = split_name(name)[0]

    def without(quote: re.Match[str]) -> str:
        same = quote["name"] == name or split_name(quote["name"])[0] == own
        return f"'{quote['folder']}'" if same else quote[0]

    return QUOTED.sub(without, sentence)
