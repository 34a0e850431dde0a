#!/bin/bash
# Writes the sequencer's settings and secrets from what the instance and Secrets Manager say. Run as root: at the start,
# and every few minutes to follow the rotation of the database's password, which the server reads again for each new
# connection.
# From the environment: TAILRACE_CONFIG, STORE_URL, DATABASE_HOST, DATABASE_PORT, DATABASE_NAME, DATABASE_SECRET,
# RPC_SECRET, AWS_REGION, IMDS (for tests).
set -euo pipefail
umask 077

config=${TAILRACE_CONFIG:-/etc/tailrace/tailrace.toml}
folder=$(dirname "$config")
imds=${IMDS:-http://169.254.169.254}/latest

token=$(curl -sSf --retry 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token")
address=$(curl -sSf --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/local-ipv4")

secret() {
  aws secretsmanager get-secret-value --region "$AWS_REGION" --secret-id "$1" --query SecretString --output text
}

# Secrets pass by standard input and output, so that they stand in no process list.
member() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# put NAME OWNER MODE: put standard input into the file, whole or not at all.
put() {
  cat >"$folder/.$1.new"
  chown "$2" "$folder/.$1.new"
  chmod "$3" "$folder/.$1.new"
  mv "$folder/.$1.new" "$folder/$1"
}

mkdir -p "$folder"
login=$(secret "$DATABASE_SECRET")
member password <<<"$login" | put database.password tailrace:tailrace 0600
secret "$RPC_SECRET" | put rpc.secret tailrace:tailrace 0600
user=$(member username <<<"$login")

put "$(basename "$config")" root:tailrace 0640 <<TOML
store = "$STORE_URL"
database = "postgresql://$user@$DATABASE_HOST:$DATABASE_PORT/$DATABASE_NAME?sslmode=verify-full&sslrootcert=/etc/tailrace/rds-ca.pem"
database_password_file = "$folder/database.password"
rpc = "0.0.0.0:9645"
rpc_advertise = "$address:9645"
rpc_secret_file = "$folder/rpc.secret"
http = "0.0.0.0:9644"
TOML
