output "address" {
  description = "Host name of the database; after a fail-over it points to the other zone."
  value       = aws_db_instance.this.address
}

output "port" {
  description = "Port of the database."
  value       = aws_db_instance.this.port
}

output "database" {
  description = "Name of the database."
  value       = aws_db_instance.this.db_name
}

output "secret_arn" {
  description = "ARN of the secret that holds user name and password; not the password."
  value       = aws_db_instance.this.master_user_secret[0].secret_arn
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts the database and its secret."
  value       = aws_kms_key.this.arn
}

output "security_group_id" {
  description = "Security group of the database, for outgoing rules."
  value       = aws_security_group.this.id
}

output "identifier" {
  description = "Identifier of the database instance, as CloudWatch names it."
  value       = aws_db_instance.this.identifier
}
