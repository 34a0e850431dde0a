variable "name" {
  description = "Name of the service and prefix of its resources' names, such as tailrace-production-agents."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,33}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 35 characters: lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen (prefixes of role names are cut at 38)."
  }
}

variable "about" {
  description = "Description of the service's security group."
  type        = string

  validation {
    condition     = length(var.about) >= 5 && length(var.about) <= 255
    error_message = "about must be 5 to 255 characters."
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

variable "s3_prefix_list_id" {
  description = "Prefix list of S3 behind the gateway endpoint."
  type        = string

  validation {
    condition     = can(regex("^pl-[0-9a-f]{8,17}$", var.s3_prefix_list_id))
    error_message = "s3_prefix_list_id must be the id of a prefix list, such as pl-6ea54007."
  }
}

variable "egress" {
  description = "What the service may connect to beside S3, by what it is: a security group and a port."
  type        = map(object({ group = string, port = number }))

  validation {
    condition     = alltrue([for target in values(var.egress) : target.port > 0 && target.port < 65536])
    error_message = "egress must name ports from 1 to 65535."
  }
}

variable "peer_ports" {
  description = "Ports at which the service's processes connect to each other, by what they are for."
  type        = map(number)
  default     = {}

  validation {
    condition     = alltrue([for port in values(var.peer_ports) : port > 0 && port < 65536])
    error_message = "peer_ports must be from 1 to 65535."
  }
}

variable "balancer_ports" {
  description = "Ports that a load balancer connects to, by what they are for; none for a service without one."
  type        = map(number)
  default     = {}

  validation {
    condition     = alltrue([for port in values(var.balancer_ports) : port > 0 && port < 65536])
    error_message = "balancer_ports must be from 1 to 65535."
  }
}

variable "runs_on" {
  description = "The AWS service that runs the processes and assumes their role: ec2 or ecs-tasks."
  type        = string

  validation {
    condition     = contains(["ec2", "ecs-tasks"], var.runs_on)
    error_message = "runs_on must be ec2 or ecs-tasks."
  }
}

variable "source_account" {
  description = "The only account for which that service may assume the role; ECS passes it, EC2 does not."
  type        = string
  default     = null

  validation {
    condition     = var.source_account == null || can(regex("^[0-9]{12}$", var.source_account))
    error_message = "source_account must be an account's 12 digits."
  }
}

variable "policy" {
  description = "What the processes may do: the JSON of an aws_iam_policy_document."
  type        = string

  validation {
    condition     = can(jsondecode(var.policy))
    error_message = "policy must be JSON."
  }
}

variable "instances" {
  description = "For a service on EC2: process (agent or sequencer), image, type, root volume in GiB, files of user data by path, systemd units to start, and whether EC2 measures each minute instead of every five."
  type = object({
    process                 = string
    ami_id                  = string
    type                    = string
    root_volume_gib         = number
    files                   = map(object({ mode = string, content = string }))
    units                   = list(string)
    is_measured_each_minute = bool
  })
  default = null

  validation {
    condition     = var.instances == null ? true : contains(["agent", "sequencer"], var.instances.process)
    error_message = "instances.process must be agent or sequencer."
  }
}
