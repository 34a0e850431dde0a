"""A machine of terraform's without AWS: user data's own files in a folder, its units as processes.

What the instance has of AWS is stood in for: the metadata service (IMDSv2, tokens required), `aws` (Secrets Manager
at moto; names of other calls' arguments are checked against botocore's model and logged), `systemctl` and `chown`.
Absolute paths are moved into the folder, and "every address" (0.0.0.0) is the machine's own one of loopback's, so
that several have the same ports. Nothing else of a file is changed.
"""

from __future__ import annotations

import configparser
import http.server
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.servers import end_with_parent
from tests.terraform.rules import Module, load, parse

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "terraform" / "modules"
PATIENCE_SECONDS = 300.0
"""For a command that ends by itself, on a busy machine, too."""

AWS = '''#!{python}
"""Stands in for AWS's command line."""
import os, sys
import botocore.session
from botocore import xform_name
from botocore.validate import ParamValidator
service, operation, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2], strict=True))
assert all(name.startswith("--") for name in options), options
with open(os.environ["MACHINE_LOG"], "a") as log:
    print("aws", *sys.argv[1:], file=log)
region = options.pop("--region")
query, output = options.pop("--query", None), options.pop("--output", None)
client = botocore.session.get_session().create_client(
    service, region_name=region, endpoint_url=os.environ["MACHINE_AWS"],
    aws_access_key_id="test", aws_secret_access_key="test",
)
method = operation.replace("-", "_")
model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
members = {{"--" + xform_name(member, "-"): member for member in model.input_shape.members}}
if operation == "put-metric-data":  # the command line has words of its own for it
    own = {{"--metric-name", "--dimensions", "--value"}}
    assert own <= options.keys(), options
    options = {{name: value for name, value in options.items() if name not in own}}
arguments = {{members[name]: value for name, value in options.items()}}
if service == "secretsmanager":
    answer = getattr(client, method)(**arguments)
    assert output == "text", output
    print(answer[query])
else:
    wrong = ParamValidator().validate(arguments, model.input_shape).generate_report()
    assert not wrong or operation == "put-metric-data", wrong
'''

SYSTEMCTL = """#!/bin/bash
# Stands in for systemd's: `stop` ends a unit's process and waits for it, as the real one does.
echo "systemctl $*" >>"$MACHINE_LOG"
[[ $1 == try-restart ]] && exit
[[ $1 == stop ]] || exit 1
pid=$(cat "$MACHINE_RUN/$2.pid")
kill -TERM "$pid"
while [[ -e $MACHINE_RUN/$2.pid ]]; do sleep 0.05; done
"""

TAILRACE = """#!/bin/bash
export PYTHONPATH={root}
exec {python} -m tailrace_cli.app "$@"
"""


def module(name: str) -> Module:
    return load(ROOT / "terraform", MODULES / name)


@dataclass(frozen=True, slots=True)
class File:
    """One of cloud-init's write_files."""

    text: str
    mode: int


def rendered_files(name: str, values: Mapping[str, str]) -> dict[str, File]:
    """user data's files of a module, by path, with `values` (by Terraform's expression) filled in.

    They are the module's own and those that `modules/service` adds to them.
    """
    (own,) = module(name).blocks["locals"]
    instances = service_call(name)["instances"]
    assert instances["files"] == "${local.files}"
    (shared,) = module("service").blocks["locals"]
    merged = re.fullmatch(
        r"\$\{var\.instances == null \? \{\} : merge\(var\.instances\.files, (\{.*\})\)\}", shared["files"]
    )
    assert merged is not None, f"of a form that this test doesn't read: {shared['files']}"
    added = parse("files", f"locals {{\n files = {merged[1]}\n}}").blocks["locals"][0]["files"]
    of_call = {"var.instances.process": instances["process"]}
    return _rendered(name, own["files"], values) | _rendered("service", added, of_call)


def service_call(name: str) -> dict[str, Any]:
    """How a module calls `modules/service`."""
    calls = dict(module(name).labelled("module"))
    assert calls["service"]["source"] == "../service"
    found: dict[str, Any] = calls["service"]
    return found


