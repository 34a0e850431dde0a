variable "name" {
  description = "Prefix of every name in this module, such as tailrace-production."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,21}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 23 characters: lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen (load balancer names are cut at 32)."
  }
}

variable "vpc_id" {
  description = "Id of the VPC."
  type        = string

  validation {
    condition     = can(regex("^vpc-[0-9a-f]{8,17}$", var.vpc_id))
    error_message = "vpc_id must be the id of a VPC, such as vpc-0123456789abcdef0."
  }
}

variable "subnet_ids" {
  description = "Private subnets by zone; three, so that the loss of a zone leaves two."
  type        = map(string)

  validation {
    condition     = length(var.subnet_ids) == 3
    error_message = "subnet_ids must hold one subnet for each of three zones."
  }
}

variable "client_security_group_ids" {
  description = "Security groups that may reach PostgreSQL, by what they are (sequencer)."
  type        = map(string)

  validation {
    condition     = length(var.client_security_group_ids) > 0
    error_message = "client_security_group_ids must name at least one group: a database that nobody reaches serves nobody."
  }
}

variable "engine_version" {
  description = "PostgreSQL's major version; minor versions come in the maintenance window."
  type        = string
  default     = "17"

  validation {
    condition     = contains(["16", "17", "18"], var.engine_version)
    error_message = "engine_version must be 16, 17 or 18: a major version, without the minor one."
  }
}

variable "instance_class" {
  description = "Class of the database instance. The committer is one connection with small transactions: memory for the hot rows counts more than cores."
  type        = string
  default     = "db.r8g.large"

  validation {
    condition     = can(regex("^db\\.(m|r)[0-9]+[a-z]*\\.[0-9]*x?large$", var.instance_class))
    error_message = "instance_class must be of the m or r families, such as db.r8g.large: burstable classes stall commits once their credits are gone."
  }
}

variable "storage_gib" {
  description = "Allocated storage in GiB (gp3)."
  type        = number
  default     = 100

  validation {
    condition     = var.storage_gib >= 20 && var.storage_gib <= 65536
    error_message = "storage_gib must be from 20 to 65536."
  }
}

variable "max_storage_gib" {
  description = "Size in GiB up to which the storage grows by itself."
  type        = number
  default     = 1000

  validation {
    condition     = var.max_storage_gib >= 22 && var.max_storage_gib <= 65536
    error_message = "max_storage_gib must be from 22 to 65536."
  }

  validation {
    condition     = var.max_storage_gib > var.storage_gib
    error_message = "max_storage_gib must be larger than storage_gib."
  }
}

variable "backup_retention_days" {
  description = "Days of automated backups and point-in-time recovery."
  type        = number
  default     = 14

  validation {
    condition     = var.backup_retention_days >= 7 && var.backup_retention_days <= 35
    error_message = "backup_retention_days must be from 7 to 35."
  }
}

variable "backup_window" {
  description = "Daily window of the backup in UTC, such as 02:00-03:00; must not overlap the maintenance window."
  type        = string
  default     = "02:00-03:00"

  validation {
    condition     = can(regex("^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$", var.backup_window))
    error_message = "backup_window must be HH:MM-HH:MM in UTC, such as 02:00-03:00."
  }
}

variable "maintenance_window" {
  description = "Weekly window of maintenance in UTC, such as sun:04:00-sun:05:00."
  type        = string
  default     = "sun:04:00-sun:05:00"

  validation {
    condition     = can(regex("^(mon|tue|wed|thu|fri|sat|sun):([01][0-9]|2[0-3]):[0-5][0-9]-(mon|tue|wed|thu|fri|sat|sun):([01][0-9]|2[0-3]):[0-5][0-9]$", var.maintenance_window))
    error_message = "maintenance_window must be ddd:HH:MM-ddd:HH:MM in UTC, such as sun:04:00-sun:05:00."
  }
}
