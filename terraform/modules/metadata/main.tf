# PostgreSQL for the sequencer. Tailrace's promise (an acknowledged record stays readable) holds while this
# database survives: so Multi-AZ with a synchronous standby, never an asynchronous replica as the fail-over.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_iam_policy_document" "key" {
  statement {
    sid = "AccountDelegatesByIam"
    # The key's administration and use, without kms:*, so that what is granted can be read here.
    actions = [
      "kms:CancelKeyDeletion",
      "kms:CreateAlias",
      "kms:CreateGrant",
      "kms:Decrypt",
      "kms:DeleteAlias",
      "kms:DescribeKey",
      "kms:DisableKey",
      "kms:EnableKey",
      "kms:EnableKeyRotation",
      "kms:Encrypt",
      "kms:GenerateDataKey",
      "kms:GenerateDataKeyWithoutPlaintext",
      "kms:GetKeyPolicy",
      "kms:GetKeyRotationStatus",
      "kms:ListGrants",
      "kms:ListKeyPolicies",
      "kms:ListResourceTags",
      "kms:PutKeyPolicy",
      "kms:ReEncryptFrom",
      "kms:ReEncryptTo",
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
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }
}

resource "aws_kms_key" "this" {
  description             = "Database of ${var.name}, its backups and its password"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}-metadata"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_db_subnet_group" "this" {
  name_prefix = "${var.name}-"
  description = "Private subnets of ${var.name}"
  subnet_ids  = values(var.subnet_ids)
}

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-metadata-"
  description = "PostgreSQL of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-metadata" }

  lifecycle {
    create_before_destroy = true
  }
}

# No outgoing rule: the database starts no connection.
resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = var.client_security_group_ids

  security_group_id            = aws_security_group.this.id
  description                  = "PostgreSQL from the ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 5432
  to_port                      = 5432
}

resource "aws_db_parameter_group" "this" {
  name_prefix = "${var.name}-"
  description = "PostgreSQL ${var.engine_version} for ${var.name}"
  family      = "postgres${var.engine_version}"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }

  # Off would acknowledge records whose offsets are not on disk yet.
  parameter {
    name  = "synchronous_commit"
    value = "on"
  }

  # A session that hangs inside a transaction would hold the committer's locks for ever.
  parameter {
    name  = "idle_in_transaction_session_timeout"
    value = "30000"
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_db_instance" "this" {
  identifier = "${var.name}-metadata"

  engine                      = "postgres"
  engine_version              = var.engine_version
  auto_minor_version_upgrade  = true
  allow_major_version_upgrade = false
  instance_class              = var.instance_class
  parameter_group_name        = aws_db_parameter_group.this.name

  multi_az               = true
  db_subnet_group_name   = aws_db_subnet_group.this.name
  vpc_security_group_ids = [aws_security_group.this.id]
  publicly_accessible    = false
  port                   = 5432

  storage_type          = "gp3"
  allocated_storage     = var.storage_gib
  max_allocated_storage = var.max_storage_gib
  storage_encrypted     = true
  kms_key_id            = aws_kms_key.this.arn

  db_name  = "tailrace"
  username = "tailrace"
  # RDS makes, keeps and rotates the password in Secrets Manager; it is never in Terraform's state.
  manage_master_user_password   = true
  master_user_secret_kms_key_id = aws_kms_key.this.key_id
  ca_cert_identifier            = "rds-ca-rsa2048-g1"

  backup_retention_period   = var.backup_retention_days
  backup_window             = var.backup_window
  maintenance_window        = var.maintenance_window
  copy_tags_to_snapshot     = true
  delete_automated_backups  = false
  skip_final_snapshot       = false
  final_snapshot_identifier = "${var.name}-metadata-final"
  deletion_protection       = true
  apply_immediately         = false

  performance_insights_enabled    = true
  performance_insights_kms_key_id = aws_kms_key.this.arn
  enabled_cloudwatch_logs_exports = ["postgresql", "upgrade"]

  lifecycle {
    prevent_destroy = true
  }
}