def _rendered(name: str, local_files: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, File]:
    files = {}
    for path, file in local_files.items():
        content, mode = file["content"], int(file["mode"], 8)
        if source := re.fullmatch(r'\$\{file\("\$\{path\.module\}/(.+)"\)\}', content):
            text = (MODULES / name / source[1]).read_text()
        elif source := re.fullmatch(r'\$\{templatefile\("\$\{path\.module\}/(\S+)", \{(.*)\}\)\}', content):
            text = (MODULES / name / source[1]).read_text()
            for key, expression in pairs(source[2]):
                text = text.replace(f"${{{key}}}", values[expression])
        else:
            entries = re.fullmatch(
                r'\$\{join\("", \[for key, value in \{(.*)\} : "\$\{key\}=\$\{value\}\\n"\]\)\}', content
            )
            assert entries is not None, f"{path}: of a form that this test doesn't read: {content}"
            text = "".join(f"{key}={values[expression]}\n" for key, expression in pairs(entries[1]))
        files[path] = File(text, mode)
    return files


def pairs(entries: str) -> list[tuple[str, str]]:
    """`A = x, B = f(y, z)` as (name, expression) each."""
    found = [entry.partition(" = ") for entry in re.split(r", (?=\w+ = )", entries)]
    return [(key, expression) for key, _, expression in found]


def first_commands(name: str) -> list[list[str]]:
    """What cloud-init runs once user data's files are written."""
    (local,) = module("service").blocks["locals"]
    found = re.search(
        r"runcmd = \[(\[.*?\]), concat\((\[.*?\]), var\.instances\.units, (\[.*?\])\)\]", local["user_data"]
    )
    assert found is not None, f"of a form that this test doesn't read: {local['user_data']}"
    first, enable, shared = (json.loads(words) for words in found.groups())
    return [first, [*enable, *service_call(name)["instances"]["units"], *shared]]


def container(
    values: Mapping[str, str], find_secret: Callable[[str], str]
) -> tuple[list[str], dict[str, str]]:
    """The compactor's command and environment, with the secrets that ECS looks up, by their ARN, in it."""
    ((_, _, task),) = module("compactor").resources("aws_ecs_task_definition")
    definition = task["container_definitions"]
    words = [re.search(rf"{key} = (\[.*?\])", definition) for key in ("entryPoint", "command")]
    command = [word for found in words if found is not None for word in json.loads(found[1])]
    entries = re.findall(r'\{name = "(\w+)", value = ([^}]+)\}', definition)
    secrets = re.findall(r'\{name = "(\w+)", valueFrom = ([^}]+)\}', definition)
    environment = {key: values[expression] for key, expression in entries}
    return command, environment | {key: find_secret(values[expression]) for key, expression in secrets}


@dataclass
class Facts:
    """What the metadata service says, by its path below meta-data."""

    values: dict[str, str]
    port: int = 0


