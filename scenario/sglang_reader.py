"""Values of SGLang's arguments, read one by one and checked as the server does, and the options
that they become.

Knows no argument by name; `scenario.sglang_args` says what is asked for.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from hicache.errors import InputError
from scenario.presets import is_allowed, typed
from scenario.sglang_flags import ORIGIN


class ArgumentReader:
    """The arguments of one server. `used` are those that were looked at, `notes` what must be said,
    `not_here` what was asked for and this version lacks.
    """

    def __init__(self, version: str, given: dict[str, list[str]]) -> None:
        self.version = version
        self.given = given
        self.options: dict[str, object] = {}
        self.notes: list[str] = []
        self.used: set[str] = set()
        self.not_here: list[str] = []

    def is_set(self, name: str) -> bool:
        """Whether the argument stands there."""
        self.used.add(name)
        return name in self.given

    def text(self, name: str) -> str | None:
        """Its value as it was written; None where it does not stand there."""
        self.used.add(name)
        values = self.given.get(name)
        return values[0] if values else None

    def choice(self, name: str, allowed: str) -> str | None:
        """Its value, one of `allowed` (names with spaces between)."""
        value = self.text(name)
        if value is not None and value not in allowed.split():
            raise InputError(
                f"{ORIGIN}: {name} is {value!r}: SGLang {self.version} takes "
                f"{', '.join(allowed.split())}"
            )
        return value

    def choose(self, name: str, key: str, allowed: str) -> None:
        """The option `key` takes the argument's value, if there is one."""
        value = self.choice(name, allowed)
        if value is not None:
            self.demand(key, value, f"{name} {value}")

    def number(self, name: str) -> Decimal | None:
        """A number above 0."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise InputError(f"{ORIGIN}: {name} is {text!r}: it must be a number") from None
        if not number.is_finite() or number <= 0:
            raise InputError(f"{ORIGIN}: {name} is {text}: it must be a number above 0")
        return number

    def whole(self, name: str, least: int = 1) -> int | None:
        """A whole number of `least` or more."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            raise InputError(f"{ORIGIN}: {name} is {text!r}: it must be a whole number") from None
        if number < least:
            raise InputError(f"{ORIGIN}: {name} is {number}: it must be {least} or more")
        return number

    def put(self, key: str, value: object, asked: str) -> bool:
        """Set an option if this version has it; else remember what was `asked`."""
        if is_allowed(key, value):
            self.options[key] = typed(key, value)
            return True
        if asked:
            self.not_here.append(f"{asked} ({key})")
        return False

    def demand(self, key: str, value: str, asked: str) -> None:
        """Set an option without which it would be another cache."""
        if not self.put(key, value, ""):
            raise InputError(f'{ORIGIN}: {asked}: {key} = "{value}" is not in this version')

    def say_what_is_missing(self) -> None:
        """One note on all that this version lacks."""
        if self.not_here:
            self.notes.append(f"not in this version, so without effect: {'; '.join(self.not_here)}")
