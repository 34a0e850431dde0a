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
    "/etc/systemd/system/tailrace-alive.service" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-alive.service")
    }
    "/etc/systemd/system/tailrace-alive.timer" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-alive.timer")
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

  # Compressed: EC2 takes 16 KiB of user data, and cloud-init unpacks it.
  user_data = base64gzip(join("\n", ["#cloud-config", yamlencode({
    write_files = [for path, file in local.files : {
      path        = path
      permissions = file.mode
      encoding    = "b64"
      content     = base64encode(file.content)
    }]
    runcmd = [
      ["systemctl", "daemon-reload"],
      ["systemctl", "enable", "--now", "tailrace-sequencer.service", "tailrace-refresh.timer", "tailrace-alive.timer"],
    ]
  })]))
}

resource "aws_security_group" "server" {
  name_prefix = "${var.name}-sequencer-"
  description = "Sequencer servers of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-sequencer" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "balancer" {
  name_prefix = "${var.name}-sequencer-nlb-"
  description = "Load balancer before the sequencer servers of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-sequencer-nlb" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "balancer_from_clients" {
  for_each = var.client_security_group_ids

  security_group_id            = aws_security_group.balancer.id
  description                  = "RPC from the ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.rpc_port
  to_port                      = local.rpc_port
}

resource "aws_vpc_security_group_egress_rule" "balancer_to_servers" {
  for_each = { rpc = local.rpc_port, health = local.http_port }

  security_group_id            = aws_security_group.balancer.id
  description                  = "To the servers: ${each.key}"
  referenced_security_group_id = aws_security_group.server.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_ingress_rule" "server_from_balancer" {
  for_each = { rpc = local.rpc_port, health = local.http_port }

  security_group_id            = aws_security_group.server.id
  description                  = "From the load balancer: ${each.key}"
  referenced_security_group_id = aws_security_group.balancer.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

# Servers that aren't the committer forward to it.
resource "aws_vpc_security_group_ingress_rule" "server_from_server" {
  security_group_id            = aws_security_group.server.id
  description                  = "RPC among the servers"
  referenced_security_group_id = aws_security_group.server.id
  ip_protocol                  = "tcp"
  from_port                    = local.rpc_port
  to_port                      = local.rpc_port
}

resource "aws_vpc_security_group_egress_rule" "server_to_groups" {
  for_each = {
    server   = { group = aws_security_group.server.id, port = local.rpc_port }
    database = { group = var.database.security_group_id, port = var.database.port }
    aws      = { group = var.endpoints_security_group_id, port = 443 }
  }

  security_group_id            = aws_security_group.server.id
  description                  = "To ${each.key}"
  referenced_security_group_id = each.value.group
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "server_to_s3" {
  security_group_id = aws_security_group.server.id
  description       = "To S3 by the gateway endpoint"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
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

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.${data.aws_partition.current.dns_suffix}"]
    }
  }
}

resource "aws_iam_role" "this" {
  name_prefix        = "${var.name}-sequencer-"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

data "aws_iam_policy_document" "this" {
  # The committer writes checkpoints, and is the garbage collector: it alone may delete.
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

resource "aws_iam_role_policy" "this" {
  name_prefix = "${var.name}-sequencer-"
  role        = aws_iam_role.this.id
  policy      = data.aws_iam_policy_document.this.json
}

resource "aws_iam_instance_profile" "this" {
  name_prefix = "${var.name}-sequencer-"
  role        = aws_iam_role.this.name
}

resource "aws_launch_template" "this" {
  name_prefix            = "${var.name}-sequencer-"
  image_id               = var.ami_id
  instance_type          = var.instance_type
  update_default_version = true
  user_data              = local.user_data

  iam_instance_profile {
    arn = aws_iam_instance_profile.this.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [aws_security_group.server.id]
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.root_volume_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "${var.name}-sequencer" }
  }
}

resource "aws_lb" "this" {
  name                             = "${var.name}-seq"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = values(var.subnet_ids)
  security_groups                  = [aws_security_group.balancer.id]
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
    id      = aws_launch_template.this.id
    version = aws_launch_template.this.latest_version
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

  depends_on = [aws_iam_role_policy.this, aws_secretsmanager_secret_version.rpc]
}
