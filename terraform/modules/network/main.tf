# Three zones of private subnets. S3 through a gateway endpoint (free of charge, and no traffic leaves the VPC),
# other AWS services through interface endpoints. No public subnet and no way in; a way out only with var.nat.

data "aws_region" "current" {}

data "aws_partition" "current" {}

locals {
  subnets     = { for index, zone in var.zones : zone => cidrsubnet(var.cidr, 4, index) }
  nat_subnets = { for index, zone in var.zones : zone => cidrsubnet(var.cidr, 4, index + 8) if var.nat }
}

resource "aws_vpc" "this" {
  cidr_block           = var.cidr
  enable_dns_hostnames = true
  enable_dns_support   = true

  tags = { Name = var.name }
}

# A VPC comes with a group that lets its members talk to each other. Taken over here with no rules, so that
# what is started without a group can't talk at all.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_subnet" "private" {
  for_each = local.subnets

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_route_table" "private" {
  for_each = local.subnets

  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_route_table_association" "private" {
  for_each = local.subnets

  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[each.key].id
}

data "aws_iam_policy_document" "s3_endpoint" {
  statement {
    sid       = "ObjectStore"
    actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"]
    resources = [var.bucket_arn, "${var.bucket_arn}/*"]

    # An endpoint's policy only narrows what the callers' own policies allow; it can't name their roles here.
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
  }

  statement {
    sid     = "ImageLayers"
    actions = ["s3:GetObject"]
    # ECR keeps the layers of images in this bucket of its own, under keys that it chooses.
    resources = ["arn:${data.aws_partition.current.partition}:s3:::prod-${data.aws_region.current.region}-starport-layer-bucket/*"]

    # As above: ECR signs these reads itself.
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
  }
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${data.aws_region.current.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [for table in aws_route_table.private : table.id]
  policy            = data.aws_iam_policy_document.s3_endpoint.json

  tags = { Name = "${var.name}-s3" }
}

resource "aws_security_group" "endpoints" {
  name_prefix = "${var.name}-endpoints-"
  description = "Interface endpoints of AWS services"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.name}-endpoints" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id = aws_security_group.endpoints.id
  description       = "HTTPS from inside the VPC"
  cidr_ipv4         = aws_vpc.this.cidr_block
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each = var.interface_endpoints

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${data.aws_region.current.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for subnet in aws_subnet.private : subnet.id]
  security_group_ids  = [aws_security_group.endpoints.id]

  tags = { Name = "${var.name}-${each.key}" }
}

# Only with var.nat: one NAT gateway a zone, so that outgoing traffic crosses no zone.

resource "aws_internet_gateway" "this" {
  count = var.nat ? 1 : 0

  vpc_id = aws_vpc.this.id

  tags = { Name = var.name }
}

resource "aws_subnet" "nat" {
  for_each = local.nat_subnets

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-nat-${each.key}" }
}

resource "aws_route_table" "nat" {
  count = var.nat ? 1 : 0

  vpc_id = aws_vpc.this.id

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this[0].id
  }

  tags = { Name = "${var.name}-nat" }
}

resource "aws_route_table_association" "nat" {
  for_each = local.nat_subnets

  subnet_id      = aws_subnet.nat[each.key].id
  route_table_id = aws_route_table.nat[0].id
}

resource "aws_eip" "nat" {
  for_each = local.nat_subnets

  domain = "vpc"

  tags = { Name = "${var.name}-nat-${each.key}" }
}

resource "aws_nat_gateway" "this" {
  for_each = local.nat_subnets

  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.nat[each.key].id

  tags = { Name = "${var.name}-${each.key}" }

  depends_on = [aws_internet_gateway.this]
}

resource "aws_route" "nat" {
  for_each = local.nat_subnets

  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[each.key].id
}
