"""The environment of a container in a pod spec or a compose file: what is known, and where the rest comes from.

Kubernetes puts $(NAME) of the container's own environment into its command and arguments; compose puts ${NAME} of the shell that starts it
into the file, and a shell inside the container sees $$NAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvcanary.config.findings import Finding, Severity
from kvcanary.importers import yaml_text
from kvcanary.importers.commands import ENV_NAMES, open_variables
from kvcanary.importers.flags import note
from kvcanary.importers.shell_expand import Variables, Word

ConfigMaps = Mapping[str, Mapping[str, yaml_text.Scalar]]
_COMPOSE_KEYS = ("environment", "entrypoint", "env_file", "container_name", "restart", "deploy", "runtime", "shm_size", "ipc", "build")
_KUBERNETES_NAME = re.compile(r"\$\(([\w.-]+)\)")
_COMPOSE_NAME = re.compile(r"(?<!\$)\$\{?(\w+)")
_REFERENCES = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret", "configMapRef": "ConfigMap", "secretRef": "Secret"}


@dataclass(slots=True)
class Environment:
    """values are known, typed hold a variable themselves, origins say where others come from, files what sets more that is not in the text."""

    compose: bool
    values: dict[str, str] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def canary(self) -> dict[str, str]:
        """What the canary reads of it."""
        return {name: value for name, value in self.values.items() if ENV_NAMES.fullmatch(name)}

    def fill(self, text: str) -> str:
        """The text with the variables that Kubernetes puts in."""
        return text if self.compose else _KUBERNETES_NAME.sub(lambda match: self.values.get(match[1], match[0]), text)

    def in_shell(self, script: str) -> tuple[str, Variables]:
        """A script as the container's shell gets it, and the variables that it sees."""
        if not self.compose:
            return self.fill(script), Variables(values=dict(self.values))
        from_outside = set(_COMPOSE_NAME.findall(script))
        known: dict[str, str | list[Word] | None] = {name: value for name, value in self.values.items() if name not in from_outside}
        return script.replace("$$", "$"), Variables(values=known)

    def findings(self, used: str) -> Iterator[Finding]:
        """What is not known of the variables that the command or the canary uses."""
        yield from open_variables(self.typed)
        for name, origin in self.origins.items():
            if ENV_NAMES.fullmatch(name) or re.search(rf"\$[({{]?{re.escape(name)}\b", used):
                why = "That is not part of the text; the setting was left as it is."
                yield note("open-variable", f"{name} is not known from the text: it comes from {origin}", why)
        for name in sorted(set(_COMPOSE_NAME.findall(used)) & set(self.values)) if self.compose else ():
            why = f"compose puts in what its own shell or .env has, which is not in the text; the container's own is $${name}."
            yield note("compose-variable", f"${name} in the command is not the {name} of the container's environment", why)
        for file in self.files:
            yield note(
                "environment-file",
                f"variables come from elsewhere: {file[:80]}",
                "What it sets is not in the text.",
                severity=Severity.NOTE,
            )


def config_maps(nodes: Iterable[yaml_text.Node]) -> ConfigMaps:
    """Data of the ConfigMaps of a text, by their names."""
    found: dict[str, dict[str, yaml_text.Scalar]] = {}
    for node in (inner for outer in nodes for inner in yaml_text.walk(outer)):
        if isinstance(node, yaml_text.Mapping) and _text(node.get("kind")) == "ConfigMap":
            name, data = _text(_get(node.get("metadata"), "name")), node.get("data")
            if isinstance(data, yaml_text.Mapping):
                found[name] = {key: value for key, value in data.entries if isinstance(value, yaml_text.Scalar)}
    return found


def read_environment(container: yaml_text.Mapping, maps: ConfigMaps) -> Environment:
    """The environment of one container; what is set for itself wins over whole ConfigMaps and files."""
    out = Environment(compose=any(container.get(key) is not None for key in _COMPOSE_KEYS))
    files = container.get("env_file")
    listed: Sequence[yaml_text.Node | None] = files.items if isinstance(files, yaml_text.Sequence) else [files]
    for file in listed:
        if path := _text(file) or _text(_get(file, "path")):
            out.files.append(f"env_file {path}")
    whole = container.get("envFrom")
    for item in whole.items if isinstance(whole, yaml_text.Sequence) else ():
        prefix = _text(_get(item, "prefix"))
        for origin, name in _references(item):
            if origin.startswith("ConfigMap") and name in maps:
                out.values.update({prefix + key: value.text for key, value in maps[name].items()})
            else:
                out.files.append(origin)
    node = container.get("environment", "env", "envs", "Env")
    if isinstance(node, yaml_text.Mapping):
        for key, value in node.entries:
            if isinstance(value, yaml_text.Scalar):
                _put(out, key, value.text)
    for item in node.items if isinstance(node, yaml_text.Sequence) else ():
        if isinstance(item, yaml_text.Scalar):
            name, equals, value_text = item.text.partition("=")
            _put(out, name, value_text) if equals else out.origins.update({name: "the shell that starts it"})
        elif name := _text(_get(item, "name")):
            given = _get(item, "value")
            if isinstance(given, yaml_text.Scalar):
                _put(out, name, given.text)
            else:
                _from(out, name, _get(item, "valueFrom"), maps)
    return out


def _put(out: Environment, name: str, text: str) -> None:
    filled = out.fill(text)
    if "$" in filled:
        out.typed[name] = filled
        out.values.pop(name, None)
    else:
        out.values[name] = filled


def _from(out: Environment, name: str, node: yaml_text.Node | None, maps: ConfigMaps) -> None:
    for origin, source in _references(node):
        key = next((_text(_get(value, "key")) for _, value in _entries(node)), "")
        if origin.startswith("ConfigMap") and key in maps.get(source, {}):
            out.values[name] = maps[source][key].text
            return
        out.origins[name] = f"{origin}, key {key}" if key else origin
    if name not in out.origins:
        out.origins[name] = next((key for key, _ in _entries(node)), "elsewhere")
    out.values.pop(name, None)


def _references(node: yaml_text.Node | None) -> Iterator[tuple[str, str]]:
    for key, value in _entries(node):
        if kind := _REFERENCES.get(key):
            name = _text(_get(value, "name"))
            yield f"{kind} {name}", name


def _entries(node: yaml_text.Node | None) -> list[tuple[str, yaml_text.Node]]:
    return node.entries if isinstance(node, yaml_text.Mapping) else []


def _get(node: yaml_text.Node | None, name: str) -> yaml_text.Node | None:
    return node.get(name) if isinstance(node, yaml_text.Mapping) else None


def _text(node: yaml_text.Node | None) -> str:
    return node.text if isinstance(node, yaml_text.Scalar) else ""
