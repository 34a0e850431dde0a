"""Terraform's own checks: the format of the files, and its validations.

Neither needs a provider. Skipped where there is no `terraform` on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "terraform"
TERRAFORM = shutil.which("terraform")
ENVIRONMENT = os.environ | {
    "TF_CLI_CONFIG_FILE": os.devnull,
    "CHECKPOINT_DISABLE": "1",
    "TF_IN_AUTOMATION": "1",
}

pytestmark = pytest.mark.skipif(
    TERRAFORM is None, reason="no terraform on PATH: fmt and validations were not run"
)


def terraform(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(TERRAFORM), *arguments]
    return subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


def plan(directory: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    """Plan production's variables alone, with the example's values and these changes."""
    shutil.copy(ROOT / "environments/production/variables.tf", directory)
    shutil.copy(ROOT / "environments/example/production.tfvars", directory / "terraform.tfvars")
    (directory / "z.auto.tfvars.json").write_text(json.dumps(changes))
    return terraform("plan", "-no-color", "-input=false", "-compact-warnings", directory=directory)


def test_the_files_are_formatted() -> None:
    done = terraform("fmt", "-check", "-diff", "-recursive", directory=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_badly_formatted_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.tf").write_text("locals {\n a=1\n}\n")
    assert terraform("fmt", "-check", "-recursive", directory=tmp_path).returncode != 0


def test_the_example_passes_every_validation(tmp_path: Path) -> None:
    done = plan(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# A value a round; None leaves the variable out of that round, where its validation reads another bad one.
BAD: dict[str, list[object]] = {
    "region": ["europe"],
    "account_id": ["12345"],
    "name": ["Tailrace", "tailrace-", "a" * 24],
    "bucket": ["with.dots", "Upper"],
    "undelete_days": [-1, 1.5],
    "cidr": ["8.8.0.0/16", "10.0.0.0/8", "10.40.0.0"],
    "zones": [None, ["eu-central-1a"], ["eu-central-1a"] * 3, ["us-east-1a", "us-east-1b", "us-east-1c"]],
    "ami_id": ["latest"],
    "database_instance_class": ["db.t4g.medium"],
    "backup_retention_days": [1],
    "sequencer_instance_type": ["t3.large"],
    "sequencer_servers": [1],
    "agent_instance_type": ["t4g.large", "m7g.medium"],
    "agent_spot_percent": [101, 0.5],
    "agent_spot_instance_types": [["t4g.large"]],
    "min_agents": [4, None, -3],
    "max_agents": [None, 2],
    "drain_seconds": [60, 7200],
    "kafka_client_security_group_ids": [{"apps": "apps"}],
    "kafka_client_cidrs": [["0.0.0.0/0"], ["8.8.8.0/24"], ["10.0.0.0/1"]],
    "kafka_tls_secret": [{"arn": "secret", "kms_key_arn": "arn:aws:kms:eu-central-1:123456789012:key/a"}],
    "compactor_image": ["tailrace:latest"],
    "compactor_schedule": ["hourly"],
    "compactor_size": [
        {"vcpu": 3, "memory_gib": 8, "disk_gib": 50},
        {"vcpu": 4, "memory_gib": 64, "disk_gib": 50},
        {"vcpu": 8, "memory_gib": 18, "disk_gib": 50},
        {"vcpu": 4, "memory_gib": 16, "disk_gib": 10},
    ],
    "compactor_catalog": [
        {"url": "postgresql://h/tailrace"},
        {"url": "https://h", "security_group_id": "catalog"},
        {"url": "https://h", "port": 0},
    ],
    "alarm_topic_arns": [[], ["on-call"]],
}


@pytest.mark.parametrize("index", range(max(map(len, BAD.values()))))
def test_bad_values_are_refused_with_a_message_that_names_the_variable(tmp_path: Path, index: int) -> None:
    # One plan for a bad value of each variable: Terraform reports all that fail.
    changes = {name: values[index] for name, values in BAD.items() if any(values[index : index + 1])}
    done = plan(tmp_path, **changes)
    assert done.returncode != 0
    told = " ".join(done.stderr.replace("│", " ").split())
    missing = [name for name in changes if f'variable "{name}"' not in told and f"var.{name}" not in told]
    assert missing == [], done.stderr


def test_every_validated_variable_of_production_has_a_bad_value_here() -> None:
    text = (ROOT / "environments/production/variables.tf").read_text()
    validated = {part.split('"', 1)[0] for part in text.split('variable "')[1:] if "validation {" in part}
    assert validated == BAD.keys()
