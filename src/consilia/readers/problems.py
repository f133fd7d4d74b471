"""What is wrong with a folder, one sentence each; those that say the same are put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from consilia.readers.files import Severity, split_name

#: So many problems that differ in the name of a file or the number of a line are told one by one;
#: of more, so many are named.
ALIKE = 3
#: What a sentence is about: "image 'a.png' of ...", or "boxes.csv of ..., line 2, ...".
FILE = re.compile(r"^(?:[a-z]+ )*'(?P<name>[^']+)'(?= of (?:site|the common))")
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
        alike: dict[tuple[Severity, str], list[tuple[int, str, Problem]]] = {}
        for at, problem in enumerate(self.told):
            name, rest = _subject(problem.sentence)
            alike.setdefault((problem.severity, rest), []).append((at, name, problem))
        shown: list[tuple[int, Problem]] = []
        for group in alike.values():
            if len(group) <= ALIKE:
                shown += [(at, problem) for at, _, problem in group]
                continue
            (at, _, first), *others = group
            named = ", ".join(name for _, name, _ in others[: ALIKE - 1])
            more = f"{named} and {len(group) - ALIKE} more"
            shown.append((at, replace(first, sentence=f"{first.sentence} (also {more})")))
        return tuple(problem for _, problem in sorted(shown, key=lambda item: item[0]))


def _subject(sentence: str) -> tuple[str, str]:
    """Return the file or place that a sentence is about, and what it says but for that name."""
    found = FILE.search(sentence)
    if found is None:
        found = PLACE.search(sentence)
        if found is None:
            return "", sentence
        return found["name"], f"{sentence[: found.start()]}, ,{sentence[found.end() :]}"
    own = split_name(found["name"])[0]

    def without(quote: re.Match[str]) -> str:
        same = quote["name"] == found["name"] or split_name(quote["name"])[0] == own
        return f"'{quote['folder']}'" if same else quote[0]

    return f"'{found['name']}'", QUOTED.sub(without, sentence)
