# What every service of a cluster has: a security group with what it may reach, and a role with what it may do. One that
# runs on instances of its own also has their launch template, and rules for the load balancer before it.

data "aws_partition" "current" {}

locals {
  files = var.instances == null ? {} : merge(var.instances.files, {
    "/etc/systemd/system/tailrace-alive.service" = {
      mode = "0644"
      content = templatefile("${path.module}/files/tailrace-alive.service.tftpl", {
        process = var.instances.process
      })
    }
    "/etc/systemd/system/tailrace-alive.timer" = {
      mode = "0644"
      content = templatefile("${path.module}/files/tailrace-alive.timer.tftpl", {
        process = var.instances.process
      })
    }
  })

  # Compressed: EC2 takes 16 KiB of user data, and cloud-init unpacks it.
  user_data = var.instances == null ? null : base64gzip(join("\n", ["#cloud-config", yamlencode({
    write_files = [for path, file in local.files : {
      path        = path
      permissions = file.mode
      encoding    = "b64"
      content     = base64encode(file.content)
    }]
    runcmd = [
      ["systemctl", "daemon-reload"],
      concat(["systemctl", "enable", "--now"], var.instances.units, ["tailrace-alive.timer"]),
    ]
  })]))
}

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-"
  description = var.about
  vpc_id      = var.vpc_id

  tags = { Name = var.name }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "to_groups" {
  for_each = var.egress

  security_group_id            = aws_security_group.this.id
  description                  = "To ${each.key}"
  referenced_security_group_id = each.value.group
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "to_s3" {
  security_group_id = aws_security_group.this.id
  description       = "To S3 by the gateway endpoint"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "to_peers" {
  for_each = var.peer_ports

  security_group_id            = aws_security_group.this.id
  description                  = "To its peers: ${each.key}"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_ingress_rule" "from_peers" {
  for_each = var.peer_ports

  security_group_id            = aws_security_group.this.id
  description                  = "From its peers: ${each.key}"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_security_group" "balancer" {
  count = length(var.balancer_ports) == 0 ? 0 : 1

  name_prefix = "${var.name}-nlb-"
  description = "Load balancer of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-nlb" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "from_balancer" {
  for_each = var.balancer_ports

  security_group_id            = aws_security_group.balancer[0].id
  description                  = "To ${var.name}: ${each.key}"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_ingress_rule" "from_balancer" {
  for_each = var.balancer_ports

  security_group_id            = aws_security_group.this.id
  description                  = "From the load balancer: ${each.key}"
  referenced_security_group_id = aws_security_group.balancer[0].id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${var.runs_on}.${data.aws_partition.current.dns_suffix}"]
    }

    dynamic "condition" {
      for_each = var.source_account == null ? [] : [var.source_account]

      content {
        test     = "StringEquals"
        variable = "aws:SourceAccount"
        values   = [condition.value]
      }
    }
  }
}

resource "aws_iam_role" "this" {
  name_prefix        = "${var.name}-"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "this" {
  name_prefix = "${var.name}-"
  role        = aws_iam_role.this.id
  policy      = var.policy
}

resource "aws_iam_instance_profile" "this" {
  count = var.instances == null ? 0 : 1

  name_prefix = "${var.name}-"
  role        = aws_iam_role.this.name
}

resource "aws_launch_template" "this" {
  count = var.instances == null ? 0 : 1

  name_prefix            = "${var.name}-"
  image_id               = var.instances.ami_id
  instance_type          = var.instances.type
  update_default_version = true
  user_data              = local.user_data

  iam_instance_profile {
    arn = aws_iam_instance_profile.this[0].arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = var.instances.is_measured_each_minute
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [aws_security_group.this.id]
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.instances.root_volume_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = var.name }
  }
}
