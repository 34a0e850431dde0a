variable "name" {
  description = "Prefix of every name in this module, such as tailrace-production."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,21}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 23 characters: lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen."
  }
}

variable "topic_arns" {
  description = "SNS topics that are told when an alarm begins and when it is over."
  type        = list(string)

  validation {
    condition     = length(var.topic_arns) > 0 && alltrue([for arn in var.topic_arns : can(regex("^arn:aws[a-z-]*:sns:", arn))])
    error_message = "topic_arns must name at least one SNS topic by its ARN: an alarm that nobody hears wakes nobody."
  }
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string

  validation {
    condition     = length(var.bucket) > 0
    error_message = "bucket must be the name of the bucket."
  }
}

variable "database_identifier" {
  description = "Identifier of the database instance."
  type        = string

  validation {
    condition     = length(var.database_identifier) > 0
    error_message = "database_identifier must be the identifier of the database instance."
  }
}

variable "sequencer" {
  description = "The sequencer's load balancer and its target group, as CloudWatch names them."
  type = object({
    balancer_arn_suffix     = string
    target_group_arn_suffix = string
  })

  validation {
    condition     = startswith(var.sequencer.balancer_arn_suffix, "net/") && startswith(var.sequencer.target_group_arn_suffix, "targetgroup/")
    error_message = "sequencer must hold the ARN suffixes: net/... and targetgroup/..."
  }
}

variable "agents" {
  description = "The agents' load balancer and its target group, as CloudWatch names them."
  type = object({
    balancer_arn_suffix     = string
    target_group_arn_suffix = string
  })

  validation {
    condition     = startswith(var.agents.balancer_arn_suffix, "net/") && startswith(var.agents.target_group_arn_suffix, "targetgroup/")
    error_message = "agents must hold the ARN suffixes: net/... and targetgroup/..."
  }
}

variable "database_write_seconds" {
  description = "A write to the database's disk that takes longer than this, on average for five minutes, is too slow."
  type        = number
  default     = 0.05

  validation {
    condition     = var.database_write_seconds > 0 && var.database_write_seconds <= 1
    error_message = "database_write_seconds must be above 0 and at most 1: a committer steps down when its database takes longer."
  }
}

variable "database_free_gib" {
  description = "The database's disk may not have less free space than this."
  type        = number
  default     = 5

  validation {
    condition     = var.database_free_gib >= 1
    error_message = "database_free_gib must be at least 1."
  }
}

variable "storage_failed_percent" {
  description = "Of all requests to the bucket, how many percent may fail with a 5xx."
  type        = number
  default     = 1

  validation {
    condition     = var.storage_failed_percent > 0 && var.storage_failed_percent < 100
    error_message = "storage_failed_percent must be between 0 and 100."
  }
}
