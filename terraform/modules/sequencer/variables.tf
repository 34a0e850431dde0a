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

variable "database" {
  description = "The database: address, port, name, secret_arn (user name and password), kms_key_arn of the secret, security_group_id; the outputs of metadata."
  type = object({
    address           = string
    port              = number
    name              = string
    secret_arn        = string
    kms_key_arn       = string
    security_group_id = string
  })

  validation {
    condition     = var.database.port > 0 && var.database.port < 65536
    error_message = "database.port must be a TCP port."
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

variable "client_security_group_ids" {
  description = "Security groups that may call the sequencer, by what they are (agents, compactor)."
  type        = map(string)

  validation {
    condition     = contains(keys(var.client_security_group_ids), "agents")
    error_message = "client_security_group_ids must have the key agents: without the sequencer they acknowledge nothing."
  }
}

variable "instance_type" {
  description = "Type of the servers. One is the committer, the others forward to it and serve reads."
  type        = string
  default     = "m7g.large"

  validation {
    condition     = can(regex("^[cmr][0-9]+[a-z-]*\\.([0-9]*x?large|metal.*)$", var.instance_type))
    error_message = "instance_type must be of the c, m or r families and at least large, such as m7g.large: burstable types stall the one committer."
  }
}

variable "servers" {
  description = "Number of servers: 2, or 3 for one in each zone. One commits by lease; more than one stands by."
  type        = number
  default     = 3

  validation {
    condition     = contains([2, 3], var.servers)
    error_message = "servers must be 2 or 3."
  }
}

variable "stop_seconds" {
  description = "Seconds that a server gets after SIGTERM to finish its transaction and give its lease back."
  type        = number
  default     = 45

  validation {
    condition     = var.stop_seconds >= 35 && var.stop_seconds <= 90
    error_message = "stop_seconds must be from 35 to 90: a server takes up to 32 s to end, and EC2 cuts the power of an instance that takes longer to shut down."
  }
}
