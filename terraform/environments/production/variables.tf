variable "region" {
  description = "AWS region, such as eu-central-1."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be a region's name, such as eu-central-1."
  }
}

variable "account_id" {
  description = "Account in which this may run; in any other, Terraform stops before it changes anything."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account_id))
    error_message = "account_id must be the twelve digits of an AWS account."
  }
}

variable "name" {
  description = "Prefix of every name, such as tailrace-production."
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

variable "undelete_days" {
  description = "Days for which a deleted object can be brought back. At least as long as the database can be rolled back by an operator: rows of then name objects that were collected since."
  type        = number
  default     = 7

  validation {
    condition     = var.undelete_days >= 1 && var.undelete_days <= 90 && floor(var.undelete_days) == var.undelete_days
    error_message = "undelete_days must be a whole number from 1 to 90."
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

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "zones must lie in the region that region names."
  }
}

variable "nat" {
  description = "Whether to add an internet gateway and one NAT gateway a zone, for outgoing traffic of what the operator adds. Tailrace needs none."
  type        = bool
  default     = false
}

variable "ami_id" {
  description = "Image that carries Tailrace (see terraform/README.md for what must be in it)."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "ami_id must be the id of an image, such as ami-0123456789abcdef0."
  }
}

variable "database_instance_class" {
  description = "Class of the database instance. The committer is one connection with small transactions: memory for the hot rows counts more than cores."
  type        = string
  default     = "db.r8g.large"

  validation {
    condition     = can(regex("^db\\.(m|r)[0-9]+[a-z]*\\.[0-9]*x?large$", var.database_instance_class))
    error_message = "database_instance_class must be of the m or r families, such as db.r8g.large: burstable classes stall commits once their credits are gone."
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

variable "sequencer_instance_type" {
  description = "Type of the servers. One is the committer, the others forward to it and serve reads."
  type        = string
  default     = "m7g.large"

  validation {
    condition     = can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", var.sequencer_instance_type))
    error_message = "sequencer_instance_type must be of the c, m or r families and at least large, such as m7g.large: burstable types stall the one committer."
  }
}

variable "sequencer_servers" {
  description = "Number of servers: 2, or 3 for one in each zone. One commits by lease; more than one stands by."
  type        = number
  default     = 3

  validation {
    condition     = contains([2, 3], var.sequencer_servers)
    error_message = "sequencer_servers must be 2 or 3."
  }
}

variable "agent_instance_type" {
  description = "Type of the agents. Network and memory (the chunk cache) count; there is no disk to choose."
  type        = string
  default     = "c7gn.large"

  validation {
    condition     = can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", var.agent_instance_type))
    error_message = "agent_instance_type must be of the c, m or r families and at least large, such as c7gn.large: burstable types lose their network with their credits."
  }
}

variable "agent_spot_percent" {
  description = "Share in percent of the agents above min_agents that are spot instances."
  type        = number
  default     = 0

  validation {
    condition     = var.agent_spot_percent >= 0 && var.agent_spot_percent <= 100 && floor(var.agent_spot_percent) == var.agent_spot_percent
    error_message = "agent_spot_percent must be a whole number from 0 to 100."
  }
}

variable "agent_spot_instance_types" {
  description = "Further types that a spot instance may have; the more, the less often EC2 takes one back."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for type in var.agent_spot_instance_types : can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", type))])
    error_message = "agent_spot_instance_types must be of the c, m or r families and at least large, such as c7g.large."
  }
}

variable "min_agents" {
  description = "Fewest agents; a multiple of three, so that each zone has as many."
  type        = number
  default     = 3

  validation {
    condition     = var.min_agents >= 3 && var.min_agents % 3 == 0
    error_message = "min_agents must be a multiple of 3, at least 3: one agent in each zone."
  }
}

variable "max_agents" {
  description = "Most agents."
  type        = number
  default     = 12

  validation {
    condition     = var.max_agents >= var.min_agents && var.max_agents <= 300
    error_message = "max_agents must be from min_agents to 300."
  }
}

variable "drain_seconds" {
  description = "Seconds that an agent gets after SIGTERM: buffers flushed, answers sent, groups handed over, leases given back."
  type        = number
  default     = 120

  validation {
    condition     = var.drain_seconds >= 65 && var.drain_seconds <= 3600
    error_message = "drain_seconds must be from 65 to 3600: an agent takes up to 60 s to drain, or to end itself with its threads' stacks in the log."
  }
}

variable "kafka_client_security_group_ids" {
  description = "Security groups of Kafka clients in this VPC or a peered one, by what they are."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for group in values(var.kafka_client_security_group_ids) : can(regex("^(sg-[0-9a-f]{8,17}|[0-9]{12}/sg-[0-9a-f]{8,17})$", group))])
    error_message = "kafka_client_security_group_ids must hold ids of security groups, such as sg-0123456789abcdef0."
  }
}

