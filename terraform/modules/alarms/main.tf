# The alarms that wake somebody: few, and each means that records are not taken, or soon won't be. What they look at,
# AWS measures by itself, so that they also fire where no process of Tailrace's lives to say anything.

resource "aws_s3_bucket_metric" "this" {
  bucket = var.bucket
  name   = "everything"
}

locals {
  minute = 60

  alarms = {
    no-committer = {
      about      = "No sequencer server is ready: there is no committer, or its database is away. Nothing is committed."
      namespace  = "AWS/NetworkELB"
      metric     = "HealthyHostCount"
      dimensions = { LoadBalancer = var.sequencer.balancer_arn_suffix, TargetGroup = var.sequencer.target_group_arn_suffix }
      statistic  = "Maximum"
      comparison = "LessThanThreshold"
      threshold  = 1
      minutes    = 3
      # No server, no data.
      missing = "breaching"
    }
    unready-agents = {
      about      = "Agents that the load balancer knows are not ready: clients have fewer, or none."
      namespace  = "AWS/NetworkELB"
      metric     = "UnHealthyHostCount"
      dimensions = { LoadBalancer = var.agents.balancer_arn_suffix, TargetGroup = var.agents.target_group_arn_suffix }
      statistic  = "Maximum"
      comparison = "GreaterThanThreshold"
      threshold  = 0
      minutes    = 5
      missing    = "notBreaching"
    }
    database-time = {
      about      = "The database's disk takes long for a write: commits do, too, and a committer that waits too long steps down."
      namespace  = "AWS/RDS"
      metric     = "WriteLatency"
      dimensions = { DBInstanceIdentifier = var.database_identifier }
      statistic  = "Average"
      comparison = "GreaterThanThreshold"
      threshold  = var.database_write_seconds
      minutes    = 5
      missing    = "missing"
    }
    database-disk = {
      about      = "The database's disk is nearly full, though it grows by itself up to max_storage_gib. A full one takes no commit."
      namespace  = "AWS/RDS"
      metric     = "FreeStorageSpace"
      dimensions = { DBInstanceIdentifier = var.database_identifier }
      statistic  = "Minimum"
      comparison = "LessThanThreshold"
      threshold  = var.database_free_gib * 1024 * 1024 * 1024
      minutes    = 5
      missing    = "missing"
    }
    storage-5xx = {
      about      = "S3 fails requests: flushes and reads are tried again, and time out if it lasts."
      namespace  = "AWS/S3"
      metric     = "5xxErrors"
      dimensions = { BucketName = var.bucket, FilterId = aws_s3_bucket_metric.this.name }
      statistic  = "Average"
      comparison = "GreaterThanThreshold"
      threshold  = var.storage_failed_percent / 100
      minutes    = 5
      missing    = "notBreaching"
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.about
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  period              = local.minute
  evaluation_periods  = each.value.minutes
  treat_missing_data  = each.value.missing
  alarm_actions       = var.topic_arns
  ok_actions          = var.topic_arns
}
