"""What a budget's text may be, known without torch: the command refuses before it starts anything."""

from __future__ import annotations

import re

_UNITS = ("", "b", "kib", "mib", "gib", "tib", "kb", "mb", "gb", "tb")


def problem_with(text: str) -> str | None:
    """None when ``text`` can be a budget; else what is wrong with it. The budget itself has the last word."""
    share = re.fullmatch(r"([0-9.]+)%", text)
    if share:
        try:
            if 0 < float(share[1]) <= 100:
                return None
        except ValueError:
            pass
        return f"--budget {text}: a share must be over 0% and at most 100%"
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)", text)
    if size and size[2].lower() in _UNITS:
        return None
    return f"--budget {text}: cannot read that; write 6GiB, 500MB, a number of bytes, or a share such as 50%"
