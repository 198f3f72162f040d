"""Descriptions of the API's answers, made from the dataclasses that they show."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from typing import Any

from pydantic import BaseModel, Field, create_model

ARGUMENTS = re.compile(r"^Args:\n((?: {4}.*\n?)+)", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5}.*)*)", re.MULTILINE)


def described(
    name: str, of: type[Any], *, without: tuple[str, ...] = (), but: dict[str, Any] | None = None, **more: Any
) -> type[BaseModel]:
    """Make the description of an answer that shows the fields of a dataclass.

    Args:
        name: The name of the answer in the API.
        of: The dataclass; its docstring describes the answer and its fields.
        without: Fields that the answer does not have.
        but: Types of fields that are shown otherwise, such as other answers.
        more: Fields that the answer has beside those of the dataclass, each with its type.

    Example:
        >>> from agentgit.checkpoints.queries import Tag
        >>> sorted(described("Tag", Tag).model_json_schema()["required"])[:2]
        ['checkpoint_id', 'created_at']
    """
    hints, said = typing.get_type_hints(of), _arguments(of.__doc__ or "")
    shown = [field.name for field in dataclasses.fields(of) if field.name not in without and field.name[0] != "_"]
    types = {field: hints[field] for field in shown} | (but or {}) | more
    fields: dict[str, Any] = {field: (kind, Field(description=said.get(field))) for field, kind in types.items()}
    return create_model(name, __doc__=(of.__doc__ or "").partition("\n")[0], **fields)


def listing(name: str, of: type[BaseModel], doc: str, **more: Any) -> type[BaseModel]:
    """Make the description of an answer that lists others.

    Args:
        name: The name of the answer in the API.
        of: What its `items` are.
        doc: A sentence about it.
        more: Fields that it has beside `items`, each with its type.
    """
    return answer(name, doc, items=many(of), **more)


def answer(name: str, doc: str, **types: Any) -> type[BaseModel]:
    """Make the description of an answer from its fields, each with its type."""
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in types.items()}
    return create_model(name, __doc__=doc, **fields)


def many(of: type[BaseModel]) -> Any:
    """Return the type of a list of answers."""
    return list.__class_getitem__(of)


def _arguments(docstring: str) -> dict[str, str]:
    """Return what the section `Args` of a docstring says of each argument."""
    section = ARGUMENTS.search(inspect.cleandoc(docstring))
    return {name: " ".join(text.split()) for name, text in ARGUMENT.findall(section[1])} if section else {}
