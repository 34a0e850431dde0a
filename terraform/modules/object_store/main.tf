# The bucket that holds every record. Objects are written once under a key of their own and never changed;
# only Tailrace's collector deletes, after a grace period and after a checkpoint that doesn't name the object.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_iam_policy_document" "key" {
  statement {
    sid = "AccountDelegatesByIam"
    # The key's administration and use, without kms:*, so that what is granted can be read here.
    actions = [
      "kms:CancelKeyDeletion",
      "kms:CreateAlias",
      "kms:CreateGrant",
      "kms:Decrypt",
      "kms:DeleteAlias",
      "kms:DescribeKey",
      "kms:DisableKey",
      "kms:EnableKey",
      "kms:EnableKeyRotation",
      "kms:Encrypt",
      "kms:GenerateDataKey",
      "kms:GetKeyPolicy",
      "kms:GetKeyRotationStatus",
      "kms:ListGrants",
      "kms:ListKeyPolicies",
      "kms:ListResourceTags",
      "kms:PutKeyPolicy",
      "kms:RevokeGrant",
      "kms:ScheduleKeyDeletion",
      "kms:TagResource",
      "kms:UntagResource",
      "kms:UpdateAlias",
      "kms:UpdateKeyDescription",
    ]
    # In a key's policy, "*" is this key; KMS allows no other way to say it.
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }
}

resource "aws_kms_key" "this" {
  description             = "Objects of ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = var.key_deletion_days
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}-objects"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_s3_bucket" "this" {
  bucket        = var.bucket
  force_destroy = false

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

# The bucket key makes one call to KMS serve many objects: without it, KMS would cost more than the PUTs.
resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.this.arn
    }
  }
}

# Versioning isn't needed for correctness (no key is written twice). It is on so that a deletion can be taken
# back: by an operator's mistake, by a bug in the collector, or because the database was rolled back to a time
# when the object was still named. The collector's rights cover s3:DeleteObject only, never
# s3:DeleteObjectVersion; the bytes go undelete_days later, by the lifecycle below. What it costs is
# undelete_days of garbage, and that DeleteRecords and expired topics leave the bucket that much later.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

# No rule here may expire a current object: rows in the database name it.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    # Parts of an upload whose agent died: not listed, not readable, but paid for.
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  rule {
    id     = "deleted-objects"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.undelete_days
    }

    # Of delete markers that have nothing left below them. Not of objects.
    expiration {
      expired_object_delete_marker = true
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid    = "TlsOnly"
    effect = "Deny"
    # A denial: the wider, the safer.
    actions = ["s3:*"]
    # The bucket and all that is in it.
    resources = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]

    # Whoever asks.
    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  statement {
    sid     = "OnlyThisKey"
    effect  = "Deny"
    actions = ["s3:PutObject"]
    # All objects.
    resources = ["${aws_s3_bucket.this.arn}/*"]

    # Whoever asks.
    principals {
      type        = "*"
      identifiers = ["*"]
    }

    # A PUT that names no key gets the bucket's default, which is this one; one that names another is refused.
    condition {
      test     = "StringNotEquals"
      variable = "s3:x-amz-server-side-encryption-aws-kms-key-id"
      values   = [aws_kms_key.this.arn]
    }

    condition {
      test     = "Null"
      variable = "s3:x-amz-server-side-encryption-aws-kms-key-id"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = data.aws_iam_policy_document.bucket.json

  depends_on = [aws_s3_bucket_public_access_block.this]
}
