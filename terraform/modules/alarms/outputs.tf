output "alarm_names" {
  description = "Names of the alarms."
  value       = [for alarm in aws_cloudwatch_metric_alarm.this : alarm.alarm_name]
}
