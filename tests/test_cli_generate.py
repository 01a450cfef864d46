"""``deepinfer generate`` on a tiny checkpoint: sources, output, seeds, failures, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deepinfer.cli import main
from deepinfer.engine.api import SamplingParams

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(golden_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run ``deepinfer generate`` on the tiny checkpoint in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model = golden_dir / "ckpt_A_quantized"

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        command = ["generate", "--model", str(model), "--threads", "1", *map(str, arguments)]
        return CliRunner().invoke(main, command, input=stdin)

    return run


def document(result: Result) -> dict[str, Any]:
    """The JSON that a successful command wrote."""
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def samples_of(result: Result) -> list[dict[str, Any]]:
    """All samples of the only prompt."""
    [prompt] = document(result)["prompts"]
    found: list[dict[str, Any]] = prompt["samples"]
    return found


def test_a_seeded_run_is_repeated_by_what_its_json_says(invoke: Invoke) -> None:
    first = document(invoke("--prompt", "ab", "--max-tokens", 5, "--top-p", 0.9, "--logprobs", 2, "--json"))
    [prompt] = first["prompts"]
    [sample] = prompt["samples"]
    assert prompt["token_ids"][0] == 0
    assert prompt["token_ids"].count(0) == 1
    assert len(sample["token_ids"]) == len(sample["raw_logprobs"]) == len(sample["processed_logprobs"])
    assert [len(tops) for tops in sample["tops"]] == [2] * len(sample["token_ids"])
    Path("ids.jsonl").write_text(json.dumps({"id": prompt["id"], "token_ids": prompt["token_ids"]}))
    sampling = first["sampling"]
    again = document(
        invoke(
            *("--tokens", "ids.jsonl", "--seed", sampling["seed"], "--max-tokens", sampling["max_tokens"]),
            *("--top-p", sampling["top_p"], "--logprobs", sampling["num_logprobs"], "--json"),
        )
    )
    assert again["prompts"][0]["samples"] == prompt["samples"]
    assert again["sampling"] == sampling
    assert again["configuration"] == first["configuration"]
    assert len(first["configuration"]["checkpoint"]) == 64


def test_other_seeds_and_samples_give_other_tokens(invoke: Invoke) -> None:
    two = samples_of(invoke("--prompt", "ab", "--seed", 1, "--n", 2, "--ignore-eos", "--json"))
    other = samples_of(invoke("--prompt", "ab", "--seed", 2, "--ignore-eos", "--json"))
    assert len({tuple(sample["token_ids"]) for sample in two + other}) == 3
    assert samples_of(invoke("--prompt", "ab", "--seed", 1, "--ignore-eos", "--json")) == two[:1]


def test_one_sample_streams_its_text_alone(invoke: Invoke) -> None:
    arguments = ("--prompt", "ab", "--seed", 4, "--ignore-eos")
    result = invoke(*arguments)
    assert result.exit_code == 0
    [sample] = samples_of(invoke(*arguments, "--json"))
    assert result.stdout == sample["text"] + "\n"
    assert result.stderr == f"finished: length, {SamplingParams().max_tokens} tokens\n"


def test_a_drawn_seed_is_shown(invoke: Invoke) -> None:
    result = invoke("--prompt", "ab", "--max-tokens", 2, "--json")
    seed = document(result)["sampling"]["seed"]
    assert result.stderr == f"seed {seed} was drawn; --seed {seed} repeats this\n"
    assert document(result)["prompts"][0]["samples"][0]["seed"] == seed


def test_several_samples_stand_in_order_under_headings(invoke: Invoke) -> None:
    Path("ids.jsonl").write_text('{"id": "a", "token_ids": [0, 5]}\n{"id": "b", "token_ids": [0, 9, 7]}\n')
    result = invoke("--tokens", "ids.jsonl", "--n", 2, "--seed", 1, "--max-tokens", 3, "--logprobs", 0)
    assert result.exit_code == 0, result.output
    headings = [line.split(" (")[0] for line in result.stdout.splitlines() if line.startswith("== ")]
    assert headings == ["== a, sample 0", "== a, sample 1", "== b, sample 0", "== b, sample 1"]
    assert "most likely" not in result.stdout
    assert result.stdout.count("processed") == 4


def test_a_prompt_file_and_stdin_are_the_same_prompt(invoke: Invoke) -> None:
    Path("p.txt").write_bytes(b"a b\r\n")
    arguments = ("--temperature", 0, "--max-tokens", 3, "--seed", 0, "--json")
    [from_file] = document(invoke("--prompt-file", "p.txt", *arguments))["prompts"]
    [from_stdin] = document(invoke("--prompt-file", "-", *arguments, stdin=b"a b\r\n"))["prompts"]
    assert from_file | {"id": ""} == from_stdin | {"id": ""}
    assert (from_file["id"], from_stdin["id"], from_stdin["text"]) == ("p.txt", "stdin", "a b\r\n")


def test_a_stop_string_ends_a_sample_and_is_not_in_its_text(invoke: Invoke) -> None:
    arguments = ("--prompt", "ab", "--seed", 4, "--ignore-eos", "--max-tokens", 30, "--json")
    [whole] = samples_of(invoke(*arguments))
    stop = whole["text"][5:7]
    [cut] = samples_of(invoke(*arguments, "--stop", stop))
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
    assert len(cut["token_ids"]) < len(whole["token_ids"])


def test_a_bias_bans_and_forces_tokens_and_a_stop_id_ends(invoke: Invoke) -> None:
    greedy = ("--prompt", "ab", "--temperature", 0, "--seed", 0, "--json")
    [free] = samples_of(invoke(*greedy))
    [banned] = samples_of(invoke(*greedy, "--logit-bias", f"{free['token_ids'][0]}=-inf"))
    assert banned["token_ids"][0] != free["token_ids"][0]
    result = invoke(*greedy, "--logit-bias", "77=1e6", "--stop-token-id", 77, "--logit-bias", "3=-inf")
    [forced] = samples_of(result)
    assert (forced["token_ids"], forced["finish_reason"]) == ([77], "stop")
    assert document(result)["sampling"]["logit_bias"] == {"77": 1e6, "3": "-inf"}


def test_a_prompt_that_cannot_run_fails_in_its_place_with_2(invoke: Invoke) -> None:
    image = 511  # the model's image token, which the text model does not read
    lines = [("a", [0, 5]), ("bad", [0, image]), ("b", [0, 9])]
    Path("ids.jsonl").write_text("".join(json.dumps({"id": k, "token_ids": v}) + "\n" for k, v in lines))
    arguments = ("--tokens", "ids.jsonl", "--seed", 1, "--max-tokens", 2)
    result = invoke(*arguments, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["exit_code"] == 2
    assert [(p["id"], p["failure"] is None, len(p["samples"])) for p in found["prompts"]] == [
        ("a", True, 1),
        ("bad", False, 0),
        ("b", True, 1),
    ]
    assert "is an image" in found["prompts"][1]["failure"]
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert shown.stderr.startswith("failed: bad: token id 511 at position 1 is an image")
    assert shown.stdout.count("== ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give exactly one of --prompt, --prompt-file and --tokens"),
        (["--prompt", "a", "--tokens", "x.jsonl"], "give exactly one of"),
        (["--prompt", "a", "--logit-bias", "5"], "'5' is not ID=VALUE"),
        (["--prompt", "a", "--logit-bias", "5=1", "--logit-bias", "5=2"], "token 5 is given twice"),
        (["--prompt", "a", "--logit-bias", "512=1"], "logit_bias names token 512; use ids 0..511"),
        (["--prompt", "a", "--temperature", "-1"], "temperature is -1.0; use 0 (greedy)"),
        (["--prompt", "a", "--seed", "-1"], "seed is -1"),
        (["--prompt", "a", "--logprobs", "513"], "num_logprobs is 513"),
        (["--prompt", "a", "--stop", ""], "stop string is empty"),
        (["--prompt-file", "absent.txt"], "absent.txt: cannot be read"),
        (["--prompt-file", "-"], "stdin: is empty"),
        (["--tokens", "absent.jsonl"], "absent.jsonl: cannot be read"),
    ],
)
def test_wrong_usage_is_one_line_and_2(invoke: Invoke, arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    [line] = [line for line in result.stderr.splitlines() if line.lower().startswith("error: ")]
    assert message in line
    assert result.stdout == ""


def test_ctrl_c_ends_with_130_after_the_text_so_far(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.eval.engines.native import NativeScorer

    generate_iter = NativeScorer.generate_iter

    def interrupted(self: NativeScorer, requests: Any) -> Any:
        for number, record in enumerate(generate_iter(self, requests)):
            if number == 3:
                raise KeyboardInterrupt
            yield record

    monkeypatch.setattr(NativeScorer, "generate_iter", interrupted)
    result = invoke("--prompt", "ab", "--seed", 4, "--ignore-eos")
    assert result.exit_code == 130
    assert result.stdout.strip()
    assert result.stderr.strip() == "interrupted"