@contextmanager
def metadata_service(values: Mapping[str, str]) -> Iterator[Facts]:
    """IMDSv2 on loopback: no fact without a token, no token without its time to live."""
    facts = Facts(dict(values))

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_good = (
                self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            )
            self._say(200 if is_good else 400, "a-token")

        def do_GET(self) -> None:
            fact = facts.values.get(self.path.removeprefix("/latest/meta-data/"))
            if self.headers["X-aws-ec2-metadata-token"] != "a-token":
                self._say(401, "")
            else:
                self._say(404 if fact is None else 200, fact or "")

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    facts.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield facts
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclass
class Machine:
    """One instance: its folder, its address, and what runs on it."""

    folder: Path
    address: str
    instance_role: Mapping[str, str]
    """Credentials of the store, which come from the instance's role on AWS."""
    aws: str
    imds_port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    told: dict[str, list[bytes]] = field(default_factory=dict)
    """What a unit of Type=notify told systemd, in order."""

    def boot(self, files: Mapping[str, File], commands: Sequence[Sequence[str]]) -> None:
        """Write user data's files and run its commands."""
        for name in ("bin", "run", "etc/tailrace", "state"):
            (self.folder / name).mkdir(parents=True)
        programs = {
            "aws": AWS.format(python=sys.executable),
            "systemctl": SYSTEMCTL,
            "chown": "#!/bin/bash\n",
            "tailrace": TAILRACE.format(root=ROOT, python=sys.executable),
        }
        for name, text in programs.items():
            self._write(self.folder / "bin" / name, File(text, 0o755))
        for path, file in files.items():
            self._write(Path(self._moved(path)), File(self._moved(file.text), file.mode))
        for command in commands:
            if command == ["systemctl", "daemon-reload"]:
                continue
            assert command[:3] == ["systemctl", "enable", "--now"], command
            for unit in command[3:]:
                if unit.endswith(".service"):  # a timer's first turn comes later
                    self.start(unit)

    def start(self, unit: str) -> None:
        """Start a unit as systemd does: its environment and no other, ExecStartPre first."""
        self._run_before(unit)
        process = self._popen(unit, self._value(unit, "ExecStart"), self._listen_to(unit))
        self.running[unit] = process
        pid = self.folder / "run" / f"{unit}.pid"
        pid.write_text(str(process.pid))

        def reap() -> None:
            process.wait()
            pid.unlink()

        threading.Thread(target=reap, daemon=True).start()

    def run(self, unit: str) -> str:
        """Run a oneshot unit to its end; what it wrote."""
        self._run_before(unit)
        process = self._popen(unit, self._value(unit, "ExecStart"))
        assert process.wait(PATIENCE_SECONDS) == 0, self.log(unit)
        return self.log(unit)

    def log(self, unit: str) -> str:
        return (self.folder / f"{unit}.log").read_text()

    @property
    def calls(self) -> list[str]:
        """What was asked of `aws` and `systemctl`."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)

    # -- below: details --------------------------------------------------------------------------------

    def _moved(self, text: str) -> str:
        for path, place in (
            ("/etc/tailrace", "etc/tailrace"),
            ("/etc/systemd/system", "units"),
            ("/usr/local/lib/tailrace", "lib"),
            ("/usr/local/bin/tailrace", "bin/tailrace"),
        ):
            text = text.replace(path, str(self.folder / place))
        return text.replace("0.0.0.0:", f"{self.address}:").replace(
            "http://127.0.0.1:", f"http://{self.address}:"
        )

    def _write(self, path: Path, file: File) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(file.mode)

    def _values(self, unit: str, name: str) -> list[str]:
        lines = (self.folder / "units" / unit).read_text().splitlines()
        return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]

    def _value(self, unit: str, name: str) -> str:
        (value,) = self._values(unit, name)
        return value

    def _listen_to(self, unit: str) -> dict[str, str]:
        """Hear what a unit of Type=notify tells, as systemd does: how it is told where to."""
        if self._values(unit, "Type") != ["notify"]:
            return {}
        told = self.told[unit] = []
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"tailrace-test-{uuid4()}"
        channel.bind(f"\0{name}")

        def hear() -> None:
            with channel:
                while text := channel.recv(1_000):
                    told.append(text)

        threading.Thread(target=hear, daemon=True).start()
        period = int(self._value(unit, "WatchdogSec")) * 1_000_000
        return {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": str(period)}

    def _run_before(self, unit: str) -> None:
        for command in self._values(unit, "ExecStartPre"):
            before = self._popen(unit, command.removeprefix("+"))
            assert before.wait(PATIENCE_SECONDS) == 0, self.log(unit)

    def _popen(
        self, unit: str, command: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "IMDS": f"http://127.0.0.1:{self.imds_port}",
            "POLL_SECONDS": "0.1",
            "MACHINE_LOG": str(self.folder / "calls"),
            "MACHINE_RUN": str(self.folder / "run"),
            "MACHINE_AWS": self.aws,
            "STATE_DIRECTORY": str(self.folder / "state"),
            **self.instance_role,
            **(more or {}),
        }
        for file in self._values(unit, "EnvironmentFile"):
            parsed = configparser.RawConfigParser(delimiters="=")
            parsed.optionxform = str  # type: ignore[method-assign,assignment]
            parsed.read_string("[env]\n" + Path(file).read_text())
            environment |= dict(parsed["env"])
        for assignment in self._values(unit, "Environment"):
            key, _, value = assignment.partition("=")
            environment[key] = value
        with open(self.folder / f"{unit}.log", "ab") as log:
            return subprocess.Popen(
                shlex.split(command),
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
            )
