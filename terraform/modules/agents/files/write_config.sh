#!/bin/bash
# Writes the agent's settings from what the instance says of itself, and its secret. Run as root.
# From the environment: TAILRACE_CONFIG, STORE_URL, SEQUENCER_ADDRESS, RPC_SECRET, AWS_REGION, IMDS (for tests); and
# where Kafka's clients log in: KAFKA_TLS_SECRET, ADMIN_SECRET, TOKENS_SECRET.
set -euo pipefail
umask 077

config=${TAILRACE_CONFIG:-/etc/tailrace/tailrace.toml}
folder=$(dirname "$config")
imds=${IMDS:-http://169.254.169.254}/latest

token=$(curl -sSf --retry 5 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token")
fact() { curl -sSf --retry 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }

address=$(fact local-ipv4)
# The id of the zone (euc1-az1), not its name: names mean different zones in different accounts.
# Clients say the same id: tailrace_az=euc1-az1 in client.id.
zone=$(fact placement/availability-zone-id)

# put NAME OWNER MODE: put standard input into the file, whole or not at all.
put() {
  cat >"$folder/.$1.new"
  chown "$2" "$folder/.$1.new"
  chmod "$3" "$folder/.$1.new"
  mv "$folder/.$1.new" "$folder/$1"
}

secret() { aws secretsmanager get-secret-value --region "$AWS_REGION" --secret-id "$1" --query SecretString --output text; }

mkdir -p "$folder"
secret "$RPC_SECRET" | put rpc.secret tailrace:tailrace 0600

kafka="listen = \"0.0.0.0:9092\"
advertise = \"$address:9092\""
security=""
login=""
if [[ -n ${KAFKA_TLS_SECRET:-} ]]; then
  # Clients check the name that an agent advertises: the certificate is for names, not for addresses.
  name=$(fact local-hostname)
  secret "$KAFKA_TLS_SECRET" | put kafka.pem tailrace:tailrace 0600
  secret "$TOKENS_SECRET" | put tokens.secret tailrace:tailrace 0600
  login=admin:$(secret "$ADMIN_SECRET")
  kafka="listeners = [\"SASL_SSL://0.0.0.0:9092\"]
advertised_listeners = [\"SASL_SSL://$name:9092\"]"
  security="
[tls]
kafka_cert_file = \"$folder/kafka.pem\"
kafka_key_file = \"$folder/kafka.pem\"

[security]
sasl_mechanisms = [\"SCRAM-SHA-512\", \"SCRAM-SHA-256\", \"PLAIN\"]
super_users = [\"User:admin\"]
first_user_file = \"$folder/admin.user\"
delegation_token_secret_file = \"$folder/tokens.secret\""
fi
# Empty where nobody logs in: the unit that measures traffic takes the file in any case.
put admin.user tailrace:tailrace 0600 <<<"$login"

put "$(basename "$config")" root:tailrace 0640 <<TOML
store = "$STORE_URL"
sequencers = ["$SEQUENCER_ADDRESS"]
$kafka
http = "0.0.0.0:9644"
rpc = "0.0.0.0:9646"
rpc_advertise = "$address:9646"
rpc_secret_file = "$folder/rpc.secret"
zone = "$zone"
$security
TOML
