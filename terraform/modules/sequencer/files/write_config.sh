#!/bin/bash
# Writes the sequencer's settings from what the instance and Secrets Manager say.
# Exits 0 whether or not anything changed; prints "changed" if it did. Run as root.
# From the environment: TAILRACE_CONFIG, STORE_URL, DATABASE_HOST, DATABASE_PORT, DATABASE_NAME,
# DATABASE_SECRET, AWS_REGION, IMDS (for tests).
set -euo pipefail
umask 027

config=${TAILRACE_CONFIG:-/etc/tailrace/tailrace.toml}
imds=${IMDS:-http://169.254.169.254}/latest

token=$(curl -sSf --retry 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token")
address=$(curl -sSf --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/local-ipv4")

secret=$(aws secretsmanager get-secret-value --region "$AWS_REGION" --secret-id "$DATABASE_SECRET" \
  --query SecretString --output text)
# The password may hold any character; in a URL it must be quoted. It passes by standard input, so that
# it stands in no process list.
login=$(python3 -c '
import json, sys, urllib.parse
secret = json.load(sys.stdin)
print(":".join(urllib.parse.quote(secret[key], safe="") for key in ("username", "password")))
' <<<"$secret")

mkdir -p "$(dirname "$config")"
cat >"$config.new" <<TOML
store = "$STORE_URL"
database = "postgresql+asyncpg://$login@$DATABASE_HOST:$DATABASE_PORT/$DATABASE_NAME?ssl=verify-full"
rpc = "0.0.0.0:9645"
rpc_advertise = "$address:9645"
http = "0.0.0.0:9644"
TOML

if [[ -f $config ]] && cmp -s "$config" "$config.new"; then
  rm "$config.new"
else
  chgrp tailrace "$config.new"
  mv "$config.new" "$config"
  echo changed
fi
