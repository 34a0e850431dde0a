# The compactor: `tailrace compact`, PySpark on local[*] in a Fargate task, started by EventBridge Scheduler.
# Compaction holds a lease at the sequencer, so a run that starts while another works ends at once. What it replaced
# is garbage, which the sequencer's servers collect; it deletes only the files of Iceberg tables that no snapshot names.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  sequencer_port = tonumber(split(":", var.sequencer.address)[1])
  repository     = split("@", join("/", slice(split("/", var.image), 1, length(split("/", var.image)))))[0]
  account        = data.aws_caller_identity.current.account_id
  partition      = data.aws_partition.current.partition
  region         = data.aws_region.current.region
}

# The job itself: it reads objects and writes others.
module "service" {
  source = "../service"

  name              = "${var.name}-compactor"
  about             = "Compactor of ${var.name}; nothing calls it"
  vpc_id            = var.vpc_id
  s3_prefix_list_id = var.s3_prefix_list_id
  runs_on           = "ecs-tasks"
  source_account    = local.account
  policy            = data.aws_iam_policy_document.job.json

  egress = merge(
    {
      sequencer = { group = var.sequencer.security_group_id, port = local.sequencer_port }
      aws       = { group = var.endpoints_security_group_id, port = 443 }
    },
    { for catalog in var.catalog[*] : "catalog" => { group = catalog.security_group_id, port = catalog.port } if catalog.security_group_id != null },
  )
}

data "aws_iam_policy_document" "key" {
  statement {
    sid = "AccountDelegatesByIam"
    # The key's administration and use, without kms:*, so that what is granted can be read here.
    actions = [
      "kms:CancelKeyDeletion",
      "kms:CreateAlias",
      "kms:Decrypt",
      "kms:DeleteAlias",
      "kms:DescribeKey",
      "kms:DisableKey",
      "kms:EnableKey",
      "kms:EnableKeyRotation",
      "kms:Encrypt",
      "kms:GenerateDataKey",
      "kms:GetKeyPolicy",
      "kms:GetKeyRotationStatus",
      "kms:ListGrants",
      "kms:ListKeyPolicies",
      "kms:ListResourceTags",
      "kms:PutKeyPolicy",
      "kms:RevokeGrant",
      "kms:ScheduleKeyDeletion",
      "kms:TagResource",
      "kms:UntagResource",
      "kms:UpdateAlias",
      "kms:UpdateKeyDescription",
    ]
    # In a key's policy, "*" is this key; KMS allows no other way to say it.
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account}:root"]
    }
  }

  statement {
    sid     = "Logs"
    actions = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"]
    # As above: this key.
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${local.region}.${data.aws_partition.current.dns_suffix}"]
    }

    condition {
      test     = "ArnEquals"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${local.partition}:logs:${local.region}:${local.account}:log-group:/${var.name}/compactor"]
    }
  }
}

resource "aws_kms_key" "this" {
  description             = "Logs of the compactor of ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_cloudwatch_log_group" "this" {
  name              = "/${var.name}/compactor"
  retention_in_days = var.log_retention_days
  kms_key_id        = aws_kms_key.this.arn
}

data "aws_iam_policy_document" "assume_task" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.${data.aws_partition.current.dns_suffix}"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

data "aws_iam_policy_document" "job" {
  statement {
    sid     = "Objects"
    actions = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]
    # Below our prefix: any object may be compacted.
    resources = ["${var.store.bucket_arn}/${var.store.prefix}/*"]
  }

  # Manifests, deletes and typed files that only expired snapshots named. The collector knows nothing of them.
  statement {
    sid     = "FilesOfTables"
    actions = ["s3:DeleteObject"]
    # Below our prefix, a cluster's id, then tables: no object of the log is there.
    resources = ["${var.store.bucket_arn}/${var.store.prefix}/*/tables/*"]
  }

  # A missing key must read as 404, not 403, which a condition on the prefix would undo.
  statement {
    sid       = "TellMissingFromForbidden"
    actions   = ["s3:ListBucket"]
    resources = [var.store.bucket_arn]
  }

  statement {
    sid       = "ObjectKey"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [var.store.kms_key_arn]
  }
}

# What ECS needs to start it: the image, the secret, the log.
resource "aws_iam_role" "execution" {
  name_prefix        = "${var.name}-compact-ecs-"
  assume_role_policy = data.aws_iam_policy_document.assume_task.json
}

