output "security_group_id" {
  description = "Security group of the service."
  value       = aws_security_group.this.id
}

output "balancer_security_group_id" {
  description = "Security group of the load balancer before the service; null without one."
  value       = one(aws_security_group.balancer[*].id)
}

output "role_arn" {
  description = "Role of the service's processes."
  value       = aws_iam_role.this.arn
}

output "launch_template" {
  description = "Id and newest version of the instances' launch template; null without instances."
  value       = var.instances == null ? null : { id = aws_launch_template.this[0].id, version = aws_launch_template.this[0].latest_version }
}
