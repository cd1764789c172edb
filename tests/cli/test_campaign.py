"""`kvcanary campaign` as a command."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from kvcanary.cli import app

FEW = ["campaign", "--faults", "payload_bytes.bit_flip,payload_bytes.v_row", "--configs", "chain only;partial", "--seeds", "1"]


def test_the_document_tells_seen_from_out_of_reach() -> None:
    result = CliRunner().invoke(app, [*FEW, "--json", "-"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema"], document["runs"], document["planned"]) == ("kvcanary.campaign", 4, 4)
    cells = {(cell["variant"], cell["config"]): cell for cell in document["cells"]}
    assert cells["bit_flip", "partial"]["rate"] == 1.0
    assert not cells["bit_flip", "chain only"]["visible"]
    assert "--kv-canary-real-data partial" in document["sentence"]
    assert "payload_bytes.v_row" in document["sentence"]


def test_bad_choices_are_named() -> None:
    for options, words in (
        (["--faults", "moths"], "kind.variant"),
        (["--faults", "payload_bytes.moths"], "payload_bytes has no variant"),
        (["--configs", "best"], "configs must be among"),
        (["--seeds", "0"], "seeds must be between 1 and 100, got 0"),
    ):
        result = CliRunner().invoke(app, ["campaign", *options])
        assert result.exit_code == 2
        assert words in result.stderr
