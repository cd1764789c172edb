"""A launch command in any form: the program, the words behind it, and the environment before it.

Gives words, not arguments; flags.py reads those. shell_commands, yaml_commands and python_commands find commands, and all end in the same
record, so that a command means the same in a terminal, a compose file, a pod spec and a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcanary.config.findings import Finding
from kvcanary.importers.arguments import table
from kvcanary.importers.flags import distinct, note
from kvcanary.importers.shell_expand import Word

PROGRAM = re.compile(
    r"sglang[./](?:srt[./])?(?:launch_server|entrypoints[./]http_server)|\bsglang\s+serve\b|\bvllm\s+serve\b|vllm\.entrypoints\.(?:openai\.)?api_server"
)
_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang.srt.entrypoints.http_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
}
SGLANG_IMAGE = re.compile(r"(?:^|/)sglang(?:[\w.-]*)?(?:[:@]|$)")
VLLM_IMAGE = re.compile(r"(?:^|/)vllm[\w-]*(?:[:@]|$)")
_INTERPRETER = re.compile(r"(?:.*[/=])?(?:python[\w.]*|pypy[\w.]*|torchrun|uv|coverage|accelerate|debugpy|nsys|ncu)$")
ENV_NAMES = re.compile(r"SGLANG_(?:KV_CANARY_\w+|ENABLE_POST_CAPTURE_KV_SIZING)")
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(slots=True)
class RawCommand:
    """Words of one launch command. `native` holds arguments of a config file or a keyword call, which have values instead of words."""

    engine: str
    words: list[Word]
    line: int
    has_program: bool = True
    env: dict[str, str] = field(default_factory=dict)
    native: dict[str, tuple[Any, int]] = field(default_factory=dict)
    positional: bool = False
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Commands of a text in order, variables set beside them, and what is to say about the text as a whole."""

    commands: list[RawCommand] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def take(self, commands: Iterable[RawCommand], env: Mapping[str, str], findings: Iterable[Finding]) -> None:
        """Add commands that were found inside another text, with the variables set around them."""
        for command in commands:
            command.env = {**env, **command.env}
            self.commands.append(command)
        self.findings = distinct([*self.findings, *findings])


def open_variables(variables: Mapping[str, str]) -> list[Finding]:
    """Canary variables among these, whose values are not in the text, as typed there."""
    why = "A variable or a branch decides it where the server is started; the setting was left as it is."
    return [
        note("open-variable", f"{name} is not known from the text, got {text[:60]!r}", why)
        for name, text in variables.items()
        if ENV_NAMES.fullmatch(name)
    ]


def is_flag(text: str) -> bool:
    """Whether a word at the beginning of a statement is a flag and not the dash of a list or a sentence."""
    return bool(_FLAG.match(text)) and (text.startswith("--") or len(text.partition("=")[0]) <= 4)


def takes_positional(words: Sequence[Word], at: int) -> bool:
    """Whether the program that ends before `at` takes its model as the first word: `serve`, and vLLM's image."""
    return words[at - 1].text == "serve" or bool(VLLM_IMAGE.search(words[at - 1].text))


def find_program(words: Sequence[Word]) -> tuple[str, int, bool] | None:
    """Engine, index behind the program, and whether something starts Python before -m; None where no engine is started."""
    for at, word in enumerate(words):
        text = word.text
        before = words[at - 1].text if at else ""
        name = text.rpartition("/")[2]
        following = words[at + 1].text if at + 1 < len(words) else ""
        if text in _MODULES and before == "-m":
            return _MODULES[text], at + 1, any(_INTERPRETER.match(earlier.text) for earlier in words[:at])
        if name in ("sglang", "vllm") and following == "serve":
            return name, at + 2, True
        if text.endswith("launch_server.py") and (not at or _INTERPRETER.match(before) or before.startswith("-")):
            return "sglang", at + 1, True
    return _image(words)


def _image(words: Sequence[Word]) -> tuple[str, int, bool] | None:
    """A container started without naming its program: the image's own entry point takes the flags."""
    if not any(word.text.rpartition("/")[2] in ("docker", "podman", "nerdctl") for word in words[:3]) or not any(
        word.text == "run" for word in words
    ):
        return None
    for at, word in enumerate(words[:-1]):
        engine = "vllm" if VLLM_IMAGE.search(word.text) else "sglang" if SGLANG_IMAGE.search(word.text) else ""
        following = words[at + 1].text
        if engine and not word.text.startswith("-") and (following.startswith("--") or (engine == "vllm" and "/" in following)):
            return engine, at + 1, True
    return None


def guess_engine(words: Iterable[Word]) -> str:
    """The engine whose arguments the flags are; SGLang where both fit."""
    flags = [word.text.partition("=")[0] for word in words if word.text.startswith("-")]
    score = {engine: sum(table(engine).resolve(flag).argument is not None for flag in flags) for engine in ("sglang", "vllm")}
    return "vllm" if score["vllm"] > score["sglang"] else "sglang"
