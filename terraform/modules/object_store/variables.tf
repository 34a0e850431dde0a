variable "name" {
  description = "Prefix of every name in this module, such as tailrace-production."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,21}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 23 characters: lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen (load balancer names are cut at 32)."
  }
}

variable "bucket" {
  description = "Name of the bucket; global, so it carries the name of whoever owns it."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be 3 to 63 lower-case letters, digits and hyphens (no dots: they break TLS names)."
  }
}

variable "prefix" {
  description = "Prefix of every key that Tailrace writes, without slashes at the ends."
  type        = string
  default     = "tailrace"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9/_-]{0,62}[a-z0-9]$", var.prefix)) && !strcontains(var.prefix, "//")
    error_message = "prefix must be 2 to 64 lower-case letters, digits, hyphens, underscores and single inner slashes."
  }
}

variable "undelete_days" {
  description = "Days for which a deleted object can be brought back. At least as long as the database can be rolled back by an operator: rows of then name objects that were collected since."
  type        = number
  default     = 7

  validation {
    condition     = var.undelete_days >= 1 && var.undelete_days <= 90 && floor(var.undelete_days) == var.undelete_days
    error_message = "undelete_days must be a whole number from 1 to 90."
  }
}

variable "key_deletion_days" {
  description = "Days between a request to delete the KMS key and its deletion, after which nothing can be read any more."
  type        = number
  default     = 30

  validation {
    condition     = var.key_deletion_days >= 7 && var.key_deletion_days <= 30
    error_message = "key_deletion_days must be from 7 to 30 (KMS allows nothing else)."
  }
}
