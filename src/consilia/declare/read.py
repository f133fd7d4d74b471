"""TOML files -> validated objects; whatever is wrong becomes one sentence.

A file is read as strictly as TOML writes it: "5" is text and no number, 1 is no `true`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from consilia.declare.federation import Federation, SiteDeclaration
from consilia.errors import ConsiliaError, DeclarationError, listing, suggestion

T = TypeVar("T", bound=BaseModel)
Place = tuple[int | str, ...]
LARGEST = 1 << 20
TOO_LONG = "a whole number has thousands of digits; write a smaller one"
TOO_DEEP = "tables or lists are nested too deeply; write them as the reference has them"


def read_toml(path: Path, error: type[ConsiliaError] = DeclarationError) -> dict[str, Any]:
    """Return the tables of a TOML file, or refuse it with one sentence."""
    try:
        if not path.exists():
            msg = f"file '{path}' does not exist; check the path"
            raise error(msg)
        if not path.is_file():
            msg = f"'{path}' is not a file; name a .toml file"
            raise error(msg)
        size = path.stat().st_size
        if size > LARGEST:
            msg = f"file '{path.name}' has {size} bytes; expected at most {LARGEST}: name a .toml file"
            raise error(msg)
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        msg = f"file '{path}' cannot be read: {_lower(problem.strerror or str(problem))}"
        raise error(msg) from None
    except UnicodeDecodeError:
        msg = f"file '{path.name}' is not UTF-8 text; save it as UTF-8"
        raise error(msg) from None
    except tomllib.TOMLDecodeError as problem:
        msg = f"file '{path.name}' is not valid TOML: {_lower(str(problem))}"
        raise error(msg) from None
    except ValueError:
        msg = f"file '{path.name}' cannot be read: {TOO_LONG}"
        raise error(msg) from None
    except RecursionError:
        msg = f"file '{path.name}' is nested too deeply; a declaration has tables and plain lists"
        raise error(msg) from None


def validate(
    model: type[T],
    table: Mapping[str, Any],
    where: str,
    error: type[ConsiliaError] = DeclarationError,
) -> T:
    """Return the validated object, or refuse the first thing that is wrong with one sentence."""
    try:  # by way of JSON, where lists may be tuples and text may be a choice, yet "5" is no number
        text = json.dumps(table, default=str)
    except (ValueError, RecursionError) as problem:  # hexadecimal or dotted, and read at any length
        msg = f"{where}: {TOO_DEEP if isinstance(problem, RecursionError) else TOO_LONG}"
        raise error(msg) from None
    try:
        valid = model.model_validate_json(text, strict=True)
    except ValidationError as problem:
        msg = f"{where}: {_sentence(model, problem.errors(include_url=False), table)}"
        raise error(msg) from None
    except ConsiliaError as problem:
        msg = f"{where}: {problem}"
        raise type(problem)(msg) from None
    for loc in _dates(table):  # as JSON they were text
        who, place = _called(loc, table)
        msg = f"{where}: {who}{place} is {_at(table, loc)}; expected no date or time: put text in quotes"
        raise error(msg)
    return valid


def read_federation(path: Path) -> Federation:
    """Return the federation that a file declares."""
    return validate(Federation, read_toml(path), path.name)


def read_site(path: Path) -> SiteDeclaration:
    """Return what a site's own file declares, in its [site] table."""
    tables = read_toml(path)
    if set(tables) != {"site"} or not isinstance(tables["site"], dict):
        found = listing(tables) or "nothing"
        msg = f"{path.name}: expected one [site] table and nothing else, but found {found}"
        raise DeclarationError(msg)
    return validate(SiteDeclaration, tables["site"], path.name)


