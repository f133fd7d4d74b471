"""TOML files -> validated objects; whatever is wrong becomes one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from consilia.declare.federation import Federation, SiteDeclaration
from consilia.errors import ConsiliaError, DeclarationError, suggestion

T = TypeVar("T", bound=BaseModel)
LARGEST = 1 << 20


def read_toml(path: Path, error: type[ConsiliaError] = DeclarationError) -> dict[str, Any]:
    """Return the tables of a TOML file, or refuse it with one sentence."""
    if not path.exists():
        msg = f"file '{path}' does not exist; check the path"
        raise error(msg)
    if not path.is_file():
        msg = f"'{path}' is not a file; name a .toml file"
        raise error(msg)
    if path.stat().st_size > LARGEST:
        msg = f"file '{path.name}' has {path.stat().st_size} bytes; a declaration has at most {LARGEST}"
        raise error(msg)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        msg = f"file '{path.name}' is not UTF-8 text; save it as UTF-8"
        raise error(msg) from None
    except tomllib.TOMLDecodeError as problem:
        msg = f"file '{path.name}' is not valid TOML: {_lower(str(problem))}"
        raise error(msg) from None


def validate(
    model: type[T],
    table: Mapping[str, Any],
    where: str,
    error: type[ConsiliaError] = DeclarationError,
) -> T:
    """Return the validated object, or refuse the first thing that is wrong with one sentence."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as problem:
        msg = f"{where}: {_sentence(model, problem)}"
        raise error(msg) from None
    except ConsiliaError as problem:
        msg = f"{where}: {problem}"
        raise type(problem)(msg) from None


def read_federation(path: Path) -> Federation:
    """Return the federation that a file declares."""
    return validate(Federation, read_toml(path), path.name)


def read_site(path: Path) -> SiteDeclaration:
    """Return what a site's own file declares, in its [site] table."""
    tables = read_toml(path)
    if set(tables) != {"site"} or not isinstance(tables["site"], dict):
        msg = f"{path.name}: expected one [site] table and nothing else, found {sorted(tables) or 'nothing'}"
        raise DeclarationError(msg)
    return validate(SiteDeclaration, tables["site"], path.name)


_EXPECTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "is_instance_of": "another type",
}


def _sentence(model: type[BaseModel], problem: ValidationError) -> str:
    first = problem.errors(include_url=False)[0]
    kind, place = first["type"], _place(first["loc"])
    if kind == "missing":
        return f"key '{place}' is missing"
    if kind == "extra_forbidden":
        keys = _keys_at(model, first["loc"][:-1])
        found = str(first["loc"][-1])
        return f"unknown key '{place}'{suggestion(found, keys)} (known here: {', '.join(keys)})"
    found = f"{first['input']!r:.60}"
    if kind in {"enum", "literal_error"}:
        options = str(first.get("ctx", {}).get("expected", "")).replace(" or ", ", ")
        near = suggestion(str(first["input"]), options.replace("'", "").split(", "))
        return f"'{place}' is {found}; expected one of {options}{near}"
    if kind in {"too_long", "too_short"}:
        limits = first.get("ctx", {})
        expected = limits.get("max_length", limits.get("min_length"))
        return f"'{place}' has {limits.get('actual_length')} entries; expected {expected}"
    expected = _EXPECTED.get(kind) or _lower(first["msg"].removeprefix("Input should be "))
    return f"'{place}' is {found}; expected {expected}"


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    kind: Any = model
    for part in loc:
        if isinstance(part, str) and hasattr(kind, "model_fields") and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
            kind = next(
                (a for a in getattr(kind, "__args__", ()) if hasattr(a, "model_fields")), kind
            )
    return list(getattr(kind, "model_fields", {}))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
