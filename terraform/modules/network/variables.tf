variable "name" {
  description = "Prefix of every name in this module, such as tailrace-production."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,21}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 23 characters: lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen (load balancer names are cut at 32)."
  }
}

variable "cidr" {
  description = "IPv4 range of the VPC; each zone gets one sixteenth of it."
  type        = string

  validation {
    condition     = can(cidrnetmask(var.cidr)) && can(regex("/(1[6-9]|2[0-2])$", var.cidr))
    error_message = "cidr must be an IPv4 range from /16 to /22, such as 10.40.0.0/16."
  }

  validation {
    condition     = can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", var.cidr))
    error_message = "cidr must lie in a private range: 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16."
  }
}

variable "zones" {
  description = "The three availability zones, such as eu-central-1a, eu-central-1b, eu-central-1c."
  type        = list(string)

  validation {
    condition     = length(var.zones) == 3 && length(distinct(var.zones)) == 3
    error_message = "zones must name exactly three different availability zones."
  }

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", zone))])
    error_message = "zones must be availability zone names, such as eu-central-1a."
  }
}

variable "bucket_arn" {
  description = "ARN of the object store's bucket; the S3 endpoint lets nothing else of this account through."
  type        = string

  validation {
    condition     = can(regex("^arn:aws[a-z-]*:s3:::[a-z0-9.-]{3,63}$", var.bucket_arn))
    error_message = "bucket_arn must be the ARN of a bucket, such as arn:aws:s3:::tailrace-production."
  }
}

variable "interface_endpoints" {
  description = "AWS services reached privately. The default is what the other modules call; ssm, ssmmessages and ec2messages may be added for Session Manager."
  type        = set(string)
  default     = ["autoscaling", "ecr.api", "ecr.dkr", "logs", "monitoring", "secretsmanager"]

  validation {
    condition     = length(setsubtract(["autoscaling", "ecr.api", "ecr.dkr", "logs", "monitoring", "secretsmanager"], var.interface_endpoints)) == 0
    error_message = "interface_endpoints must contain autoscaling, ecr.api, ecr.dkr, logs, monitoring and secretsmanager: without a NAT nothing works without them."
  }
}

variable "nat" {
  description = "Whether to add an internet gateway and one NAT gateway a zone, for outgoing traffic of what the operator adds. Tailrace needs none."
  type        = bool
  default     = false
}
