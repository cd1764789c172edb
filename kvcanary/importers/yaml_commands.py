"""Launch commands in compose files and pod specs, and files that map flag names to values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcanary.config.findings import Severity
from kvcanary.importers import yaml_text
from kvcanary.importers.arguments import table
from kvcanary.importers.commands import (
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
from kvcanary.importers.shell_expand import Word, expand
from kvcanary.importers.yaml_environment import ConfigMaps, Environment, config_maps, read_environment

_COMMAND_KEYS = (("entrypoint", "Entrypoint"), ("command",), ("args",), ("run",), ("script",), ("cmd", "Cmd"))
_MORE_FLAGS = re.compile(r"[a-z]\w*(?:Args|_args|Flags|_flags|Arguments)")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh$")
_NAMED_CLIENT = re.compile(r"(?i)client|bench|load|router|gateway|eval|test")


def in_yaml(text: str, first_line: int = 1) -> Found:
    """Commands in compose files, pod specs and files that map flag names to values."""
    found = Found()
    nodes = yaml_text.read_yaml(text, first_line)
    maps = config_maps(nodes)
    for node in nodes:
        for mapping in (inner for inner in yaml_text.walk(node) if isinstance(inner, yaml_text.Mapping)):
            _container(mapping, maps, found)
    for script in (value for data in maps.values() for value in data.values() if PROGRAM.search(value.text) and "\n" in value.text.strip()):
        _script(Word(script.text, script.line), Environment(compose=False), found)
    if not found.commands:
        _recipes(nodes, found)
    return found


def _container(mapping: yaml_text.Mapping, maps: ConfigMaps, found: Found) -> None:
    parts = [part for keys in _COMMAND_KEYS if (part := mapping.get(*keys)) is not None]
    # Values of a chart name a list of flags as they like: extraArgs, serverArgs, args_override.
    parts += [part for key, part in mapping.entries if _MORE_FLAGS.fullmatch(key) and isinstance(part, yaml_text.Sequence)]
    environment = read_environment(mapping, maps)
    before = len(found.commands)
    words = [word for part in parts for word in _words(part, environment, found)]
    if words and any(PROGRAM.search(word.text) or word.text.startswith("--") for word in words):
        image = mapping.get("image", "Image")
        _container_words(words, environment, image.text if isinstance(image, yaml_text.Scalar) else "", found)
    used = "\n".join(node.text for part in parts for node in yaml_text.walk(part) if isinstance(node, yaml_text.Scalar))
    told = environment.findings(used) if len(found.commands) > before else open_variables(environment.typed)
    found.take((), {}, told)


def _words(part: yaml_text.Node, environment: Environment, found: Found) -> Iterator[Word]:
    """The words of one part of a command; a script of several statements goes to the commands at once."""
    if isinstance(part, yaml_text.Sequence):
        for item in part.items:
            if isinstance(item, yaml_text.Scalar):
                yield from _item(item, environment)
    elif isinstance(part, yaml_text.Scalar):
        statements = read_shell(part.text, part.line).statements
        if len(statements) > 1:
            _script(Word(part.text, part.line), environment, found)
            return
        # One command line, perhaps the first half of it: an entry point before its arguments.
        for statement in statements:
            variables = environment.in_shell(part.text)[1]
            own = prefix_environment(statement.words, variables)
            environment.values.update(own)
            for name in variables.open:
                environment.values.pop(name, None)
            found.take((), {}, open_variables(variables.open))
            for raw in statement.words:
                yield from expand(raw, variables)


def _script(word: Word, environment: Environment, found: Found) -> None:
    text, variables = environment.in_shell(word.text)
    shell = in_shell(text, word.line, variables)
    found.take([command for command in shell.commands if command.has_program], {**environment.canary, **shell.env}, shell.findings)


def _container_words(words: list[Word], environment: Environment, image: str, found: Found) -> None:
    scripts = [word for word in words if PROGRAM.search(word.text) and any(char.isspace() for char in word.text)]
    if scripts or (_SHELLS.match(words[0].text) and len(words) > 2):
        for word in scripts:
            _script(word, environment, found)
        return
    start = find_program(words)
    if start is not None:
        positional = takes_positional(words, start[1])
        found.commands.append(RawCommand(start[0], words[start[1] :], words[0].line, env=environment.canary, positional=positional))
    elif engine := _image_engine(image, words):
        found.commands.append(
            RawCommand(engine, words, words[0].line, env=environment.canary, positional=engine == "vllm", has_program=bool(image))
        )


def _image_engine(image: str, words: Sequence[Word]) -> str:
    if VLLM_IMAGE.search(image):
        return "vllm"
    if SGLANG_IMAGE.search(image):
        return "sglang"
    if not is_flag(words[0].text):
        return ""
    # Any program's arguments begin with dashes: a sidecar with flags that no engine has is none.
    engine = guess_engine(words)
    known = (table(engine).resolve(word.text.partition("=")[0]).argument is not None for word in words if word.text.startswith("--"))
    return engine if any(known) else ""


def _item(item: yaml_text.Scalar, environment: Environment) -> Iterator[Word]:
    """One list item as a word; the values that the container's own environment gives are put in."""
    is_program = PROGRAM.search(item.text) is not None
    text = item.text if is_program else environment.fill(item.text)
    unresolved = not is_program and re.search(r"\$[({A-Za-z_]|\{\{", text) is not None
    head, blank, tail = text.partition(" ")
    if blank and re.fullmatch(r"--[a-z][\w-]*", head) and not unresolved:
        # A flag and its value in one item are one word to the engine, but there is no doubt what was meant.
        yield Word(head, item.line)
        yield Word(tail.strip(), item.line, quoted=True)
    else:
        yield Word(text, item.line, unresolved=unresolved, quoted=True)


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
