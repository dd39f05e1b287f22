"""The settings that users can configure: their names, what their values may be, and their defaults."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional, Union

__all__ = ["KEYS", "Key"]


class Key:
    """A setting. `check` returns a value as it is used, and raises with the end of a sentence if it cannot be used."""

    def __init__(self, default: Any, check: Callable[[Any], Any], from_text: Callable[[str], Any], help: str) -> None:
        self.default = default
        self.check = check
        #: Makes a value from the text of an environment variable.
        self.from_text = from_text
        self.help = help


def _whole(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError("must be a whole number from %d on" % least)
        return value

    return check


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError("must be a number over 0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    """Checks that a value is one of these words."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError("must be one of %s" % ", ".join(map(repr, words)))
        return str(value)

    return check


def text(value: Any) -> str:
    """Checks that a value is a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return value


def _folder(value: Any) -> str:
    return os.path.expanduser(text(os.fspath(value) if isinstance(value, os.PathLike) else value))


def _names(value: Any) -> Union[str, List[str]]:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(name, str) and name.strip() for name in value):
        return list(value)
    raise ValueError("must be a text or a list of texts")


def _as_number(value: str) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _as_flag(value: str) -> Any:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words.get(value.strip().lower(), value)


def number(default: Optional[float], help: str) -> Key:
    """A setting that is a number over 0."""
    return Key(default, _positive, _as_number, help)


def whole_number(default: Optional[int], least: int, help: str) -> Key:
    """A setting that is a whole number."""
    return Key(default, _whole(least), _as_number, help)


def word(default: Optional[str], check: Callable[[Any], str], help: str) -> Key:
    """A setting that is a text."""
    return Key(default, check, str, help)


def flag(default: Optional[bool], help: str) -> Key:
    """A setting that is true or false."""
    return Key(default, _flag, _as_flag, help)


#: All settings by name. A name with a dot is in a table: `[jobs]` in a file.
KEYS: Dict[str, Key] = {
    "workers": whole_number(None, 1, "maximum number of workers of a call; one a core without it"),
    "retries": whole_number(2, 0, "how often an item is run again after its worker died"),
    "timeout": number(None, "maximum seconds of one item"),
    "progress": flag(None, "whether to show progress; without it, for calls of over a second on a terminal or in a notebook"),
    "where": Key(None, _names, str, "devices that decorated functions run on: `gpu`, `cuda:0,cpu`, `all`"),
    "strict": flag(False, "whether a loop that cannot be shared is an error"),
    "randomness": word("streams", one_of("streams", "refuse"), "whether loops that draw random numbers are shared"),
    "external": word("refuse", one_of("refuse", "allow"), "whether loops that write to files are shared"),
    "devices": Key(None, _names, str, "devices for kernels, Merkle trees and proofs, as the command `evener` takes them"),
    "cache": word(None, _folder, "folder of what runs have shown about their costs"),
    "jobs.folder": word(None, _folder, "folder of submitted jobs"),
    "jobs.days": number(14.0, "days after which an ended job may be removed"),
    "jobs.kept": whole_number(1000, 1, "maximum number of ended jobs"),
}
