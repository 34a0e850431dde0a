output "bootstrap_servers" {
  description = "Address for Kafka clients in any zone; with Route 53 it resolves to the caller's own zone first."
  value       = "${aws_lb.this.dns_name}:${local.kafka_port}"
}

output "zonal_bootstrap_servers" {
  description = "Addresses for Kafka clients by zone: those of the load balancer in one zone only."
  value       = { for zone in keys(var.subnet_ids) : zone => "${zone}.${aws_lb.this.dns_name}:${local.kafka_port}" }
}

output "admin_secret_arn" {
  description = "Secret with the password of the super user `admin`; null where nobody logs in."
  value       = try(aws_secretsmanager_secret.login["admin"].arn, null)
}

output "security_group_id" {
  description = "Security group of the agents, which the sequencer lets in."
  value       = module.service.security_group_id
}

output "autoscaling_group_name" {
  description = "Name of the autoscaling group."
  value       = aws_autoscaling_group.this.name
}

output "measured" {
  description = "The agents' load balancer and its target group, as CloudWatch names them."
  value = {
    balancer_arn_suffix     = aws_lb.this.arn_suffix
    target_group_arn_suffix = aws_lb_target_group.this.arn_suffix
  }
}
