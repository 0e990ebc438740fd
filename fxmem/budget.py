"""Memory budgets: "6GiB", 0.5, {"cuda:0": ...} -> Budget.

A value means what it looks like: an integer is bytes, a number with a decimal point a share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from fxmem.errors import BudgetSyntaxError

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# "MB", "mb" and "MiB", "mib", "MIB" are bytes to everyone. "Mb" and "Mib" are bits by convention,
# "mB" is a slip, "M" and "Mi" leave decimal or binary open: those are asked about, not guessed.
_SPELLINGS = {form: size for unit, size in _UNITS.items() for form in (unit, unit.lower())}
_SPELLINGS |= {unit.upper(): size for unit, size in _UNITS.items()}
_SPELLINGS |= {"byte": 1, "bytes": 1}

_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)\s*(?P<unit>[^\s\d]*)")
_LOOSE_UNIT = re.compile(r"(?P<prefix>[kmgt])i?b?(?:its?)?", re.IGNORECASE)
_LONGEST_NUMBER = 40  # digits; far above any memory, far below where int() and float() give up
_EXAMPLES = 'such as 6442450944, "6GiB", "500 MB", 0.5 (a share of the peak) or None'


@dataclass(frozen=True)
class Budget:
    """Peak bytes that a whole training step may hold on a device, residents included.

    At most one of the two fields is set; with neither there is no limit.

    Parameters
    ----------
    bytes : int, optional
        The limit in bytes, at least 1.
    share : float, optional
        The limit as a share, in (0, 1], of the unoptimised step's peak.

    Raises
    ------
    BudgetSyntaxError
        If both are set, or one is out of range.
    """

    bytes: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and self.share is not None:
            raise BudgetSyntaxError(
                f"a budget is bytes or a share, not both: {self.bytes} and {self.share}"
            )
        if self.bytes is not None:
            object.__setattr__(self, "bytes", _whole_bytes(self.bytes))
        if self.share is not None:
            object.__setattr__(self, "share", _share(self.share))

    @classmethod
    def parse(cls, value: Any) -> Budget:
        """Read one budget.

        Parameters
        ----------
        value : int, str, float, None or Budget
            An integer is bytes. A string is a number with a decimal (kB, MB, GB, TB) or binary
            (KiB, MiB, GiB, TiB) unit, rounded down to whole bytes; without a unit it is read as
            the number it spells; "50%" is a share. A float in (0, 1] is a share. None is no limit.

        Raises
        ------
        BudgetSyntaxError
            If `value` is none of these, not positive, or its unit is ambiguous.
        """
        if isinstance(value, Budget):
            return value
        if value is None:
            return cls()
        if isinstance(value, str):
            return cls._parse_text(value)
        if isinstance(value, bool):
            raise BudgetSyntaxError(f"{value} is no budget; give a value {_EXAMPLES}")
        if isinstance(value, Integral):
            return cls(bytes=int(value))
        if isinstance(value, Real):
            return cls(share=float(value))
        if isinstance(value, Mapping):
            raise BudgetSyntaxError(
                "one budget is expected here, not a mapping of devices; "
                "Budget.parse_devices reads those"
            )
        raise BudgetSyntaxError(
            f"a budget cannot be a {type(value).__name__}; give a value {_EXAMPLES}"
        )

    @classmethod
    def parse_devices(cls, value: Any) -> dict[str, Budget]:
        """Read a budget for each device.

        Parameters
        ----------
        value : Mapping
            From a device's name (or a `torch.device`) to anything that `parse` reads.

        Returns
        -------
        dict of str to Budget
            In the order given.

        Raises
        ------
        BudgetSyntaxError
            If `value` is no mapping, is empty, names a device twice or not by a name, or holds
            a bad budget; the message names the device.
        """
        if not isinstance(value, Mapping):
            raise BudgetSyntaxError(
                f'a mapping such as {{"cuda:0": "6GiB"}} is expected, not {value!r}'
            )
        if not value:
            raise BudgetSyntaxError("the mapping of budgets names no device")
        budgets: dict[str, Budget] = {}
        for device, one in value.items():
            if isinstance(device, Real):
                raise BudgetSyntaxError(
                    f'device {device!r} is a bare number; name it, such as "cuda:{device}"'
                )
            # A torch.device prints as its name, so this module need not know torch.
            name = str(device).strip()
            if not name:
                raise BudgetSyntaxError('a device has an empty name; name it, such as "cuda:0"')
            if name in budgets:
                raise BudgetSyntaxError(f"device {name} has two budgets")
            try:
                budgets[name] = cls.parse(one)
            except BudgetSyntaxError as error:
                raise BudgetSyntaxError(f"budget of {name}: {error}") from None
        return budgets

    def resolve(self, baseline_peak_bytes: int) -> int | None:
        """Give the limit in bytes.

        Parameters
        ----------
        baseline_peak_bytes : int
            Peak bytes of the unoptimised step, of which a share is taken.

        Returns
        -------
        int or None
            Bytes, a share rounded down; None for no limit.
        """
        if self.share is None:
            return self.bytes
        # The share as written: Fraction(0.3) itself lies below 3/10 and would lose a byte.
        return math.floor(Fraction(repr(self.share)) * baseline_peak_bytes)

    def __str__(self) -> str:
        if self.bytes is not None:
            return format_bytes(self.bytes)
        if self.share is not None:
            return f"{self.share * 100:.6g}% of the unoptimised peak"
        return "no limit"

    @classmethod
    def _parse_text(cls, text: str) -> Budget:
        match = _QUANTITY.fullmatch(text.strip())
        if match is None or len(match["number"]) > _LONGEST_NUMBER:
            raise BudgetSyntaxError(f"cannot read the budget {text!r}; give a value {_EXAMPLES}")
        number, unit = match["number"].replace("_", ""), match["unit"]
        if unit == "%":
            return cls(share=float(Fraction(number) / 100))
        if not unit:
            return cls(share=float(number)) if "." in number else cls(bytes=int(number))
        if unit not in _SPELLINGS:
            raise BudgetSyntaxError(_about_unit(text, number, unit))
        size = Fraction(number) * _SPELLINGS[unit]
        if 0 < size < 1:
            raise BudgetSyntaxError(f"the budget {text!r} is less than one byte")
        return cls(bytes=math.floor(size))


def format_bytes(n: int) -> str:
    """Write a number of bytes for people: binary units, one decimal, such as "58.3 MiB".

    Parameters
    ----------
    n : int
        Bytes; may be negative, as in a difference.
    """
    if abs(n) < 1024:
        return f"{n} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        text = f"{n / _UNITS[unit]:.1f}"
        # Compared after rounding, so that 1,048,575 bytes is "1.0 MiB" and not "1024.0 KiB".
        if abs(float(text)) < 1024 or unit == "TiB":
            break
    return f"{text} {unit}"


def _whole_bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BudgetSyntaxError(f"bytes are counted in whole numbers, not {value!r}")
    if value <= 0:
        raise BudgetSyntaxError(f"a budget of {value} bytes is not positive; None means no limit")
    return int(value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BudgetSyntaxError(f"a share is a number in (0, 1], not {value!r}")
    share = float(value)
    if 0 < share <= 1:
        return share
    message = f"a share of the peak lies in (0, 1], not {share}"
    if math.isinf(share) and share > 0:
        message += "; None means no limit"
    elif share > 1 and share.is_integer():
        message += f"; as bytes, give the integer {int(share)}"
    elif share > 1:
        message += f'; give a unit for an amount, such as "{share}GiB"'
    raise BudgetSyntaxError(message)


def _about_unit(text: str, number: str, unit: str) -> str:
    loose = _LOOSE_UNIT.fullmatch(unit)
    if loose is None:
        return f"the budget {text!r} has an unknown unit {unit!r}; known are {', '.join(_UNITS)}"
    prefix = loose["prefix"].upper()
    decimal = next(name for name in _UNITS if name.upper() == f"{prefix}B")
    bits = "may be bits" if "b" in unit else "is ambiguous"
    return (
        f"the unit {unit!r} of the budget {text!r} {bits}; write "
        f'"{number}{decimal}" ({_power(_UNITS[decimal])} bytes a unit) or '
        f'"{number}{prefix}iB" ({_power(_UNITS[f"{prefix}iB"])})'
    )


def _power(size: int) -> str:
    binary = size.bit_length() - 1
    return f"2^{binary}" if size == 1 << binary else f"10^{len(str(size)) - 1}"