variable "kafka_client_cidrs" {
  description = "Private IPv4 ranges of Kafka clients that no security group describes (a transit gateway, a VPN)."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for range in var.kafka_client_cidrs : can(cidrnetmask(range)) && can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.)", range))])
    error_message = "kafka_client_cidrs must be private IPv4 ranges (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10): agents are never public."
  }

  validation {
    condition     = alltrue([for range in var.kafka_client_cidrs : try(tonumber(split("/", range)[1]), 0) >= 8])
    error_message = "kafka_client_cidrs must be /8 or smaller: a shorter mask reaches beyond the private ranges."
  }
}

variable "kafka_tls_secret" {
  description = "A secret in Secrets Manager, and its key, with the listener's private key, certificate and intermediates (PEM, one after another). With it Kafka's clients log in, over TLS (SASL_SSL); null: nobody does, and the listener is PLAINTEXT. The certificate must name the load balancer and every agent: *.REGION.compute.internal (*.ec2.internal in us-east-1)."
  type = object({
    arn         = string
    kms_key_arn = string
  })
  default = null

  validation {
    condition     = var.kafka_tls_secret == null ? true : can(regex("^arn:[a-z-]+:secretsmanager:", var.kafka_tls_secret.arn)) && can(regex("^arn:[a-z-]+:kms:", var.kafka_tls_secret.kms_key_arn))
    error_message = "kafka_tls_secret must have the ARN of a secret in Secrets Manager and that of its KMS key."
  }
}

variable "compactor_image" {
  description = "Container image with Tailrace, Spark and Java, in an ECR repository of this account, named by digest."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}\\.dkr\\.ecr\\.[a-z0-9-]+\\.amazonaws\\.com(\\.cn)?/[a-z0-9/_.-]+@sha256:[0-9a-f]{64}$", var.compactor_image))
    error_message = "compactor_image must be an ECR image by digest: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:DIGEST. A tag could change between two runs."
  }
}

variable "compactor_catalog" {
  description = "The REST catalog of Iceberg tables: url, and the security_group_id and port behind which it is, if not behind the VPC's endpoints. null: topics with tailrace.table=iceberg get no table, and each run says so."
  type = object({
    url               = string
    security_group_id = optional(string)
    port              = optional(number, 443)
  })
  default = null

  validation {
    condition     = var.compactor_catalog == null ? true : can(regex("^https?://[^[:space:]?#]+$", var.compactor_catalog.url))
    error_message = "compactor_catalog.url must be the address of a REST catalog: https://HOST/PATH. A database's password is not given to the compactor."
  }

  validation {
    condition     = try(var.compactor_catalog.security_group_id, null) == null ? true : can(regex("^sg-[0-9a-f]{8,17}$", var.compactor_catalog.security_group_id))
    error_message = "compactor_catalog.security_group_id must be the id of a security group, such as sg-0123456789abcdef0."
  }

  validation {
    condition     = var.compactor_catalog == null ? true : try(var.compactor_catalog.port > 0 && var.compactor_catalog.port < 65536, false)
    error_message = "compactor_catalog.port must be from 1 to 65535."
  }
}

variable "compactor_schedule" {
  description = "When the compactor runs: rate(...) or cron(...) as EventBridge Scheduler reads them, in UTC."
  type        = string
  default     = "rate(30 minutes)"

  validation {
    condition     = can(regex("^(rate\\([1-9][0-9]* (minutes?|hours?|days?)\\)|cron\\(([^ ]+ ){5}[^ ]+\\))$", var.compactor_schedule))
    error_message = "compactor_schedule must be rate(N minutes|hours|days) or cron(...) with six fields, such as rate(30 minutes)."
  }
}

variable "compactor_size" {
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
    condition     = contains([2, 4, 8, 16], var.compactor_size.vcpu)
    error_message = "compactor_size.vcpu must be 2, 4, 8 or 16."
  }

  validation {
    condition     = var.compactor_size.memory_gib >= 2 * var.compactor_size.vcpu && var.compactor_size.memory_gib <= (var.compactor_size.vcpu == 16 ? 120 : 7.5 * var.compactor_size.vcpu)
    error_message = "compactor_size.memory_gib must be from 2 to 7.5 GiB for each vCPU (a worker peaks at 6.5 times its item)."
  }

  validation {
    condition     = var.compactor_size.vcpu < 8 ? floor(var.compactor_size.memory_gib) == var.compactor_size.memory_gib : var.compactor_size.memory_gib % (var.compactor_size.vcpu == 8 ? 4 : 8) == 0
    error_message = "compactor_size.memory_gib must be a whole number; a multiple of 4 with 8 vCPU, of 8 with 16 vCPU."
  }

  validation {
    condition     = var.compactor_size.disk_gib >= 21 && var.compactor_size.disk_gib <= 200
    error_message = "compactor_size.disk_gib must be from 21 to 200."
  }
}

variable "alarm_topic_arns" {
  description = "SNS topics of this region and account that are told when an alarm begins and when it is over; somebody must be subscribed."
  type        = list(string)

  validation {
    condition     = length(var.alarm_topic_arns) > 0 && alltrue([for arn in var.alarm_topic_arns : can(regex("^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+$", arn))])
    error_message = "alarm_topic_arns must name at least one SNS topic by its ARN: an alarm that nobody hears wakes nobody."
  }
}
