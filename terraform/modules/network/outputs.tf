output "vpc_id" {
  description = "Id of the VPC."
  value       = aws_vpc.this.id
}

output "private_subnet_ids" {
  description = "Ids of the private subnets, by zone."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }
}

output "s3_prefix_list_id" {
  description = "Prefix list of S3 behind the gateway endpoint, for outgoing rules."
  value       = aws_vpc_endpoint.s3.prefix_list_id
}

output "endpoints_security_group_id" {
  description = "Security group of the interface endpoints, for outgoing rules."
  value       = aws_security_group.endpoints.id
}
