output "security_group_id" {
  description = "Security group of the compactor, which the sequencer lets in."
  value       = module.service.security_group_id
}

output "log_group" {
  description = "Where the runs' logs are."
  value       = aws_cloudwatch_log_group.this.name
}

output "undelivered_queue_url" {
  description = "Queue of the runs that could not be started; an alarm belongs on it."
  value       = aws_sqs_queue.undelivered.url
}