data "aws_iam_policy_document" "execution" {
  statement {
    sid     = "ImageLogin"
    actions = ["ecr:GetAuthorizationToken"]
    # A login is to the whole registry; the service knows no resource for it.
    resources = ["*"]
  }

  statement {
    sid       = "Image"
    actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    resources = ["arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${local.repository}"]
  }

  statement {
    sid     = "Logs"
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    # The streams of our group: each run makes one, named by the task's id.
    resources = ["${aws_cloudwatch_log_group.this.arn}:log-stream:*"]
  }

  statement {
    sid       = "RpcSecret"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [var.rpc_secret.arn]
  }

  statement {
    sid       = "RpcSecretKey"
    actions   = ["kms:Decrypt"]
    resources = [var.rpc_secret.kms_key_arn]

    # The key is also that of the database's password, which the compactor must not read.
    condition {
      test     = "StringEquals"
      variable = "kms:EncryptionContext:SecretARN"
      values   = [var.rpc_secret.arn]
    }
  }
}

resource "aws_iam_role_policy" "execution" {
  name_prefix = "${var.name}-compact-ecs-"
  role        = aws_iam_role.execution.id
  policy      = data.aws_iam_policy_document.execution.json
}

resource "aws_ecs_cluster" "this" {
  name = "${var.name}-compactor"

  setting {
    name  = "containerInsights"
    value = "enabled"
  }
}

# Fargate's disks are always encrypted.
resource "aws_ecs_task_definition" "this" {
  family                   = "${var.name}-compactor"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.size.vcpu * 1024
  memory                   = var.size.memory_gib * 1024
  task_role_arn            = module.service.role_arn
  execution_role_arn       = aws_iam_role.execution.arn

  ephemeral_storage {
    size_in_gib = var.size.disk_gib
  }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = "ARM64"
  }

  container_definitions = jsonencode([{
    name       = "compactor"
    image      = var.image
    essential  = true
    user       = "tailrace"
    entryPoint = ["tailrace"]
    command    = ["compact"]

    environment = concat(
      [
        { name = "AWS_REGION", value = local.region },
        { name = "TAILRACE_SEQUENCERS", value = var.sequencer.address },
        { name = "TAILRACE_STORE", value = var.store.url },
      ],
      [for catalog in var.catalog[*] : { name = "TAILRACE_TABLES__CATALOG", value = catalog.url }],
    )

    # ECS puts the secret into the container's environment at start: not into Terraform, not into a log.
    secrets = [{ name = "TAILRACE_RPC_SECRET", valueFrom = var.rpc_secret.arn }]

    linuxParameters = { initProcessEnabled = true }
    stopTimeout     = 120

    logConfiguration = {
      logDriver = "awslogs"
      options = {
        "awslogs-group"         = aws_cloudwatch_log_group.this.name
        "awslogs-region"        = local.region
        "awslogs-stream-prefix" = "run"
      }
    }
  }])
}

# Runs that the scheduler could not start. Empty in good times; an alarm belongs on it.
resource "aws_sqs_queue" "undelivered" {
  name                      = "${var.name}-compactor-undelivered"
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 1209600
}

data "aws_iam_policy_document" "assume_scheduler" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["scheduler.${data.aws_partition.current.dns_suffix}"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

resource "aws_iam_role" "scheduler" {
  name_prefix        = "${var.name}-compact-run-"
  assume_role_policy = data.aws_iam_policy_document.assume_scheduler.json
}

data "aws_iam_policy_document" "scheduler" {
  statement {
    sid       = "Run"
    actions   = ["ecs:RunTask"]
    resources = [aws_ecs_task_definition.this.arn]

    condition {
      test     = "ArnEquals"
      variable = "ecs:cluster"
      values   = [aws_ecs_cluster.this.arn]
    }
  }

  statement {
    sid       = "HandRolesToTheTask"
    actions   = ["iam:PassRole"]
    resources = [module.service.role_arn, aws_iam_role.execution.arn]

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ecs-tasks.${data.aws_partition.current.dns_suffix}"]
    }
  }

  statement {
    sid       = "Undelivered"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.undelivered.arn]
  }
}

resource "aws_iam_role_policy" "scheduler" {
  name_prefix = "${var.name}-compact-run-"
  role        = aws_iam_role.scheduler.id
  policy      = data.aws_iam_policy_document.scheduler.json
}

resource "aws_scheduler_schedule" "this" {
  name                = "${var.name}-compactor"
  description         = "Compaction of ${var.name}"
  schedule_expression = var.schedule

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = aws_ecs_cluster.this.arn
    role_arn = aws_iam_role.scheduler.arn

    ecs_parameters {
      task_definition_arn = aws_ecs_task_definition.this.arn
      launch_type         = "FARGATE"
      task_count          = 1

      network_configuration {
        assign_public_ip = false
        security_groups  = [module.service.security_group_id]
        subnets          = values(var.subnet_ids)
      }
    }

    # A run that could not start is not worth much later: the next one does its work.
    retry_policy {
      maximum_event_age_in_seconds = 900
      maximum_retry_attempts       = 3
    }

    dead_letter_config {
      arn = aws_sqs_queue.undelivered.arn
    }
  }

  depends_on = [module.service, aws_iam_role_policy.execution, aws_iam_role_policy.scheduler]
}
