output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.bucket
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "prefix" {
  description = "Prefix of every key, without slashes at the ends."
  value       = var.prefix
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts the objects."
  value       = aws_kms_key.this.arn
}

output "store_url" {
  description = "The store as Tailrace's setting `store` names it."
  value       = "s3://${aws_s3_bucket.this.bucket}/${var.prefix}"
}
