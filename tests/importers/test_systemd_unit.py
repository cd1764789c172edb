"""Launch commands in systemd units: what systemd puts in, what it does not, and what the text does not hold."""

from __future__ import annotations

import pytest

from kvcanary.importers.detect import read_text
from kvcanary.importers.result import ImportResult

RING = "SGLANG_KV_CANARY_RING_CAPACITY"
UNIT = "[Unit]\nDescription=wren\n[Service]\n{environment}\nExecStart={start}\nRestart=always\n"
START = "/opt/w/bin/python3 -m sglang.launch_server --model-path o/wren --mem-fraction-static"


def read(environment: str, start: str) -> ImportResult:
    return read_text(UNIT.format(environment=environment, start=start))


def open_variables(result: ImportResult) -> list[str]:
    return [finding.message for finding in result.findings if finding.rule == "open-variable"]


@pytest.mark.parametrize(
    "start", [f"{START} $MEM", f"-{START} ${{MEM}}", f"/bin/sh -c 'exec {START} \"$MEM\"'", f"/bin/sh -c 'exec {START} $$MEM'"]
)
@pytest.mark.parametrize(
    "environment", ["Environment=MEM=0.71", 'Environment="MEM=0.71" "A=b c"', "Environment=A=1 \\\n  # ours\n  MEM=0.71"]
)
def test_a_value_of_the_unit_reaches_the_command(environment: str, start: str) -> None:
    result = read(environment, start)
    assert result.fields["mem_fraction_static"].value == 0.71
    assert not result.findings
    assert not result.unresolved


def test_a_variable_in_a_value_is_not_put_in_and_said() -> None:
    result = read(f'Environment=R=0.6 PATH=$PATH:/opt\nEnvironment="MEM=$R" {RING}=$ROWS', f"{START} $MEM --tp ${{TP}}")
    assert "mem_fraction_static" not in result.fields
    assert result.unresolved == ("$MEM", "${TP}")
    assert open_variables(result) == ["MEM is not known from the text, got '$R'", f"{RING} is not known from the text, got '$ROWS'"]
    assert not result.env


def test_the_environment_holds_for_commands_before_it_and_inside_a_shell() -> None:
    text = f"[Service]\nExecStart=/bin/bash -c 'exec {START} 0.5'\nEnvironment={RING}=77\n"
    result = read_text(text)
    assert (result.fields["ring_capacity"].value, result.fields["mem_fraction_static"].value) == (77, 0.5)


def test_a_drop_in_takes_the_command_back() -> None:
    drop_in = (
        f"[Service]\nEnvironment=\nEnvironment=P=16\nExecStart=\nExecStart={START} 0.4 --page-size $P --port 30%i --context-length 9%%\n"
    )
    result = read_text(UNIT.format(environment="Environment=P=8 Q=1", start=f"{START} 0.9 --tp 8") + drop_in)
    assert len(result.commands) == 1
    assert result.arguments["mem_fraction_static"] == 0.4
    assert result.fields["page_size"].value == 16
    assert "tp_size" not in result.arguments
    assert result.unresolved == ("30%i",)
    assert "'9%'" in next(finding.message for finding in result.findings if finding.rule == "malformed-value")


def test_two_units_are_two_commands_with_values_of_their_own() -> None:
    unit = UNIT.format(environment="Environment=MEM={}", start=f"{START} $MEM")
    result = read_text(unit.format("0.3") + unit.format("0.8"))
    assert [command.arguments["mem_fraction_static"] for command in result.commands] == [0.3, 0.8]


@pytest.mark.parametrize(("mark", "value", "told"), [("EOF", 0.66, []), ("'EOF'", None, ["MEM is not known from the text, got '$R'"])])
def test_a_script_that_writes_the_unit_puts_its_variables_in(mark: str, value: float | None, told: list[str]) -> None:
    sign = "$" if "'" in mark else "\\$"
    unit = UNIT.format(environment="Environment=MEM=$R", start=f"{START} {sign}{{MEM}}")
    result = read_text(f"R=0.66\ncat > w.service <<{mark}\n{unit}EOF\nsystemctl start w\n")
    assert ("mem_fraction_static" in result.fields, result.settings_values().get("mem_fraction_static")) == (value is not None, value)
    assert open_variables(result) == told
    assert result.fields["model"].source == "--model-path, line 7"


def test_files_of_variables_are_named() -> None:
    result = read("EnvironmentFile=/etc/w.env\nEnvironmentFile=\nEnvironmentFile=-/etc/v.env\nEnvironment=MEM=0.7", f"{START} $MEM")
    assert [finding.message for finding in result.findings] == ["variables come from elsewhere: EnvironmentFile=-/etc/v.env"]
    assert result.fields["mem_fraction_static"].value == 0.7


def test_scripts_that_write_many_units_are_read_up_to_a_limit() -> None:
    written = "".join(f"cat <<E > w{number}.service\nExecStart={START} 0.5 --tp {number + 1}\nE\n" for number in range(60))
    assert len(read_text(written).commands) == 50
    assert read_text(f"cat <<E\nExecStart={START} 0.5\n").fields["mem_fraction_static"].value == 0.5
