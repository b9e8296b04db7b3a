"""What the README shows runs as it stands there."""

import shlex

from documents import ROOT, blocks
from privstream.pipelines.cli import main

README = (ROOT / "README.md").read_text()


def test_the_library_example_runs(tmp_path, monkeypatch, capfd):
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks(README, "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    printed = capfd.readouterr().out
    assert "(epsilon = 1, delta = 1e-06)-differential privacy for one person over the whole run" in printed
    assert "item='rain'" in printed


def test_the_first_answer_is_given(tmp_path, monkeypatch, capfd):
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    ((_, block),) = blocks(README, "sh")
    _, simulate, watch = block.replace("\\\n", " ").strip().splitlines()
    assert main(shlex.split(simulate.replace("--windows 24", "--windows 6"))[1:]) == 0
    assert main([*shlex.split(watch)[1:], "--run_id=readme"]) == 0  # Avro files differ in a random marker
    assert (tmp_path / "key.ledger.jsonl").exists()
    ((_, answer),) = blocks(README, "text")
    shown, printed = answer.splitlines(), capfd.readouterr().out.splitlines()
    assert [line.split() for line in printed[:2]] == [line.split() for line in shown[:2]]
    assert any("night market" in line for line in printed[3:])
