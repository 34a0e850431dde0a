"""Rules for terraform/ over parsed files: each takes a module and returns its violations.

A rule is a plain function from a `Module` to complaints, so that test_rules.py can show each of them a
planted mistake: a rule that can't fail proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hcl2

SERVICE = "modules/service"
"""Takes its role's policy from the modules that call it."""
COLLECTOR = ("modules/sequencer", "this")
"""The policy document of whoever collects garbage: the committer does, in the sequencer's servers."""

COMPACTOR = ("modules/compactor", "job")
"""The policy document of whoever writes Iceberg tables: what their expired snapshots named is its own to delete."""

Body = dict[str, Any]
Rule = Callable[["Module"], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Module:
    """One directory of .tf files, parsed. `text` is all of them, for what the parser drops (comments)."""

    name: str
    text: str
    blocks: dict[str, list[Body]] = field(default_factory=dict)

    @property
    def is_environment(self) -> bool:
        return self.name.startswith("environments/")

    def labelled(self, kind: str) -> Iterator[tuple[str, Body]]:
        """Blocks with one label: variable, output, module, provider."""
        for block in self.blocks.get(kind, []):
            yield from block.items()

    def resources(self, kind: str = "", *, of: str = "resource") -> Iterator[tuple[str, str, Body]]:
        """(type, name, body) of resources, or of data sources with of="data"."""
        for block in self.blocks.get(of, []):
            for found, named in block.items():
                if kind in ("", found):
                    for name, body in named.items():
                        yield found, name, body

    def statements(self) -> Iterator[tuple[str, Body]]:
        """(document name, statement) of all IAM policy documents."""
        for _, name, body in self.resources("aws_iam_policy_document", of="data"):
            for statement in body.get("statement", []):
                yield name, statement


def parse(name: str, text: str) -> Module:
    """Parse HCL; strings come without their quotes, expressions as ${...}."""
    options = hcl2.SerializationOptions(strip_string_quotes=True, explicit_blocks=False, with_comments=False)
    return Module(name, text, hcl2.loads(text, serialization_options=options))


def load(root: Path, directory: Path) -> Module:
    """Read all .tf files of one directory as one module, as Terraform does."""
    text = "\n".join(path.read_text() for path in sorted(directory.glob("*.tf")))
    return parse(str(directory.relative_to(root)), text)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def words(value: Any) -> list[str]:
    """Every string in a nested value."""
    if isinstance(value, dict):
        return [word for item in value.values() for word in words(item)]
    if isinstance(value, list):
        return [word for item in value for word in words(item)]
    return [value] if isinstance(value, str) else []


# Versions, variables, outputs


def versions_are_pinned(module: Module) -> Iterator[str]:
    settings = module.blocks.get("terraform", [])
    required = [block["required_version"] for block in settings if "required_version" in block]
    if not required or not all("<" in version and ">=" in version for version in required):
        yield "required_version needs a lower and an upper bound"
    providers = [
        (name, provider)
        for block in settings
        for group in block.get("required_providers", [])
        for name, provider in group.items()
    ]
    if not providers:
        yield "required_providers is missing"
    for name, provider in providers:
        pattern = r"\d+\.\d+\.\d+" if module.is_environment else r"~> \d+\.\d+(\.\d+)?"
        if not re.fullmatch(pattern, provider.get("version", "")):
            yield f"provider {name}: version {provider.get('version')!r} does not match {pattern}"


def variables_are_described(module: Module) -> Iterator[str]:
    for name, variable in module.labelled("variable"):
        if len(variable.get("description", "")) < 10:
            yield f"variable {name} has no description"
        if "type" not in variable:
            yield f"variable {name} has no type"


def variables_are_validated(module: Module) -> Iterator[str]:
    """All but booleans, which have no wrong value; the message names the variable."""
    for name, variable in module.labelled("variable"):
        if variable.get("type") in ("bool", "${bool}"):
            continue
        checks = variable.get("validation", [])
        if not checks:
            yield f"variable {name} has no validation"
        for check in checks:
            if not check.get("error_message", "").startswith(name):
                yield f"variable {name}: an error message does not start with its name"
            if f"var.{name}" not in str(check.get("condition", "")):
                yield f"variable {name}: a validation does not look at it"


def outputs_are_described(module: Module) -> Iterator[str]:
    for name, output in module.labelled("output"):
        if len(output.get("description", "")) < 10:
            yield f"output {name} has no description"


def references_are_declared(module: Module) -> Iterator[str]:
    """Every var., local., data and resource that is named exists, and every variable and local is used."""
    code = re.sub(r'^\s*(#.*|(description|error_message)\s*=\s*".*)$', "", module.text, flags=re.M)
    declared = {
        "var": {name for name, _ in module.labelled("variable")},
        "local": {name for block in module.blocks.get("locals", []) for name in block},
        "module": {name for name, _ in module.labelled("module")},
    }
    for kind, names in declared.items():
        used = set(re.findall(rf"(?<![\w.]){kind}\.([a-z_][a-z0-9_]*)", code))
        yield from (f"{kind}.{name} is not declared" for name in sorted(used - names))
        if kind == "local":
            yield from (f"local.{name} is not used" for name in sorted(names - used))
    outside = re.sub(r'^variable "\w+" \{\n.*?^\}$', "", code, flags=re.M | re.S)
    used = set(re.findall(r"(?<![\w.])var\.([a-z_][a-z0-9_]*)", outside))
    yield from (f"variable {name} is not used" for name in sorted(declared["var"] - used))
    data = {f"{kind}.{name}" for kind, name, _ in module.resources(of="data")}
    ephemeral = {f"{kind}.{name}" for kind, name, _ in module.resources(of="ephemeral")}
    resources = {f"{kind}.{name}" for kind, name, _ in module.resources()}
    known = {"": resources, "data.": data, "ephemeral.": ephemeral}
    pattern = r"(?<![\w.])(data\.|ephemeral\.)?(aws_[a-z0-9_]+\.[a-z_][a-z0-9_]*)"
    for prefix, reference in re.findall(pattern, code):
        if reference not in known[prefix]:
            yield f"{prefix}{reference} is not declared"


# Nothing public


def nothing_is_public(module: Module) -> Iterator[str]:
    for kind, name, body in module.resources():
        if kind == "aws_security_group" and ({"ingress", "egress"} & body.keys()):
            yield f"{kind}.{name} has rules inline, where they are easily overlooked"
        if kind == "aws_security_group_rule":
            yield f"{kind}.{name}: use aws_vpc_security_group_ingress_rule"
        if kind in ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule"):
            if body.get("cidr_ipv4") == "0.0.0.0/0" or "cidr_ipv6" in body:
                yield f"{kind}.{name} is open to the world"
            if body.get("ip_protocol") == "-1":
                yield f"{kind}.{name} allows every protocol and port"
        if kind == "aws_lb" and body.get("internal") is not True:
            yield f"{kind}.{name} is not internal"
        if kind == "aws_db_instance" and body.get("publicly_accessible") is not False:
            yield f"{kind}.{name} is publicly accessible"
        if kind == "aws_subnet" and body.get("map_public_ip_on_launch") is not False:
            yield f"{kind}.{name} gives out public addresses"
        if kind == "aws_launch_template":
            interfaces = body.get("network_interfaces", [])
            if not interfaces or any(i.get("associate_public_ip_address") is not False for i in interfaces):
                yield f"{kind}.{name} may give a public address"
        if kind == "aws_internet_gateway" and body.get("count") != "${var.nat ? 1 : 0}":
            yield f"{kind}.{name} exists without var.nat"
        if kind in ("aws_nat_gateway", "aws_eip") and body.get("for_each") != "${local.nat_subnets}":
            yield f"{kind}.{name} exists without var.nat"
        if "assign_public_ip = true" in str(body) or "'assign_public_ip': True" in str(body):
            yield f"{kind}.{name} assigns a public address"
    for name, variable in module.labelled("variable"):
        if name == "nat" and variable.get("default") is not False:
            yield "variable nat is not off by default"


# Encryption and metadata


def everything_is_encrypted(module: Module) -> Iterator[str]:
    for kind, name, body in module.resources():
        if kind == "aws_db_instance" and (
            body.get("storage_encrypted") is not True or "kms_key_id" not in body
        ):
            yield f"{kind}.{name} is not encrypted with a key of ours"
        if kind == "aws_launch_template":
            disks = [
                disk for mapping in body.get("block_device_mappings", []) for disk in mapping.get("ebs", [])
            ]
            if not disks or any(disk.get("encrypted") is not True for disk in disks):
                yield f"{kind}.{name} has a disk that is not encrypted"
        if kind == "aws_sqs_queue" and body.get("sqs_managed_sse_enabled") is not True:
            yield f"{kind}.{name} is not encrypted"
        if kind == "aws_cloudwatch_log_group" and "kms_key_id" not in body:
            yield f"{kind}.{name} is not encrypted with a key of ours"
        if kind == "aws_kms_key" and body.get("enable_key_rotation") is not True:
            yield f"{kind}.{name} does not rotate"
    buckets = list(module.resources("aws_s3_bucket"))
    rules = [
        rule
        for _, _, body in module.resources("aws_s3_bucket_server_side_encryption_configuration")
        for rule in body.get("rule", [])
    ]
    if buckets and not rules:
        yield "the bucket has no encryption"
    for rule in rules:
        default = rule.get("apply_server_side_encryption_by_default", [{}])[0]
        if default.get("sse_algorithm") != "aws:kms" or "kms_master_key_id" not in default:
            yield "the bucket is not encrypted with a KMS key of ours"
        if rule.get("bucket_key_enabled") is not True:
            yield "the bucket key is off: KMS would be called for each object"


def instances_require_imdsv2(module: Module) -> Iterator[str]:
    for kind, name, body in module.resources("aws_launch_template"):
        options = body.get("metadata_options", [{}])[0]
        if options.get("http_tokens") != "required" or options.get("http_put_response_hop_limit") != 1:
            yield f"{kind}.{name} does not require IMDSv2 within one hop"


# Rights


def actions_have_no_wildcards(module: Module) -> Iterator[str]:
    for name, statement in module.statements():
        if statement.get("effect", "Allow") == "Deny":
            continue
        if "not_actions" in statement or "not_resources" in statement:
            yield f"{name}: grants all but a list"
        yield from (
            f"{name}: {action} has a wildcard" for action in words(statement.get("actions")) if "*" in action
        )
        if "actions" not in statement:
            yield f"{name}: a statement without actions"


def policies_are_documents(module: Module) -> Iterator[str]:
    """Only aws_iam_policy_document, which the other rules read: no inline JSON, nothing of AWS's own."""
    for kind, name, body in module.resources():
        if kind in ("aws_iam_role_policy_attachment", "aws_iam_policy_attachment"):
            yield f"{kind}.{name} attaches a policy that is not written here"
        for key in ("policy", "assume_role_policy"):
            is_passed = (module.name, key, body.get(key)) == (SERVICE, "policy", "${var.policy}")
            if key in body and not is_passed and not _is_document(body[key]):
                yield f"{kind}.{name}: {key} is not an aws_iam_policy_document"
        if "managed_policy_arns" in body:
            yield f"{kind}.{name} attaches a policy that is not written here"
    for name, call in module.labelled("module"):
        if "policy" in call and not _is_document(call["policy"]):
            yield f"module {name}: policy is not an aws_iam_policy_document"


def _is_document(value: Any) -> bool:
    return str(value).startswith("${data.aws_iam_policy_document.")


def wildcard_resources_say_why(module: Module) -> Iterator[str]:
    """A * in resources or identifiers has a comment just above it, or above its principals block."""
    lines = module.text.splitlines()
    for number, line in enumerate(lines):
        if not re.match(r"\s*(resources|identifiers)\s*=", line) or "*" not in line:
            continue
        above = number - 1
        while above > 0 and (
            re.match(r"\s*(type|effect)\s*=", lines[above]) or "principals {" in lines[above]
        ):
            above -= 1
        is_bucket_pair = re.search(r'resources = \[var\.bucket_arn, "\$\{var\.bucket_arn\}/\*"\]', line)
        if not lines[above].strip().startswith("#") and not is_bucket_pair:
            yield f"no comment says why: {line.strip()}"


def only_the_collector_deletes_what_is_not_a_tables(module: Module) -> Iterator[str]:
    for name, statement in module.statements():
        if statement.get("effect", "Allow") == "Deny":
            continue
        for action in words(statement.get("actions")):
            deletes = action in ("s3:*", "*") or action.startswith("s3:Delete")
            # The endpoint's policy grants nothing: it narrows what the collector's own one allows.
            allowed = (module.name, name) in {COLLECTOR, ("modules/network", "s3_endpoint")}
            if (module.name, name) == COMPACTOR:
                allowed = all(one.endswith("/*/tables/*") for one in words(statement.get("resources")))
            if deletes and not (allowed and action == "s3:DeleteObject"):
                yield f"{name} may {action}"


def who_must_delete_may(module: Module) -> Iterator[str]:
    """What needs rights on the bucket has them: the collector and the tables' writer, and the endpoint lets them."""
    if module.name not in (COLLECTOR[0], COMPACTOR[0], "modules/network"):
        return
    allowed = [
        (action, resource)
        for _, statement in module.statements()
        if statement.get("effect", "Allow") != "Deny"
        for action in words(statement.get("actions"))
        for resource in words(statement.get("resources"))
    ]
    for action, end in (("s3:DeleteObject", "/*"), ("s3:ListBucket", "bucket_arn}")):
        if not any(action == one and resource.endswith(end) for one, resource in allowed):
            yield f"{module.name} may not {action}"


# The parts


def the_bucket_is_guarded(module: Module) -> Iterator[str]:
    if not list(module.resources("aws_s3_bucket")):
        return
    for _, name, body in module.resources("aws_s3_bucket"):
        if body.get("force_destroy") is not False or not body.get("lifecycle", [{}])[0].get(
            "prevent_destroy"
        ):
            yield f"bucket {name} may be destroyed"
    blocks = [body for _, _, body in module.resources("aws_s3_bucket_public_access_block")]
    flags = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    if not blocks or not all(body.get(flag) is True for body in blocks for flag in flags):
        yield "public access is not blocked in all four ways"
    if not any(
        statement.get("effect") == "Deny"
        and any(
            c.get("variable") == "aws:SecureTransport" and c.get("values") == ["false"]
            for c in statement.get("condition", [])
        )
        for _, statement in module.statements()
    ):
        yield "the bucket's policy does not deny plain HTTP"
    rules = [
        rule
        for _, _, body in module.resources("aws_s3_bucket_lifecycle_configuration")
        for rule in body.get("rule", [])
        if rule.get("status") == "Enabled"
    ]
    if not any("abort_incomplete_multipart_upload" in rule for rule in rules):
        yield "unfinished multipart uploads are never aborted"
    if any(
        {"days", "date"} & expiration.keys() for rule in rules for expiration in rule.get("expiration", [])
    ):
        yield "a lifecycle rule expires objects that rows name"
    versioned = any(
        body["versioning_configuration"][0].get("status") == "Enabled"
        for _, _, body in module.resources("aws_s3_bucket_versioning")
    )
    if not versioned:
        yield "a deleted object can't be brought back"
    if versioned and not any("noncurrent_version_expiration" in rule for rule in rules):
        yield "deleted objects stay for ever"


def the_database_is_durable(module: Module) -> Iterator[str]:
    needed = {
        "multi_az": True,
        "deletion_protection": True,
        "manage_master_user_password": True,
        "skip_final_snapshot": False,
        "apply_immediately": False,
    }
    for _, name, body in module.resources("aws_db_instance"):
        for key, value in needed.items():
            if body.get(key) is not value:
                yield f"database {name}: {key} is not {value}"
        for key in ("backup_retention_period", "backup_window"):
            if key not in body:
                yield f"database {name} has no {key}"
        if "password" in body:
            yield f"database {name} has a password in Terraform's state"
        parameters = {
            parameter["name"]: parameter["value"]
            for _, _, group in module.resources("aws_db_parameter_group")
            for parameter in group.get("parameter", [])
        }
        if parameters.get("rds.force_ssl") != "1":
            yield f"database {name} accepts connections without TLS"
        if parameters.get("synchronous_commit") != "on":
            yield f"database {name} acknowledges before its log is on disk"


def heartbeat_margin(expression: str) -> int | None:
    """Seconds by which ${var.drain_seconds + N} exceeds the drain time-out; None for any other form."""
    found = re.fullmatch(r"\$\{var\.drain_seconds \+ (\d+)\}", str(expression))
    return int(found.group(1)) if found else None


def only_dead_machines_are_replaced(module: Module) -> Iterator[str]:
    """/readyz decides routing: what makes all servers unready at once, a database's fail-over, must replace none."""
    for _, name, body in module.resources("aws_autoscaling_group"):
        if body.get("health_check_type") != "EC2":
            yield f"group {name} replaces machines that are only not ready"
    for _, name, body in module.resources("aws_lb_target_group"):
        checks = body.get("health_check", [])
        if [check.get("path") for check in checks] != ["/readyz"]:
            yield f"target group {name} does not send by readiness"


def secrets_stay_out_of_the_state(module: Module) -> Iterator[str]:
    for kind, name, body in module.resources():
        if kind == "random_password" or (
            kind == "aws_secretsmanager_secret_version" and "secret_string" in body
        ):
            yield f"{kind}.{name} is written into Terraform's state"
        if kind == "aws_secretsmanager_secret" and "kms_key_id" not in body:
            yield f"{kind}.{name} is not encrypted with a key of ours"


def alarms_tell_somebody(module: Module) -> Iterator[str]:
    """When they begin and when they end, what is wrong in words; and they say what no data means."""
    needed = ("alarm_actions", "ok_actions", "alarm_description", "treat_missing_data")
    for kind, name, body in module.resources("aws_cloudwatch_metric_alarm"):
        yield from (f"{kind}.{name} has no {key}" for key in needed if key not in body)


def scale_in_drains(module: Module) -> Iterator[str]:
    """Where there is a drain_seconds, the group has a hook that waits longer than the drain may take."""
    variables = dict(module.labelled("variable"))
    groups = list(module.resources("aws_autoscaling_group"))
    if "drain_seconds" not in variables or not groups:
        return
    for _, name, body in groups:
        hooks = [
            hook
            for hook in body.get("initial_lifecycle_hook", [])
            if hook.get("lifecycle_transition") == "autoscaling:EC2_INSTANCE_TERMINATING"
        ]
        if not hooks:
            yield f"group {name} has no hook for termination"
        for hook in hooks:
            margin = heartbeat_margin(hook.get("heartbeat_timeout", ""))
            if margin is None or margin < 30:
                yield f"group {name}: the hook gives up before the drain may end"
    for _, name, body in module.resources("aws_lb_target_group"):
        if body.get("deregistration_delay") != "${var.drain_seconds}":
            yield f"target group {name} cuts connections at another time than the drain's"
    if not any(
        "autoscaling:CompleteLifecycleAction" in words(s.get("actions")) for _, s in module.statements()
    ):
        yield "nothing may complete the hook"


RULES: tuple[Rule, ...] = (
    versions_are_pinned,
    variables_are_described,
    variables_are_validated,
    outputs_are_described,
    references_are_declared,
    nothing_is_public,
    everything_is_encrypted,
    instances_require_imdsv2,
    actions_have_no_wildcards,
    policies_are_documents,
    wildcard_resources_say_why,
    only_the_collector_deletes_what_is_not_a_tables,
    who_must_delete_may,
    the_bucket_is_guarded,
    the_database_is_durable,
    only_dead_machines_are_replaced,
    secrets_stay_out_of_the_state,
    alarms_tell_somebody,
    scale_in_drains,
)


def joins(environment: Module, modules: dict[str, Module]) -> Iterator[str]:
    """What is wrong between an environment, the modules that it calls, and those that they call."""
    called: set[str] = set()
    for caller in (environment, *modules.values()):
        yield from _calls(caller, modules, called)
    yield from (f"{name} is not used" for name in sorted(modules.keys() - called))


def _calls(caller: Module, modules: dict[str, Module], called: set[str]) -> Iterator[str]:
    for label, call in caller.labelled("module"):
        name = call["source"].rsplit("/", 1)[-1]
        if f"modules/{name}" not in modules:
            yield f"module {label}: no such source {call['source']}"
            continue
        called.add(f"modules/{name}")
        variables = dict(modules[f"modules/{name}"].labelled("variable"))
        passed = call.keys() - {"source", "depends_on", "providers", "count", "for_each"}
        yield from (
            f"module {label} passes {key}, which is not declared" for key in sorted(passed - variables.keys())
        )
        required = {key for key, variable in variables.items() if "default" not in variable}
        yield from (f"module {label} misses {key}" for key in sorted(required - passed))
    sources = {label: call["source"].rsplit("/", 1)[-1] for label, call in caller.labelled("module")}
    for label, output in re.findall(r"(?<![\w.])module\.(\w+)\.(\w+)", caller.text):
        known = modules.get(f"modules/{sources.get(label)}")
        if known is None or output not in dict(known.labelled("output")):
            yield f"module.{label}.{output} is not an output"
