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

variable "ami_id" {
  description = "Image that carries Tailrace (see terraform/README.md for what must be in it)."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "ami_id must be the id of an image, such as ami-0123456789abcdef0."
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

variable "root_volume_gib" {
  description = "Size in GiB of the encrypted root volume: system and logs, never records."
  type        = number
  default     = 16

  validation {
    condition     = var.root_volume_gib >= 8 && var.root_volume_gib <= 1000
    error_message = "root_volume_gib must be from 8 to 1000."
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

variable "instance_type" {
  description = "Type of the agents. Network and memory (the chunk cache) count; there is no disk to choose."
  type        = string
  default     = "c7gn.large"

  validation {
    condition     = can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", var.instance_type))
    error_message = "instance_type must be of the c, m or r families and at least large, such as c7gn.large: burstable types lose their network with their credits."
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

variable "spot_percent" {
  description = "Share in percent of the agents above min_agents that are spot instances. They drain within the two minutes of notice."
  type        = number
  default     = 0

  validation {
    condition     = var.spot_percent >= 0 && var.spot_percent <= 100 && floor(var.spot_percent) == var.spot_percent
    error_message = "spot_percent must be a whole number from 0 to 100."
  }
}

variable "spot_instance_types" {
  description = "Further types that a spot instance may have; the more, the less often EC2 takes one back."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for type in var.spot_instance_types : can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", type))])
    error_message = "spot_instance_types must be of the c, m or r families and at least large, such as c7g.large."
  }
}

variable "target_cpu_percent" {
  description = "CPU that scaling aims at. A zone that is lost hands half of its load to each of the other two: above 60 they could not take it."
  type        = number
  default     = 50

  validation {
    condition     = var.target_cpu_percent >= 20 && var.target_cpu_percent <= 60
    error_message = "target_cpu_percent must be from 20 to 60."
  }
}

variable "target_mib_per_second" {
  description = "Produced plus fetched MiB per second and agent that scaling aims at."
  type        = number
  default     = 200

  validation {
    condition     = var.target_mib_per_second >= 1 && var.target_mib_per_second <= 10000
    error_message = "target_mib_per_second must be from 1 to 10000."
  }
}

variable "traffic_counters" {
  description = "Counters in /metrics, in bytes, whose sum is an agent's traffic."
  type        = list(string)
  default     = ["tailrace_produced_bytes_total", "tailrace_fetched_bytes_total"]

  validation {
    condition     = length(var.traffic_counters) > 0 && alltrue([for counter in var.traffic_counters : can(regex("^[a-z][a-z0-9_]*_total$", counter))])
    error_message = "traffic_counters must name at least one Prometheus counter, ending in _total."
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
