# One Tailrace cluster: what each part may reach is said here once, by handing on security groups.

module "object_store" {
  source = "../../modules/object_store"

  name          = var.name
  bucket        = var.bucket
  undelete_days = var.undelete_days
}

module "network" {
  source = "../../modules/network"

  name       = var.name
  cidr       = var.cidr
  zones      = var.zones
  nat        = var.nat
  bucket_arn = module.object_store.bucket_arn
}

locals {
  store = {
    url         = module.object_store.store_url
    bucket_arn  = module.object_store.bucket_arn
    prefix      = module.object_store.prefix
    kms_key_arn = module.object_store.kms_key_arn
  }

  database = {
    address           = module.metadata.address
    port              = module.metadata.port
    name              = module.metadata.database
    secret_arn        = module.metadata.secret_arn
    kms_key_arn       = module.metadata.kms_key_arn
    security_group_id = module.metadata.security_group_id
  }

  sequencer = {
    address           = module.sequencer.address
    security_group_id = module.sequencer.balancer_security_group_id
  }
}

module "metadata" {
  source = "../../modules/metadata"

  name                  = var.name
  vpc_id                = module.network.vpc_id
  subnet_ids            = module.network.private_subnet_ids
  instance_class        = var.database_instance_class
  backup_retention_days = var.backup_retention_days

  client_security_group_ids = {
    sequencer = module.sequencer.security_group_id
  }
}

module "sequencer" {
  source = "../../modules/sequencer"

  name                        = var.name
  vpc_id                      = module.network.vpc_id
  subnet_ids                  = module.network.private_subnet_ids
  s3_prefix_list_id           = module.network.s3_prefix_list_id
  endpoints_security_group_id = module.network.endpoints_security_group_id
  ami_id                      = var.ami_id
  instance_type               = var.sequencer_instance_type
  servers                     = var.sequencer_servers
  store                       = local.store
  database                    = local.database

  client_security_group_ids = {
    agents    = module.agents.security_group_id
    compactor = module.compactor.security_group_id
  }
}

module "agents" {
  source = "../../modules/agents"

  name                            = var.name
  vpc_id                          = module.network.vpc_id
  subnet_ids                      = module.network.private_subnet_ids
  s3_prefix_list_id               = module.network.s3_prefix_list_id
  endpoints_security_group_id     = module.network.endpoints_security_group_id
  ami_id                          = var.ami_id
  instance_type                   = var.agent_instance_type
  min_agents                      = var.min_agents
  max_agents                      = var.max_agents
  drain_seconds                   = var.drain_seconds
  store                           = local.store
  sequencer                       = local.sequencer
  rpc_secret                      = module.sequencer.rpc_secret
  spot_percent                    = var.agent_spot_percent
  spot_instance_types             = var.agent_spot_instance_types
  kafka_client_security_group_ids = var.kafka_client_security_group_ids
  kafka_client_cidrs              = var.kafka_client_cidrs
  kafka_tls_secret                = var.kafka_tls_secret
}

module "compactor" {
  source = "../../modules/compactor"

  name                        = var.name
  vpc_id                      = module.network.vpc_id
  subnet_ids                  = module.network.private_subnet_ids
  s3_prefix_list_id           = module.network.s3_prefix_list_id
  endpoints_security_group_id = module.network.endpoints_security_group_id
  image                       = var.compactor_image
  schedule                    = var.compactor_schedule
  size                        = var.compactor_size
  store                       = local.store
  sequencer                   = local.sequencer
  rpc_secret                  = module.sequencer.rpc_secret
  catalog                     = var.compactor_catalog
}

module "alarms" {
  source = "../../modules/alarms"

  name                = var.name
  topic_arns          = var.alarm_topic_arns
  bucket              = module.object_store.bucket
  database_identifier = module.metadata.identifier
  sequencer           = module.sequencer.measured
  agents              = module.agents.measured
}
