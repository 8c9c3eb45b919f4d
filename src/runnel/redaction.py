"""Keeps secrets out of everything a person or a log may read.

`redact` takes any text (an error of libpq, a URL, a key=value string, JSON) and gives it back with
passwords as stars. It knows the shapes secrets have, and by heart those that `remember` was given:
the configuration tells it each one it loads, so that a piece of one quoted by a library is caught.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

MASK = "********"

# Up to the last @: a raw @ or / in a password is wrong in a URL, but must not be shown for that.
_USERINFO = re.compile(r"""([A-Za-z][\w+.-]*://[^\s:/@"'<>]*):[^\s"'<>]*@""")
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_NAMED = re.compile(
    r"""(?i)(["']?\b[\w.-]*(?:password|passwd|passphrase|secret|(?:secret|access)[_.-]?key|token)["']?\s*)"""
    rf"""(=\s*(?:{_QUOTED}|[^\s&,;'")\]}}]+)|:\s*(?:{_QUOTED}))"""
)
_SHORT = 4
_known: set[str] = set()


def remember(secret: str) -> None:
    """Short or everyday words are not learnt: masking each `postgres` in a text would help nobody."""
    for form in (secret, unquote(secret)):
        if len(form) >= 6 and form.lower() not in {"postgres", "password", "runnel"}:
            _known.add(form)


def without(text: str, secret: str) -> str:
    """`text` with this secret, and whatever looks like one, as stars. A short one is masked where secrets
    stand only: every letter of a sentence masked that it has would tell it, and hide the sentence."""
    text = redact(text)
    return text.replace(secret, MASK) if len(secret) >= _SHORT else text


def redact(text: str) -> str:
    text = _USERINFO.sub(rf"\1:{MASK}@", text)
    text = _NAMED.sub(lambda found: f"{found[1]}{found[2][0]}{MASK}", text)
    for secret in _known:
        if secret in text:
            text = text.replace(secret, MASK)
    return text
