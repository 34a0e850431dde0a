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

variable "store" {
  description = "Where objects live: url (s3://bucket/prefix), bucket_arn, prefix, kms_key_arn; the outputs of object_store."
  type = object({
    url         = string
    bucket_arn  = string
    prefix      = string
    kms_key_arn = string
  })

  validation {
    condition     = can(regex("^s3://[a-z0-9-]{3,63}/[a-z0-9/_-]+$", var.store.url))
    error_message = "store.url must be s3://BUCKET/PREFIX."
  }
}

variable "rpc_secret" {
  description = "The secret that all processes of the cluster share: its ARN in Secrets Manager and that of its key; the output of sequencer."
  type = object({
    arn         = string
    kms_key_arn = string
  })

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.rpc_secret.arn))
    error_message = "rpc_secret.arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "s3_prefix_list_id" {
  description = "Prefix list of S3 behind the gateway endpoint."
  type        = string

  validation {
    condition     = can(regex("^pl-[0-9a-f]{8,17}$", var.s3_prefix_list_id))
    error_message = "s3_prefix_list_id must be the id of a prefix list, such as pl-6ea54007."
  }
}

variable "endpoints_security_group_id" {
  description = "Security group of the VPC interface endpoints."
  type        = string

  validation {
    condition     = can(regex("^sg-[0-9a-f]{8,17}$", var.endpoints_security_group_id))
    error_message = "endpoints_security_group_id must be the id of a security group, such as sg-0123456789abcdef0."
  }
}

variable "sequencer" {
  description = "The sequencer: address (host:port) and security_group_id of its load balancer; the outputs of sequencer."
  type = object({
    address           = string
    security_group_id = string
  })

  validation {
    condition     = can(regex("^[a-zA-Z0-9.-]+:[0-9]{1,5}$", var.sequencer.address))
    error_message = "sequencer.address must be host:port."
  }
}

variable "image" {
  description = "Container image with Tailrace, Spark and Java, in an ECR repository of this account, named by digest."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}\\.dkr\\.ecr\\.[a-z0-9-]+\\.amazonaws\\.com(\\.cn)?/[a-z0-9/_.-]+@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be an ECR image by digest: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:DIGEST. A tag could change between two runs."
  }
}

variable "catalog" {
  description = "The REST catalog of Iceberg tables: url, and the security_group_id and port behind which it is, if not behind the VPC's endpoints. null: topics with tailrace.table=iceberg get no table, and each run says so."
  type = object({
    url               = string
    security_group_id = optional(string)
    port              = optional(number, 443)
  })
  default = null

  validation {
    condition     = var.catalog == null ? true : can(regex("^https?://[^[:space:]?#]+$", var.catalog.url))
    error_message = "catalog.url must be the address of a REST catalog: https://HOST/PATH. A database's password is not given to the compactor."
  }

  validation {
    condition     = try(var.catalog.security_group_id, null) == null ? true : can(regex("^sg-[0-9a-f]{8,17}$", var.catalog.security_group_id))
    error_message = "catalog.security_group_id must be the id of a security group, such as sg-0123456789abcdef0."
  }

  validation {
    condition     = var.catalog == null ? true : try(var.catalog.port > 0 && var.catalog.port < 65536, false)
    error_message = "catalog.port must be from 1 to 65535."
  }
}

variable "schedule" {
  description = "When the compactor runs: rate(...) or cron(...) as EventBridge Scheduler reads them, in UTC."
  type        = string
  default     = "rate(30 minutes)"

  validation {
    condition     = can(regex("^(rate\\([1-9][0-9]* (minutes?|hours?|days?)\\)|cron\\(([^ ]+ ){5}[^ ]+\\))$", var.schedule))
    error_message = "schedule must be rate(N minutes|hours|days) or cron(...) with six fields, such as rate(30 minutes)."
  }
}

variable "size" {
  description = "What one run gets: vCPU (Spark runs a task on each) and memory in GiB, as Fargate offers them, and disk in GiB for the shuffle."
  type = object({
    vcpu       = number
    memory_gib = number
    disk_gib   = number
  })
  default = {
    vcpu       = 4
    memory_gib = 16
    disk_gib   = 50
  }

  validation {
    condition     = contains([2, 4, 8, 16], var.size.vcpu)
    error_message = "size.vcpu must be 2, 4, 8 or 16."
  }

  validation {
    condition     = var.size.memory_gib >= 2 * var.size.vcpu && var.size.memory_gib <= (var.size.vcpu == 16 ? 120 : 7.5 * var.size.vcpu)
    error_message = "size.memory_gib must be from 2 to 7.5 GiB for each vCPU (a worker peaks at 6.5 times its item)."
  }

  validation {
    condition     = var.size.vcpu < 8 ? floor(var.size.memory_gib) == var.size.memory_gib : var.size.memory_gib % (var.size.vcpu == 8 ? 4 : 8) == 0
    error_message = "size.memory_gib must be a whole number; a multiple of 4 with 8 vCPU, of 8 with 16 vCPU."
  }

  validation {
    condition     = var.size.disk_gib >= 21 && var.size.disk_gib <= 200
    error_message = "size.disk_gib must be from 21 to 200."
  }
}

variable "log_retention_days" {
  description = "Days for which the runs' logs are kept."
  type        = number
  default     = 30

  validation {
    condition     = contains([7, 14, 30, 60, 90, 180, 365], var.log_retention_days)
    error_message = "log_retention_days must be 7, 14, 30, 60, 90, 180 or 365."
  }
}
