"""What speaks of a token, key or password appears in no output, and what only counts tokens does."""

from __future__ import annotations

import json

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import read_text
from kvcanary.importers.secrets import REMOVED, is_secret, redact, without_secret_names

PROGRAM = "python -m sglang.launch_server --model-path m --tp 2 "


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "--api-key", "--admin-api-key", "hf_token_file", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "ssl_keyfile_password", "GithubPat",
     "HUGGING_FACE_HUB_TOKEN", "--ssl-keyfile", "DB_PASSWD", "privateKey", "WANDB_KEY_1"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["max_total_tokens", "--max-prefill-tokens", "speculative_num_draft_tokens", "token_usage", "stored_token", "req_to_token_prob", "new_token",
     "max_new_token", "monkey", "keyboard", "tokenizer_path", "--tokenizer-mode"],
)  # fmt: skip
def test_names_that_only_sound_like_it(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN=topsecret-1 {PROGRAM}",
        f"export HF_TOKEN='topsecret-1'\n{PROGRAM}--api-key topsecret-2",
        f"{PROGRAM}--api-key=topsecret-1 --admin-api-key 'topsecret 2'",
        f"docker run -e HF_TOKEN=topsecret-1 --env=WANDB_API_KEY=topsecret-2 org/sglang:v1 {PROGRAM}",
        "services:\n  s:\n    environment:\n      HF_TOKEN: topsecret-1\n    command: " + PROGRAM,
        '  containers:\n  - command: ["python3", "-m", "sglang.launch_server", "--tp", "2", "--api-key", "topsecret-1"]\n'
        "    env:\n    - name: HF_TOKEN\n      value: topsecret-2\n",
        "args = ['--tp', '2', '--api-key', 'topsecret-1']\n",
        "e = sgl.Engine(model_path='m', tp_size=2, api_key='topsecret-1')\n",
        "server:\n  model-path: m\n  tp-size: 2\n  api-key: topsecret-1\n",
        "[2031-02-03 04:05:06] server_args=ServerArgs(model_path='m', tp_size=2, api_key='topsecret-1', hf_token='topsecret-2', page_size=1)\n",
        json.dumps(
            {"model_path": "m", "tp_size": 2, "page_size": 1, "api_key": "topsecret-1", "internal_states": [{"api_key": "topsecret-2"}]}
        ),
        f"{PROGRAM}--served-model-name hf_topsecretTOPSECRETtopsecret",
        f"curl -H 'Authorization: Bearer topsecret.1.abcdef' x\n{PROGRAM}",
    ],
)
def test_no_secret_reaches_the_document(text: str) -> None:
    document = json.dumps(read_text(text).to_dict())
    assert "topsecret" not in document.lower()
    assert '"tp_size": 2' in document


def test_the_variable_of_a_secret_is_not_named_either() -> None:
    result = read_text(f"{PROGRAM}--api-key $MY_TOKEN --served-model-name ${{USER_TOKEN}}x --port $PORT")
    document = json.dumps(result.to_dict())
    assert "MY_TOKEN" not in document
    assert "USER_TOKEN" not in document
    assert "$PORT" in document
    assert without_secret_names("a $HF_TOKEN b") == f"a {REMOVED} b"


def test_a_refusal_does_not_quote_a_secret_shape() -> None:
    with pytest.raises(ImportTextError) as caught:
        read_text("HF_TOKEN=topsecret-1")
    assert "topsecret" not in str(caught.value)


def test_counts_of_tokens_stay() -> None:
    line = "Decode batch, #token: 20891, full_token=267264, token usage: 0.40, max_new_token: 5\n"
    assert redact(line) == line
