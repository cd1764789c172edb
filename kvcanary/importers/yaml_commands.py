"""Launch commands in compose files and pod specs, and files that map flag names to values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcanary.config.findings import Severity
from kvcanary.importers import yaml_text
from kvcanary.importers.arguments import table
from kvcanary.importers.commands import (
    ENV_NAMES,
    PROGRAM,
    SGLANG_IMAGE,
    VLLM_IMAGE,
    Found,
    RawCommand,
    find_program,
    guess_engine,
    is_flag,
    open_variables,
    takes_positional,
)
from kvcanary.importers.flags import note
from kvcanary.importers.shell import read_shell
from kvcanary.importers.shell_commands import in_shell, prefix_environment
from kvcanary.importers.shell_expand import Variables, Word, expand

_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh$")
_NAMED_CLIENT = re.compile(r"(?i)client|bench|load|router|gateway|eval|test")


def in_yaml(text: str, first_line: int = 1) -> Found:
    """Commands in compose files, pod specs and files that map flag names to values."""
    found = Found()
    nodes = yaml_text.read_yaml(text, first_line)
    for node in nodes:
        for mapping in (inner for inner in yaml_text.walk(node) if isinstance(inner, yaml_text.Mapping)):
            _container(mapping, found)
    if not found.commands:
        _recipes(nodes, found)
    return found


def _container(mapping: yaml_text.Mapping, found: Found) -> None:
    parts = [
        mapping.get("entrypoint"),
        mapping.get("command"),
        mapping.get("args"),
        mapping.get("run"),
        mapping.get("script"),
        mapping.get("cmd"),
    ]
    env = _yaml_environment(mapping, found)
    image = mapping.get("image")
    image_name = image.text if isinstance(image, yaml_text.Scalar) else ""
    words: list[Word] = []
    for part in (part for part in parts if part is not None):
        if isinstance(part, yaml_text.Sequence):
            words += [word for item in part.items if isinstance(item, yaml_text.Scalar) for word in _item(item, env)]
        elif isinstance(part, yaml_text.Scalar):
            statements = read_shell(part.text, part.line).statements
            if len(statements) > 1:
                shell = in_shell(part.text, part.line)
                found.take([command for command in shell.commands if command.has_program], {**env, **shell.env}, shell.findings)
                continue
            # One command line, perhaps the first half of it: an entry point before its arguments.
            for statement in statements:
                variables = Variables()
                env.update(prefix_environment(statement.words, variables))
                for name in variables.open:
                    env.pop(name, None)
                found.take((), {}, open_variables(variables.open))
                words += [word for raw in statement.words for word in expand(raw, Variables())]
    if words and any(PROGRAM.search(word.text) or word.text.startswith("--") for word in words):
        _container_words(words, env, image_name, found)


def _container_words(words: list[Word], env: dict[str, str], image: str, found: Found) -> None:
    scripts = [word for word in words if PROGRAM.search(word.text) and any(char.isspace() for char in word.text)]
    if scripts or (_SHELLS.match(words[0].text) and len(words) > 2):
        for word in scripts:
            shell = in_shell(word.text, word.line)
            found.take([command for command in shell.commands if command.has_program], env, shell.findings)
        return
    start = find_program(words)
    if start is not None:
        command = RawCommand(start[0], words[start[1] :], words[0].line, env=env, positional=takes_positional(words, start[1]))
        found.commands.append(command)
    elif engine := _image_engine(image, words):
        found.commands.append(RawCommand(engine, words, words[0].line, env=env, positional=engine == "vllm", has_program=bool(image)))


def _image_engine(image: str, words: Sequence[Word]) -> str:
    if VLLM_IMAGE.search(image):
        return "vllm"
    if SGLANG_IMAGE.search(image):
        return "sglang"
    return guess_engine(words) if is_flag(words[0].text) else ""


def _item(item: yaml_text.Scalar, env: dict[str, str]) -> Iterator[Word]:
    """One list item as a word; $(NAME) and ${NAME} are put in where the container's own environment has them."""
    text = item.text

    def fill(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2], match[0])

    filled = re.sub(r"\$\((\w+)\)|\$\{(\w+)\}", fill, text) if not PROGRAM.search(text) else text
    unresolved = bool(re.search(r"\$[({A-Za-z_]|\{\{", filled)) and not PROGRAM.search(text)
    head, blank, tail = filled.partition(" ")
    if blank and re.fullmatch(r"--[a-z][\w-]*", head) and not unresolved:
        # A flag and its value in one item are one word to the engine, but there is no doubt what was meant.
        yield Word(head, item.line)
        yield Word(tail.strip(), item.line, quoted=True)
    else:
        yield Word(filled, item.line, unresolved=unresolved, quoted=True)


def _yaml_environment(mapping: yaml_text.Mapping, found: Found) -> dict[str, str]:
    env: dict[str, str] = {}
    node = mapping.get("environment", "env")
    if isinstance(node, yaml_text.Mapping):
        env = {key: value.text for key, value in node.entries if isinstance(value, yaml_text.Scalar)}
    for item in node.items if isinstance(node, yaml_text.Sequence) else ():
        if isinstance(item, yaml_text.Scalar):
            name, _, value = item.text.partition("=")
            env[name] = value
        elif isinstance(item, yaml_text.Mapping):
            name_node, value_node = item.get("name"), item.get("value")
            if isinstance(name_node, yaml_text.Scalar) and isinstance(value_node, yaml_text.Scalar):
                env[name_node.text] = value_node.text
    found.take((), {}, open_variables({name: value for name, value in env.items() if "$" in value}))
    return {name: value for name, value in env.items() if ENV_NAMES.fullmatch(name) and "$" not in value}


def _recipes(nodes: Sequence[yaml_text.Node], found: Found) -> None:
    """Files that map flag names to values: one command per mapping, a mapping for a client program left out."""
    groups: list[tuple[str, RawCommand]] = []
    for node in nodes:
        for name, mapping in _named_mappings(node, ""):
            engines = {engine: sum(table(engine).named(key) is not None for key, _ in mapping.entries) for engine in ("sglang", "vllm")}
            engine = "vllm" if engines["vllm"] > engines["sglang"] else "sglang"
            if engines[engine]:
                native = {key: (yaml_text.native(value), _line(value)) for key, value in mapping.entries}
                groups.append((name, RawCommand(engine, [], mapping.line, has_program=False, native=native)))
    best = max((len(command.native) for _, command in groups), default=0)
    for name, command in groups:
        known = sum(table(command.engine).named(key) is not None for key in command.native)
        if (_NAMED_CLIENT.search(name) and len(groups) > 1) or (known < 2 and best > 2):
            why = "The section looks like settings of another program, so its keys were not read."
            found.findings.append(note("other-section", f"section {name or '(first)'} was left out", why, severity=Severity.NOTE))
        else:
            found.commands.append(command)


def _named_mappings(node: yaml_text.Node, name: str) -> Iterator[tuple[str, yaml_text.Mapping]]:
    if isinstance(node, yaml_text.Mapping):
        yield name, node
        for key, value in node.entries:
            if table("sglang").named(key) is None and table("vllm").named(key) is None:
                yield from _named_mappings(value, key)
    elif isinstance(node, yaml_text.Sequence):
        for item in node.items:
            yield from _named_mappings(item, name)


def _line(node: yaml_text.Node) -> int:
    return node.line
