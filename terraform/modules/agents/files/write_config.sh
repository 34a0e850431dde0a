#!/bin/bash
# Writes the agent's settings from what the instance says of itself. Run as root.
# From the environment: TAILRACE_CONFIG, STORE_URL, SEQUENCER_ADDRESS, IMDS (for tests).
set -euo pipefail
umask 027

config=${TAILRACE_CONFIG:-/etc/tailrace/tailrace.toml}
imds=${IMDS:-http://169.254.169.254}/latest

token=$(curl -sSf --retry 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token")
fact() { curl -sSf --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }

address=$(fact local-ipv4)
# The id of the zone (euc1-az1), not its name: names mean different zones in different accounts.
# Clients say the same id: tailrace_az=euc1-az1 in client.id, or client.rack.
zone=$(fact placement/availability-zone-id)

mkdir -p "$(dirname "$config")"
cat >"$config.new" <<TOML
store = "$STORE_URL"
sequencers = ["$SEQUENCER_ADDRESS"]
listen = "0.0.0.0:9092"
advertise = "$address:9092"
http = "0.0.0.0:9644"
rpc = "0.0.0.0:9646"
rpc_advertise = "$address:9646"
zone = "$zone"
TOML
chgrp tailrace "$config.new"
mv "$config.new" "$config"
