"""`esper serve`: what it says when it cannot serve, and that it starts and stops."""

from __future__ import annotations

import signal
import socket

import pytest

from esper.scripts import serve
from esper.scripts.serve import main


def refusal(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_without_the_extra_it_says_how_to_install_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install '.[serve]'" in refusal(capsys, str(tmp_path))


def test_a_port_that_is_none_is_refused(capsys, tmp_path):
    assert "--port 70000: 0 to 65535" in refusal(capsys, str(tmp_path), "--port", "70000")


def test_a_port_in_use_is_one_line(capsys, tmp_path):
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(capsys, str(tmp_path), "--port", port)
    assert f"port {port} of 127.0.0.1 is in use: choose another with --port" in said


def test_a_folder_or_address_that_is_not_there_is_one_line(capsys, tmp_path):
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    assert "does not exist" in refusal(capsys, str(tmp_path / "none"))
    said = refusal(capsys, str(tmp_path), "--host", "not-a-host.invalid")
    assert "--host not-a-host.invalid: no such address on this machine" in said
    assert "No such file" in refusal(capsys, str(tmp_path), "--token-file", str(tmp_path / "t"))


def test_it_prints_the_address_and_ends_quietly_when_stopped(tmp_path):
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    from web_support import server

    with server(tmp_path, "--host", "0.0.0.0") as (address, process):
        assert "?token=" in address
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stdout.read().splitlines()[-1] == "stopped"
