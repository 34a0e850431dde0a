# Agents: stateless, so an autoscaling group over three zones. Clients find them by a zonal address of an
# internal load balancer and then talk to each agent directly, at the address that it advertises.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  kafka_port = 9092
  http_port  = 9644
  peer_port  = 9646

  group_name       = "${var.name}-agents"
  drain_hook       = "drain"
  metric_namespace = "Tailrace/${var.name}"

  # Made here where clients log in: the password of the super user `admin`, and what delegation tokens are made from.
  login_secrets = toset(var.kafka_tls_secret == null ? [] : ["admin", "tokens"])
  secret_arns = concat(
    [var.rpc_secret.arn],
    try([var.kafka_tls_secret.arn], []),
    [for secret in aws_secretsmanager_secret.login : secret.arn],
  )

  files = {
    "/etc/tailrace/node.env" = {
      mode = "0644"
      content = join("", [for key, value in {
        AWS_REGION        = data.aws_region.current.region
        STORE_URL         = var.store.url
        SEQUENCER_ADDRESS = var.sequencer.address
        RPC_SECRET        = var.rpc_secret.arn
        KAFKA_TLS_SECRET  = try(var.kafka_tls_secret.arn, "")
        ADMIN_SECRET      = try(aws_secretsmanager_secret.login["admin"].arn, "")
        TOKENS_SECRET     = try(aws_secretsmanager_secret.login["tokens"].arn, "")
        AUTOSCALING_GROUP = local.group_name
        DRAIN_HOOK        = local.drain_hook
        METRIC_NAMESPACE  = local.metric_namespace
        TRAFFIC_COUNTERS  = join(",", var.traffic_counters)
      } : "${key}=${value}\n"])
    }
    "/usr/local/lib/tailrace/write_config.sh" = {
      mode    = "0755"
      content = file("${path.module}/files/write_config.sh")
    }
    "/usr/local/lib/tailrace/drain.sh" = {
      mode    = "0755"
      content = file("${path.module}/files/drain.sh")
    }
    "/usr/local/lib/tailrace/publish_traffic.py" = {
      mode    = "0755"
      content = file("${path.module}/files/publish_traffic.py")
    }
    "/etc/systemd/system/tailrace-agent.service" = {
      mode = "0644"
      content = templatefile("${path.module}/files/tailrace-agent.service.tftpl", {
        drain_seconds = var.drain_seconds
      })
    }
    "/etc/systemd/system/tailrace-drain.service" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-drain.service")
    }
    "/etc/systemd/system/tailrace-traffic.service" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-traffic.service")
    }
    "/etc/systemd/system/tailrace-traffic.timer" = {
      mode    = "0644"
      content = file("${path.module}/files/tailrace-traffic.timer")
    }
  }
}

module "service" {
  source = "../service"

  name              = "${var.name}-agents"
  about             = "Agents of ${var.name}"
  vpc_id            = var.vpc_id
  s3_prefix_list_id = var.s3_prefix_list_id
  peer_ports        = { cache = local.peer_port }
  balancer_ports    = { kafka = local.kafka_port, health = local.http_port }
  runs_on           = "ec2"
  policy            = data.aws_iam_policy_document.this.json

  egress = {
    sequencer = { group = var.sequencer.security_group_id, port = tonumber(split(":", var.sequencer.address)[1]) }
    aws       = { group = var.endpoints_security_group_id, port = 443 }
  }

  instances = {
    process         = "agent"
    ami_id          = var.ami_id
    type            = var.instance_type
    root_volume_gib = var.root_volume_gib
    files           = local.files
    units           = ["tailrace-agent.service", "tailrace-drain.service", "tailrace-traffic.timer"]
    # For CPU: measured every five minutes, scaling comes too late.
    is_measured_each_minute = true
  }
}

# Clients reach the load balancer (to find the agents) and the agents (from then on).
resource "aws_vpc_security_group_ingress_rule" "kafka_from_groups" {
  for_each = {
    for pair in setproduct(["agent", "balancer"], keys(var.kafka_client_security_group_ids)) :
    "${pair[0]}-${pair[1]}" => { side = pair[0], client = pair[1] }
  }

  security_group_id            = each.value.side == "agent" ? module.service.security_group_id : module.service.balancer_security_group_id
  description                  = "Kafka from ${each.value.client}"
  referenced_security_group_id = var.kafka_client_security_group_ids[each.value.client]
  ip_protocol                  = "tcp"
  from_port                    = local.kafka_port
  to_port                      = local.kafka_port
}

resource "aws_vpc_security_group_ingress_rule" "kafka_from_ranges" {
  for_each = {
    for pair in setproduct(["agent", "balancer"], var.kafka_client_cidrs) :
    "${pair[0]}-${pair[1]}" => { side = pair[0], range = pair[1] }
  }

  security_group_id = each.value.side == "agent" ? module.service.security_group_id : module.service.balancer_security_group_id
  description       = "Kafka from ${each.value.range}"
  cidr_ipv4         = each.value.range
  ip_protocol       = "tcp"
  from_port         = local.kafka_port
  to_port           = local.kafka_port
}

# Neither in the plan nor in Terraform's state, as the RPC secret.
ephemeral "aws_secretsmanager_random_password" "login" {
  for_each = local.login_secrets

  password_length     = 43
  exclude_punctuation = true
}

