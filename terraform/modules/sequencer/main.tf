# Sequencer servers: an autoscaling group of two or three over three zones behind an internal load balancer
# that only agents and the compactor may call. One server commits by lease in PostgreSQL, the others forward.

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  rpc_port  = 9645
  http_port = 9644

  files = {
    "/etc/tailrace/node.env" = {
      mode = "0644"
      content = join("", [for key, value in {
        AWS_REGION      = data.aws_region.current.region
        STORE_URL       = var.store.url
        DATABASE_HOST   = var.database.address
        DATABASE_PORT   = var.database.port
        DATABASE_NAME   = var.database.name
        DATABASE_SECRET = var.database.secret_arn
        RPC_SECRET      = aws_secretsmanager_secret.rpc.arn
      } : "${key}=${value}\n"])
    }
    "/usr/local/lib/tailrace/write_config.sh" = {
      mode    = "0755"
      content = file("${path.module}/files/write_config.sh")
    }
    "/etc/systemd/system/tailrace-sequencer.service" = {
      mode = "0644"
      content = templatefile("${path.module}/files/tailrace-sequencer.service.tftpl", {
        stop_seconds = var.stop_seconds
      })
    }
    "/etc/systemd/system/tailrace-refresh.service" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-refresh.service")
    }
    "/etc/systemd/system/tailrace-refresh.timer" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-refresh.timer")
    }
  }
}

module "service" {
  source = "../service"

  name              = "${var.name}-sequencer"
  about             = "Sequencer servers of ${var.name}"
  vpc_id            = var.vpc_id
  s3_prefix_list_id = var.s3_prefix_list_id
  # Servers that aren't the committer forward to it.
  peer_ports     = { rpc = local.rpc_port }
  balancer_ports = { rpc = local.rpc_port, health = local.http_port }
  runs_on        = "ec2"
  policy         = data.aws_iam_policy_document.this.json

  egress = {
    database = { group = var.database.security_group_id, port = var.database.port }
    aws      = { group = var.endpoints_security_group_id, port = 443 }
  }

  instances = {
    process                 = "sequencer"
    ami_id                  = var.ami_id
    type                    = var.instance_type
    root_volume_gib         = var.root_volume_gib
    files                   = local.files
    units                   = ["tailrace-sequencer.service", "tailrace-refresh.timer"]
    is_measured_each_minute = false
  }
}

resource "aws_vpc_security_group_ingress_rule" "balancer_from_clients" {
  for_each = var.client_security_group_ids

  security_group_id            = module.service.balancer_security_group_id
  description                  = "RPC from the ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.rpc_port
  to_port                      = local.rpc_port
}

# What agents, servers and the compactor show each other: without it, whoever reaches RPC could read and delete
# everything. It is made at the first apply and is neither in the plan nor in Terraform's state; a new one needs a
# higher version below and a restart of all.
ephemeral "aws_secretsmanager_random_password" "rpc" {
  password_length     = 43
  exclude_punctuation = true
}

resource "aws_secretsmanager_secret" "rpc" {
  name_prefix = "${var.name}-rpc-"
  description = "RPC secret of ${var.name}"
  kms_key_id  = var.database.kms_key_arn
}

resource "aws_secretsmanager_secret_version" "rpc" {
  secret_id                = aws_secretsmanager_secret.rpc.id
  secret_string_wo         = ephemeral.aws_secretsmanager_random_password.rpc.random_password
  secret_string_wo_version = 1
}

data "aws_iam_policy_document" "this" {
  # The committer writes checkpoints, and is the garbage collector: it alone may delete objects of the log.
  statement {
    sid     = "CheckpointsAndGarbage"
    actions = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    # Below our prefix: any object may become garbage. Not s3:DeleteObjectVersion: what is deleted can be
    # brought back for some days.
    resources = ["${var.store.bucket_arn}/${var.store.prefix}/*"]
  }

  # The collector lists the prefixes of dead sessions; and a missing key must read as 404, not 403, which a
  # condition on the prefix would undo.
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [var.store.bucket_arn]
  }

  statement {
    sid       = "ObjectKey"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [var.store.kms_key_arn]
  }

  statement {
    sid       = "DatabasePasswordAndRpcSecret"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [var.database.secret_arn, aws_secretsmanager_secret.rpc.arn]
  }

  statement {
    sid       = "SecretsKey"
    actions   = ["kms:Decrypt"]
    resources = [var.database.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["secretsmanager.${data.aws_region.current.region}.${data.aws_partition.current.dns_suffix}"]
    }
  }
}

resource "aws_lb" "this" {
  name                             = "${var.name}-seq"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = values(var.subnet_ids)
  security_groups                  = [module.service.balancer_security_group_id]
  enable_deletion_protection       = true
  enable_cross_zone_load_balancing = true # two servers leave a zone without one
}

resource "aws_lb_target_group" "this" {
  name                 = "${var.name}-seq"
  vpc_id               = var.vpc_id
  target_type          = "instance"
  protocol             = "TCP"
  port                 = local.rpc_port
  deregistration_delay = var.stop_seconds
  # Agents keep their connections; one to a server that is gone must break at once, not hang.
  connection_termination = true

  health_check {
    protocol            = "HTTP"
    port                = local.http_port
    path                = "/readyz"
    matcher             = "200"
    interval            = 5
    timeout             = 3
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "this" {
  load_balancer_arn = aws_lb.this.arn
  protocol          = "TCP"
  port              = local.rpc_port

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}

resource "aws_autoscaling_group" "this" {
  name                = "${var.name}-sequencer"
  vpc_zone_identifier = values(var.subnet_ids)
  target_group_arns   = [aws_lb_target_group.this.arn]
  # The machine's own health. Not the load balancer's (/readyz): that says where to send requests, and a database
  # that fails over makes all of them unready at once, which no new machine mends. systemd starts a dead process anew.
  health_check_type         = "EC2"
  health_check_grace_period = 120
  min_size                  = 2
  max_size                  = 3
  desired_capacity          = var.servers

  launch_template {
    id      = module.service.launch_template.id
    version = module.service.launch_template.version
  }

  # One server at a time, so that one is always there to take the lease.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 150
    }
  }

  tag {
    key                 = "Name"
    value               = "${var.name}-sequencer"
    propagate_at_launch = false
  }

  depends_on = [module.service, aws_secretsmanager_secret_version.rpc]
}
