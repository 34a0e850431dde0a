#!/bin/bash
# Waits until autoscaling wants this instance gone, then lets the agent drain and says when it is done.
# The load balancer stops sending new connections by itself when the instance is put into Terminating:Wait.
# From the environment: AWS_REGION, AUTOSCALING_GROUP, DRAIN_HOOK, IMDS and POLL_SECONDS (for tests).
set -euo pipefail

imds=${IMDS:-http://169.254.169.254}/latest
poll=${POLL_SECONDS:-5}

fact() {
  local token
  token=$(curl -sf -m 3 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token") || return 1
  curl -sf -m 3 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"
}

# A failed look is a look that comes again.
until [[ $(fact autoscaling/target-lifecycle-state || true) == Terminated ]]; do
  sleep "$poll"
done

instance=$(fact instance-id)
echo "autoscaling terminates $instance: draining"
# SIGTERM; returns when the agent has ended, or was killed after TimeoutStopSec. Either way the instance goes:
# what was acknowledged is in the object store and the database.
systemctl stop tailrace-agent.service || echo "the agent did not stop cleanly"

until aws autoscaling complete-lifecycle-action --region "$AWS_REGION" \
  --auto-scaling-group-name "$AUTOSCALING_GROUP" --lifecycle-hook-name "$DRAIN_HOOK" \
  --instance-id "$instance" --lifecycle-action-result CONTINUE; do
  sleep "$poll"
done
echo "drained"
# Stay: a restarted watcher would find the same state and drain again.
exec sleep infinity
