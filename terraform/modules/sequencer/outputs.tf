output "address" {
  description = "Where agents and the compactor reach the sequencer, as host:port."
  value       = "${aws_lb.this.dns_name}:${local.rpc_port}"
}

output "balancer_security_group_id" {
  description = "Security group of the sequencer's load balancer, for outgoing rules."
  value       = module.service.balancer_security_group_id
}

output "security_group_id" {
  description = "Security group of the servers, which the database lets in."
  value       = module.service.security_group_id
}

output "rpc_secret" {
  description = "The secret that all processes of the cluster share: its ARN in Secrets Manager and that of its key."
  value = {
    arn         = aws_secretsmanager_secret.rpc.arn
    kms_key_arn = var.database.kms_key_arn
  }
}

output "measured" {
  description = "The sequencer's load balancer and its target group, as CloudWatch names them."
  value = {
    balancer_arn_suffix     = aws_lb.this.arn_suffix
    target_group_arn_suffix = aws_lb_target_group.this.arn_suffix
  }
}
