output "bootstrap_servers" {
  description = "bootstrap.servers for Kafka clients in any zone."
  value       = module.agents.bootstrap_servers
}

output "zonal_bootstrap_servers" {
  description = "bootstrap.servers for Kafka clients by zone, so that not even the first request leaves it."
  value       = module.agents.zonal_bootstrap_servers
}

output "admin_secret_arn" {
  description = "Secret in Secrets Manager with the password of Kafka's super user `admin`; null where nobody logs in."
  value       = module.agents.admin_secret_arn
}

output "agents_security_group_id" {
  description = "Security group that Kafka clients must be allowed to reach at port 9092."
  value       = module.agents.security_group_id
}

output "agents_autoscaling_group_name" {
  description = "Name of the agents' autoscaling group."
  value       = module.agents.autoscaling_group_name
}

output "store_url" {
  description = "Where the objects are, as Tailrace's setting `store` names it."
  value       = module.object_store.store_url
}

output "database_address" {
  description = "Host name of the metadata database."
  value       = module.metadata.address
}

output "compactor_log_group" {
  description = "Where the logs of the compactor's runs are."
  value       = module.compactor.log_group
}

output "compactor_undelivered_queue_url" {
  description = "Queue of compactor runs that could not be started; an alarm belongs on it."
  value       = module.compactor.undelivered_queue_url
}

output "alarm_names" {
  description = "Names of the alarms that wake somebody."
  value       = module.alarms.alarm_names
}
