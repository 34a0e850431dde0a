terraform {
  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "6.20.0"
    }
  }

  # Bucket, key and region of the state come with `terraform init -backend-config=...`: they are the owner's.
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}

provider "aws" {
  region              = var.region
  allowed_account_ids = [var.account_id]

  default_tags {
    tags = {
      Project     = "tailrace"
      Environment = var.name
      ManagedBy   = "terraform"
    }
  }
}
