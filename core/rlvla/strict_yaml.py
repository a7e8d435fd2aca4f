"""YAML as recipes are written: safe, and a key that is there twice is an error, not silently the later one."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                raise RepeatedKey(
                    f"{key.value!r} is there twice, on line {seen[key.value]} and on line {line}: keep one of them"
                )
            seen[key.value] = line
        return super().construct_mapping(node, deep)


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice."""


def load(text: str) -> Any:
    """Return what a YAML text holds.

    Raises:
        RepeatedKey: a mapping has a key twice.
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, _Loader)  # a SafeLoader: builds plain data only
