# An example of what environments/production needs. Copy, change, and keep your copy with your state, not here:
#   terraform -chdir=terraform/environments/production plan -var-file=../example/production.tfvars

region     = "eu-central-1"
account_id = "123456789012"
name       = "tailrace-production"

cidr  = "10.40.0.0/16"
zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]

bucket = "example-tailrace-production"

ami_id          = "ami-0123456789abcdef0"
compactor_image = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/tailrace@sha256:0000000000000000000000000000000000000000000000000000000000000000"

min_agents    = 3
max_agents    = 12
drain_seconds = 120

kafka_client_cidrs = ["10.0.0.0/12"]

compactor_schedule = "rate(30 minutes)"
compactor_size = {
  vcpu       = 4
  memory_gib = 16
  disk_gib   = 50
}

alarm_topic_arns = ["arn:aws:sns:eu-central-1:123456789012:on-call"]