resource "aws_secretsmanager_secret" "login" {
  for_each = local.login_secrets

  name_prefix = "${var.name}-${each.key}-"
  description = "Secret of ${var.name}'s Kafka clients: ${each.key}"
  kms_key_id  = var.rpc_secret.kms_key_arn
}

resource "aws_secretsmanager_secret_version" "login" {
  for_each = local.login_secrets

  secret_id                = aws_secretsmanager_secret.login[each.key].id
  secret_string_wo         = ephemeral.aws_secretsmanager_random_password.login[each.key].random_password
  secret_string_wo_version = 1
}

data "aws_iam_policy_document" "this" {
  # Agents write objects and read them. Only the collector deletes.
  statement {
    sid     = "Objects"
    actions = ["s3:GetObject", "s3:PutObject"]
    # Below our prefix: keys are hashes and upload sessions that only the agent knows.
    resources = ["${var.store.bucket_arn}/${var.store.prefix}/*"]
  }

  # Without it S3 answers 403 instead of 404 for a key that doesn't exist, and an agent could not tell a
  # collected object (plan again) from lost rights (an error). A condition on the prefix would not hold for
  # that: a GET carries none.
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

  statement {
    sid       = "Secrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = local.secret_arns
  }

  statement {
    sid       = "SecretsKeys"
    actions   = ["kms:Decrypt"]
    resources = distinct(concat([var.rpc_secret.kms_key_arn], try([var.kafka_tls_secret.kms_key_arn], [])))

    # The key is also that of the database's password, which agents must not read.
    condition {
      test     = "StringEquals"
      variable = "kms:EncryptionContext:SecretARN"
      values   = local.secret_arns
    }
  }

  statement {
    sid     = "CompleteDrain"
    actions = ["autoscaling:CompleteLifecycleAction"]
    # The group's id stands in its ARN and is not known before the group, which needs this role.
    resources = ["arn:${data.aws_partition.current.partition}:autoscaling:${data.aws_region.current.region}:${data.aws_caller_identity.current.account_id}:autoScalingGroup:*:autoScalingGroupName/${local.group_name}"]
  }

  statement {
    sid     = "Traffic"
    actions = ["cloudwatch:PutMetricData"]
    # PutMetricData knows no resources; the condition below holds it to our namespace.
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = [local.metric_namespace]
    }
  }
}

# One address a zone, and none crosses to another: a client that bootstraps in its zone stays there.
resource "aws_lb" "this" {
  name                             = "${var.name}-kafka"
  load_balancer_type               = "network"
  internal                         = true
  security_groups                  = [module.service.balancer_security_group_id]
  subnets                          = values(var.subnet_ids)
  enable_deletion_protection       = true
  enable_cross_zone_load_balancing = false
  dns_record_client_routing_policy = "availability_zone_affinity"
}

resource "aws_lb_target_group" "this" {
  name                 = "${var.name}-kafka"
  vpc_id               = var.vpc_id
  target_type          = "instance"
  protocol             = "TCP"
  port                 = local.kafka_port
  deregistration_delay = var.drain_seconds

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
  port              = local.kafka_port

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}

resource "aws_autoscaling_group" "this" {
  name                = local.group_name
  vpc_zone_identifier = values(var.subnet_ids)
  target_group_arns   = [aws_lb_target_group.this.arn]
  # The machine's own health. Not the load balancer's (/readyz): that says where to send requests, and a database
  # that fails over makes all of them unready at once, which no new machine mends. systemd starts a dead process anew.
  health_check_type         = "EC2"
  health_check_grace_period = 120
  default_instance_warmup   = 120
  min_size                  = var.min_agents
  max_size                  = var.max_agents
  metrics_granularity       = "1Minute"
  enabled_metrics           = ["GroupDesiredCapacity", "GroupInServiceInstances", "GroupTerminatingInstances"]

  # A spot instance that EC2 is likely to take back is replaced before it is.
  capacity_rebalance = var.spot_percent > 0

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = var.min_agents
      on_demand_percentage_above_base_capacity = 100 - var.spot_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = module.service.launch_template.id
        version            = module.service.launch_template.version
      }

      dynamic "override" {
        for_each = concat([var.instance_type], var.spot_instance_types)

        content {
          instance_type = override.value
        }
      }
    }
  }

  # files/drain.sh stops the agent and completes this; the margin is for noticing (its poll) and the calls.
  # Where an instance dies before that, it goes all the same.
  initial_lifecycle_hook {
    name                 = local.drain_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = var.drain_seconds + 60
    default_result       = "CONTINUE"
  }

  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 134
    }
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }

  depends_on = [module.service, aws_secretsmanager_secret_version.login]
}

resource "aws_autoscaling_policy" "cpu" {
  name                   = "${var.name}-cpu"
  autoscaling_group_name = aws_autoscaling_group.this.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = var.target_cpu_percent

    predefined_metric_specification {
      predefined_metric_type = "ASGAverageCPUUtilization"
    }
  }
}

# CPU alone misses agents that are bound by the network: cached fetches cost little CPU per byte.
resource "aws_autoscaling_policy" "traffic" {
  name                   = "${var.name}-traffic"
  autoscaling_group_name = aws_autoscaling_group.this.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = var.target_mib_per_second

    customized_metric_specification {
      namespace   = local.metric_namespace
      metric_name = "TrafficMiBPerSecond"
      statistic   = "Average"

      metric_dimension {
        name  = "AutoScalingGroupName"
        value = local.group_name
      }
    }
  }
}
