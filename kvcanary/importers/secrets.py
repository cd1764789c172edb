"""Names that speak of a secret, and the removal of their values before anything else reads a text."""

from __future__ import annotations

import re

REMOVED = "[removed]"
_WORDS = frozenset(
    {"token", "secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey", "key", "keyfile", "pat"}
)
# hf_token_file still speaks of a secret; max_total_tokens, token_map and req_to_token_prob do not.
_TAILS = frozenset({"file", "path", "id", "value", "env", "name", "b", "base", "ref"})
_COUNTED = frozenset(
    {"per", "first", "inter", "next", "last", "new", "num", "stored", "expected", "draft", "pad", "eos", "bos", "mask", "routing", "graph"}
)
_GLUED = re.compile(r"(?i)(?:api|access|private|auth|hf|hub)_?(?:key|token)$|passw(?:or)?d|secret")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)[^\s\"'}]*\}?|\b[A-Za-z_]\w*\b")
# NAME=value, NAME: value, 'name': 'value', --name value, --name=value. A name may hold '-', so that one flag is one name.
_ASSIGNED = re.compile(
    r"""(?<![\w-])(?P<name>(?:--?)?[A-Za-z_][\w-]{1,100})(?P<between>["']?(?:\s*[=:]\s*|[ \t]+(?=[^\s=:])))"""
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[^\s,;)}\]"']+)"""
)
_NAMED_VALUE = re.compile(
    r"""(name["']?:\s{0,40}["']?(?P<name>[A-Za-z_]\w{0,100})["']?[ \t]{0,40}+,?\s{0,200}+["']?value["']?:\s{0,40})("[^"\n]*"|'[^'\n]*'|[^\s,}]+)"""
)
_KNOWN_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{12,})\b|(?i:bearer\s+)[\w.~+/=-]{8,}"
)
# The key of a reference in a pod spec is the name of an entry, never what it holds.
_REFERENCE = re.compile(
    r"""(?:configMap|secret)KeyRef["']?:[\s{]{1,200}(?:["']?(?:name|optional)["']?:\s{0,40}[^\s,}]{1,253}[\s,]{1,200}){0,2}"""
    r"""["']?key["']?:\s{0,40}[^\s,}]{1,253}"""
)
_HINT = re.compile(r"(?i)token|key|secret|passw|credential|bearer|hf_|sk-|gh[pousr]_|AKIA")


def is_secret(name: str) -> bool:
    """Whether a variable, flag or key speaks of a token, key, secret or password: HF_TOKEN, --api-key, but not max_total_tokens."""
    plain = name.lstrip("-")
    if _GLUED.search(plain):
        return True
    parts = [part.lower() for part in _PART.findall(plain)]
    while len(parts) > 1 and (parts[-1] in _TAILS or parts[-1].isdigit()):
        parts.pop()
    return bool(parts) and parts[-1] in _WORDS and not (len(parts) > 1 and parts[-2] in _COUNTED)


def redact(text: str) -> str:
    """The text with the values behind secret names taken out; lengths of lines change, their number does not."""
    if not _HINT.search(text):
        return text
    text = _KNOWN_SHAPES.sub(REMOVED, text)
    text = _NAMED_VALUE.sub(lambda match: f"{match[1]}{REMOVED}" if is_secret(match["name"]) else match[0], text)
    pieces, at = list[str](), 0
    for match in _REFERENCE.finditer(text):
        pieces += [_redact_lines(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*pieces, _redact_lines(text[at:])])


def _redact_lines(text: str) -> str:
    return "".join(_redact_line(line) for line in text.splitlines(keepends=True))


def _redact_line(line: str) -> str:
    return _ASSIGNED.sub(_without_value, line) if _HINT.search(line) else line


def _without_value(match: re.Match[str]) -> str:
    name, between, value = match["name"], match["between"], match["value"]
    if not is_secret(name) or value.startswith("-") or value in ("None", "null", '""', "''"):
        return match[0]
    # "#token: 20891" and full_token=267264 count something.
    if re.fullmatch(r"\d+(?:\.\d+)?", value) and re.search(r"(?i)(?:token|key)$", name):
        return match[0]
    # A blank alone separates a flag from its value; in prose it separates words.
    if not between.strip("\"' \t") and not name.startswith("-"):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{REMOVED}{quote}"


def without_secret_names(text: str) -> str:
    """An expression with the names in it that speak of a secret taken out."""
    return _VARIABLE.sub(lambda match: REMOVED if is_secret(match[1] or match[0]) else match[0], text)
