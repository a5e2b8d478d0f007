"""YAML read strictly: an unknown, missing or repeated key is an error that names file, line and key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from app.core.errors import HeadstartError
from app.core.paths import PROJECT


def read_yaml(file: Path) -> Value:
    """A YAML file's value. Raises HeadstartError where it is none."""
    try:
        node = yaml.compose(file.read_text("utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise HeadstartError(f"{shown(file)}{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise HeadstartError(f"{shown(file)}: not a text file in UTF-8") from error
    except OSError as error:
        raise HeadstartError(f"can't read {shown(file)}: {error.strerror}") from error
    if node is None:
        raise HeadstartError(f"{shown(file)} is empty")
    return Value(file, node)


def shown(file: Path) -> str:
    """A file's path as errors name it: short, where it is the program's own."""
    return str(file.relative_to(PROJECT)) if file.is_relative_to(PROJECT) else str(file)


@dataclass(frozen=True, slots=True)
class Value:
    """A YAML node that knows its file, so that whatever is wrong with it can be found."""

    file: Path
    node: yaml.Node

    def error(self, what: str, remedy: str = "") -> HeadstartError:
        """An error in this place."""
        return HeadstartError(f"{shown(self.file)}, line {self.node.start_mark.line + 1}: {what}", remedy)

    def entries(
        self, required: Sequence[str] = (), optional: Sequence[str] | None = None
    ) -> dict[str, Value]:
        """A mapping's values by key; without ``optional`` any key will do."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("expected 'key: value' lines here")
        values: dict[str, Value] = {}
        for key_node, value_node in self.node.value:
            key = Value(self.file, key_node)
            name = key.text("a key")
            if name in values:
                raise key.error(f"key '{name}' stands here a second time")
            if optional is not None and name not in (known := [*required, *optional]):
                raise key.error(f"unknown key '{name}'", f"the keys here are {', '.join(known)}")
            values[name] = Value(self.file, value_node)
        if missing := [name for name in required if name not in values]:
            raise self.error(f"key '{missing[0]}' is missing")
        return values

    def text(self, key: str, pattern: str = r"(?s).*\S.*", form: str = "text") -> str:
        """Text of one form; ``form`` says which where it is not."""
        value = self._scalar()
        if not isinstance(value, str):
            raise self.error(f"{key} must be {form}, not {value!r}", "put text in quotes")
        if not re.fullmatch(pattern, value):
            raise self.error(f"{key} must be {form}, not '{value}'")
        return value

    def integer(self, key: str, least: int | None = None) -> int:
        """A whole number."""
        value = self._scalar()
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{key} must be a whole number, not {value!r}")
        if least is not None and value < least:
            raise self.error(f"{key} must be at least {least}, not {value}")
        return value

    def number(self, key: str) -> float:
        """A number."""
        value = self._scalar()
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(f"{key} must be a number, not {value!r}")
        return value

    def _scalar(self) -> object:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("expected a single value here")
        try:
            return yaml.SafeLoader("").construct_object(self.node)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(f"can't read '{self.node.value}'") from error