# --------------------------------------------------------------- what pydantic found, in our words

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _sentence(model: type[BaseModel], errors: list[ErrorDetails], table: Mapping[str, Any]) -> str:
    """Return the first of all errors in our words."""
    found = errors[0]
    kind, loc, limits = found["type"], _place(found, table), found.get("ctx", {})
    if kind == "json_invalid":
        return TOO_DEEP
    who, place = _split(loc, table)
    if kind == "missing" and isinstance(loc[-1], str):
        needed = _keys_at(model, loc[:-1], only_required=True)
        return f"{who}key '{place}' is missing; add it (needed here: {', '.join(needed)})"
    if kind == "extra_forbidden":
        keys = _keys_at(model, loc[:-1])
        near = suggestion(str(loc[-1]), keys)
        return f"{who}unknown key '{place}'{near} (known here: {', '.join(keys)})"
    if kind in {"too_long", "missing"}:  # of a list that has a fixed length
        count = len(_at(table, loc if kind == "too_long" else loc[:-1]))
        missing = sum(e["type"] == "missing" and e["loc"][:-1] == loc[:-1] for e in errors)
        wanted = limits.get("max_length", count + missing)
        return (
            f"{who}'{place}' has {count} {'entry' if count == 1 else 'entries'}; expected {wanted}"
        )
    who, place = _called(loc, table)
    value = shown(_at(table, loc))
    if kind == "tuple_type" and value == "a table":
        return f"{who}{place} is one table; expected a list of tables: write [[{loc[-1]}]]"
    choices = [error for error in errors if _place(error, table) == loc]
    expected = " or ".join(_expected(choice) for choice in choices)
    near = suggestion(str(found["input"]), [name for each in choices for name in _options(each)])
    return f"{who}{place} is {value}; expected {expected}{near}"


def _expected(found: ErrorDetails) -> str:
    """Return what should have been there."""
    kind, limits = found["type"], found.get("ctx", {})
    if options := _options(found):
        quoted = ", ".join(f"'{option}'" for option in options)
        return f"one of {quoted}" if len(options) > 1 else quoted
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return f"{words} {limits[key]:.12g}"
    return _EXPECTED.get(kind) or _lower(found["msg"].removeprefix("Input should be "))


def _options(found: ErrorDetails) -> list[str]:
    """Return the words to choose from, where it is a choice of words that was not met."""
    if found["type"] not in {"enum", "literal_error"}:
        return []
    words = str(found.get("ctx", {}).get("expected", ""))
    return words.replace(" or ", ", ").replace("'", "").split(", ")


def shown(value: object) -> str:
    """Return a value as a TOML file has it, short enough for a sentence."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(shown(inner) for inner in value)}]"
    else:
        text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def _place(found: ErrorDetails, table: Mapping[str, Any]) -> Place:
    """Return where an error is, without the name that pydantic gives to each choice of a union."""
    loc = found["loc"]
    if found["type"] == "missing" or not loc or isinstance(loc[-1], int):
        return loc
    around = _at(table, loc[:-1])
    return loc if isinstance(around, Mapping) and loc[-1] in around else loc[:-1]


def _called(loc: Place, table: Mapping[str, Any]) -> tuple[str, str]:
    """Return whose value is meant, and the value by its key: "'name'", "entry 2 of 'labels'"."""
    who, place = _split(loc, table)
    entry = f"entry {loc[-1] + 1} of " if loc and isinstance(loc[-1], int) else ""
    return who, f"{entry}'{place}'"


def _split(loc: Place, table: Mapping[str, Any]) -> tuple[str, str]:
    """Return whose key is meant ("site 'oslo': ", or nothing) and the key itself."""
    who, keys = "", loc
    for at, part in enumerate(loc):
        if isinstance(part, int) and isinstance(inner := _at(table, loc[: at + 1]), dict):
            name = inner.get("name", part + 1)
            who = f"{loc[at - 1]} {shown(name)}: "
            keys = loc[at + 1 :]
    return who, ".".join(str(key) for key in keys if isinstance(key, str))


def _at(table: Any, loc: Place) -> Any:
    """Return the value at a place; nothing where the file has none."""
    for part in loc:
        try:
            table = table[part]
        except (LookupError, TypeError):
            return None
    return table


def _dates(value: Any, loc: Place = ()) -> Iterator[Place]:
    """Return the places of dates and times, which TOML has and none of our keys takes."""
    if isinstance(value, date | time):
        yield loc
    inner = value.items() if isinstance(value, Mapping) else ()
    for key, each in enumerate(value) if isinstance(value, list | tuple) else inner:
        yield from _dates(each, (*loc, key))


def _keys_at(model: type[BaseModel], loc: Place, *, only_required: bool = False) -> list[str]:
    """Return the keys that a table may, or must, have."""
    kind: Any = model
    for part in loc:
        if isinstance(part, str) and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
            inner = (a for a in getattr(kind, "__args__", ()) if hasattr(a, "model_fields"))
            kind = next(inner, kind)
    fields = kind.model_fields.items()
    return [name for name, field in fields if field.is_required() or not only_required]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
