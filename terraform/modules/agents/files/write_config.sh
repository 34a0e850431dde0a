#!/bin/bash
# Writes the agent's settings from what the instance says of itself, and its secret. Run as root.
# From the environment: TAILRACE_CONFIG, STORE_URL, SEQUENCER_ADDRESS, RPC_SECRET, AWS_REGION, IMDS (for tests).
set -euo pipefail
umask 077

config=${TAILRACE_CONFIG:-/etc/tailrace/tailrace.toml}
folder=$(dirname "$config")
imds=${IMDS:-http://169.254.169.254}/latest

token=$(curl -sSf --retry 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token")
fact() { curl -sSf --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }

address=$(fact local-ipv4)
# The id of the zone (euc1-az1), not its name: names mean different zones in different accounts.
# Clients say the same id: tailrace_az=euc1-az1 in client.id, or client.rack.
zone=$(fact placement/availability-zone-id)

# put NAME OWNER MODE: put standard input into the file, whole or not at all.
put() {
  cat >"$folder/.$1.new"
  chown "$2" "$folder/.$1.new"
  chmod "$3" "$folder/.$1.new"
  mv "$folder/.$1.new" "$folder/$1"
}

mkdir -p "$folder"
aws secretsmanager get-secret-value --region "$AWS_REGION" --secret-id "$RPC_SECRET" \
  --query SecretString --output text | put rpc.secret tailrace:tailrace 0600

put "$(basename "$config")" root:tailrace 0640 <<TOML
store = "$STORE_URL"
sequencers = ["$SEQUENCER_ADDRESS"]
listen = "0.0.0.0:9092"
advertise = "$address:9092"
http = "0.0.0.0:9644"
rpc = "0.0.0.0:9646"
rpc_advertise = "$address:9646"
rpc_secret_file = "$folder/rpc.secret"
zone = "$zone"
TOML
