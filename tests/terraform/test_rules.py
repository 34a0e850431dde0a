"""terraform/ keeps every rule, and every rule fails on a planted mistake."""

from __future__ import annotations

from pathlib import Path

import hcl2
import pytest

from tests.terraform import rules
from tests.terraform.rules import RULES, Module, Rule, joins, load, parse

ROOT = Path(__file__).parents[2] / "terraform"
DIRECTORIES = sorted({path.parent for path in ROOT.rglob("*.tf")})
MODULES = {module.name: module for module in (load(ROOT, directory) for directory in DIRECTORIES)}
PARTS = {name: module for name, module in MODULES.items() if not module.is_environment}
PRODUCTION = MODULES["environments/production"]

# (rule, module, text that stands in it, what to put there instead)
PLANTED: list[tuple[Rule, str, str, str]] = [
    (rules.versions_are_pinned, "modules/agents", '"~> 6.20"', '">= 6.0"'),
    (rules.versions_are_pinned, "modules/agents", '">= 1.11.0, < 2.0.0"', '">= 1.11.0"'),
    (rules.versions_are_pinned, "environments/production", '"6.20.0"', '"~> 6.20"'),
    (rules.variables_are_described, "modules/network", "type        = bool", ""),
    (rules.variables_are_described, "modules/network", 'description = "The three', 'other = "The three'),
    (
        rules.variables_are_validated,
        "modules/agents",
        "var.drain_seconds >= 65 && var.drain_seconds <= 3600",
        "true",
    ),
    (rules.variables_are_validated, "modules/agents", '"drain_seconds must', '"must'),
    (rules.outputs_are_described, "modules/agents", 'description = "Name of the autoscaling group."', ""),
    (rules.references_are_declared, "modules/agents", "= local.drain_hook", "= local.drain_hok"),
    (rules.references_are_declared, "modules/agents", "aws_lb.this.arn", "aws_lb.that.arn"),
    (rules.references_are_declared, "modules/agents", "= var.max_agents\n", "= 12\n"),
    (rules.nothing_is_public, "modules/agents", "internal                         = true", ""),
    (rules.nothing_is_public, "modules/service", "associate_public_ip_address = false", ""),
    (rules.nothing_is_public, "modules/agents", "= each.value.range\n  ip", '= "0.0.0.0/0"\n  ip'),
    (rules.nothing_is_public, "modules/network", "count = var.nat ? 1 : 0", "count = 1"),
    (rules.nothing_is_public, "modules/network", "map_public_ip_on_launch = false", ""),
    (rules.nothing_is_public, "modules/network", "default     = false", "default     = true"),
    (rules.nothing_is_public, "modules/compactor", "assign_public_ip = false", "assign_public_ip = true"),
    (
        rules.nothing_is_public,
        "modules/metadata",
        "publicly_accessible    = false",
        "publicly_accessible = true",
    ),
    (rules.everything_is_encrypted, "modules/service", "encrypted             = true", ""),
    (rules.everything_is_encrypted, "modules/metadata", "storage_encrypted     = true", ""),
    (rules.everything_is_encrypted, "modules/compactor", "sqs_managed_sse_enabled   = true", ""),
    (rules.everything_is_encrypted, "modules/compactor", "kms_key_id        = aws_kms_key.this.arn", ""),
    (rules.everything_is_encrypted, "modules/object_store", "bucket_key_enabled = true", ""),
    (rules.everything_is_encrypted, "modules/object_store", '"aws:kms"', '"AES256"'),
    (rules.everything_is_encrypted, "modules/object_store", "enable_key_rotation     = true", ""),
    (rules.instances_require_imdsv2, "modules/service", '= "required"', '= "optional"'),
    (rules.actions_have_no_wildcards, "modules/agents", '["s3:GetObject", "s3:PutObject"]', '["s3:*"]'),
    (
        rules.actions_have_no_wildcards,
        "modules/agents",
        '["cloudwatch:PutMetricData"]',
        '["cloudwatch:Put*"]',
    ),
    (
        rules.policies_are_documents,
        "modules/agents",
        "data.aws_iam_policy_document.this.json",
        "jsonencode({})",
    ),
    (rules.policies_are_documents, "modules/service", "var.policy\n", "var.about\n"),
    (
        rules.policies_are_documents,
        "modules/compactor",
        "data.aws_iam_policy_document.execution.json",
        "jsonencode({})",
    ),
    (
        rules.wildcard_resources_say_why,
        "modules/agents",
        "    # PutMetricData knows no resources; the condition below holds it to our namespace.\n",
        "",
    ),
    (rules.wildcard_resources_say_why, "modules/network", "# As above: ECR signs these reads itself.", ""),
    (
        rules.only_the_collector_deletes_what_is_not_a_tables,
        "modules/agents",
        '"s3:PutObject"]',
        '"s3:PutObject", "s3:DeleteObject"]',
    ),
    (
        rules.only_the_collector_deletes_what_is_not_a_tables,
        "modules/compactor",
        '"s3:PutObject"]',
        '"s3:PutObject", "s3:DeleteObject"]',
    ),
    (
        rules.only_the_collector_deletes_what_is_not_a_tables,
        "modules/sequencer",
        '"s3:DeleteObject"',
        '"s3:DeleteObjectVersion"',
    ),
    (rules.who_must_delete_may, "modules/sequencer", '"s3:DeleteObject", ', ""),
    (rules.who_must_delete_may, "modules/sequencer", '["s3:ListBucket"]', '["s3:GetObject"]'),
    (
        rules.only_the_collector_deletes_what_is_not_a_tables,
        "modules/compactor",
        "/${var.store.prefix}/*/tables/*",
        "/${var.store.prefix}/*",
    ),
    (rules.who_must_delete_may, "modules/compactor", '["s3:DeleteObject"]', '["s3:GetObject"]'),
    (rules.who_must_delete_may, "modules/network", '"s3:DeleteObject", ', ""),
    (rules.only_dead_machines_are_replaced, "modules/sequencer", '= "EC2"', '= "ELB"'),
    (rules.only_dead_machines_are_replaced, "modules/agents", '"/readyz"', '"/healthz"'),
    (
        rules.secrets_stay_out_of_the_state,
        "modules/sequencer",
        "secret_string_wo         =",
        "secret_string =",
    ),
    (rules.secrets_stay_out_of_the_state, "modules/sequencer", "kms_key_id  =", "other ="),
    (rules.references_are_declared, "modules/sequencer", "= ephemeral.aws", "= aws"),
    (rules.the_bucket_is_guarded, "modules/object_store", "block_public_policy     = true", ""),
    (rules.the_bucket_is_guarded, "modules/object_store", '"aws:SecureTransport"', '"aws:SourceIp"'),
    (rules.the_bucket_is_guarded, "modules/object_store", "expired_object_delete_marker = true", "days = 30"),
    (rules.the_bucket_is_guarded, "modules/object_store", "abort_incomplete_multipart_upload", "expiration"),
    (rules.the_bucket_is_guarded, "modules/object_store", "noncurrent_version_expiration", "other"),
    (
        rules.the_bucket_is_guarded,
        "modules/object_store",
        "prevent_destroy = true",
        "prevent_destroy = false",
    ),
    (rules.the_database_is_durable, "modules/metadata", "multi_az               = true", "multi_az = false"),
    (rules.the_database_is_durable, "modules/metadata", '"rds.force_ssl"', '"other"'),
    (rules.the_database_is_durable, "modules/metadata", "deletion_protection       = true", ""),
    (
        rules.the_database_is_durable,
        "modules/metadata",
        "manage_master_user_password   = true",
        'password = "x"',
    ),
    (rules.alarms_tell_somebody, "modules/alarms", "alarm_actions       = var.topic_arns\n", ""),
    (rules.alarms_tell_somebody, "modules/alarms", "alarm_description   = each.value.about\n", ""),
    (rules.alarms_tell_somebody, "modules/alarms", "treat_missing_data  = each.value.missing\n", ""),
    (rules.scale_in_drains, "modules/agents", "initial_lifecycle_hook", "other"),
    (rules.scale_in_drains, "modules/agents", "var.drain_seconds + 60", "var.drain_seconds - 60"),
    (rules.scale_in_drains, "modules/agents", "EC2_INSTANCE_TERMINATING", "EC2_INSTANCE_LAUNCHING"),
    (
        rules.scale_in_drains,
        "modules/agents",
        "autoscaling:CompleteLifecycleAction",
        "autoscaling:SetInstanceHealth",
    ),
]


def named(rule: object) -> str:
    return getattr(rule, "__name__", "")


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rule", RULES, ids=named)
def test_the_files_keep_the_rule(rule: Rule, name: str) -> None:
    assert list(rule(MODULES[name])) == []


@pytest.mark.parametrize(("rule", "name", "good", "bad"), PLANTED)
def test_a_planted_mistake_is_found(rule: Rule, name: str, good: str, bad: str) -> None:
    text = MODULES[name].text
    assert good in text, "the snippet to change is not there any more"
    assert list(rule(parse(name, text.replace(good, bad)))) != []


def test_every_rule_has_a_planted_mistake() -> None:
    assert {rule for rule, *_ in PLANTED} == set(RULES)


def test_production_joins_every_module_and_passes_only_what_is_declared() -> None:
    assert list(joins(PRODUCTION, PARTS)) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("  bucket        = var.bucket\n", ""),
        ("  bucket        = var.bucket\n", "  bucket        = var.bucket\n  colour = 1\n"),
        ("module.agents.bootstrap_servers", "module.agents.bootstrap"),
        ('source = "../../modules/network"', 'source = "../../modules/netwerk"'),
        ('source = "../../modules/compactor"', 'source = "../../modules/agents"'),
    ],
)
def test_a_planted_mistake_between_modules_is_found(good: str, bad: str) -> None:
    assert good in PRODUCTION.text
    assert list(joins(parse(PRODUCTION.name, PRODUCTION.text.replace(good, bad)), PARTS)) != []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('  runs_on           = "ec2"\n', ""),
        ('  runs_on           = "ec2"\n', '  runs_on           = "ec2"\n  colour = 1\n'),
        ("module.service.security_group_id", "module.service.group_id"),
        ('source = "../service"', 'source = "../servise"'),
    ],
)
def test_a_planted_mistake_in_a_module_that_calls_another_is_found(good: str, bad: str) -> None:
    agents = PARTS["modules/agents"]
    assert good in agents.text
    assert (
        list(joins(PRODUCTION, {**PARTS, agents.name: parse(agents.name, agents.text.replace(good, bad))}))
        != []
    )


def test_the_example_names_declared_variables_and_all_that_have_no_default() -> None:
    example = hcl2.loads((ROOT / "environments/example/production.tfvars").read_text())
    given = {key for key in example if not key.startswith("__")}
    variables = dict(PRODUCTION.labelled("variable"))
    assert given <= variables.keys()
    assert {name for name, variable in variables.items() if "default" not in variable} <= given


def test_all_modules_are_there() -> None:
    expected = {
        "network",
        "object_store",
        "metadata",
        "service",
        "sequencer",
        "agents",
        "compactor",
        "alarms",
    }
    assert {name.removeprefix("modules/") for name in PARTS} == expected
    assert all(isinstance(module, Module) and module.blocks for module in MODULES.values())
