#!/bin/bash
# Waits until this instance has to go, then lets the agent drain: when autoscaling wants it gone, and says so by the
# lifecycle hook until it is told that the agent has ended; or when EC2 takes a spot instance back, in two minutes.
# The load balancer stops sending new connections by itself when the instance is put into Terminating:Wait, and when
# the agent, draining, isn't ready any more.
# From the environment: AWS_REGION, AUTOSCALING_GROUP, DRAIN_HOOK, IMDS and POLL_SECONDS (for tests).
set -euo pipefail

imds=${IMDS:-http://169.254.169.254}/latest
poll=${POLL_SECONDS:-5}

# A failed look, and a fact that there isn't, is empty: it comes again.
fact() {
  local token
  token=$(curl -sf -m 3 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/api/token") || return 0
  curl -sf -m 3 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1" || true
}

is_terminated() { [[ $(fact autoscaling/target-lifecycle-state) == Terminated ]]; }

until is_terminated; do
  if [[ -n $(fact spot/instance-action) ]]; then
    echo "EC2 takes this spot instance back"
    break
  fi
  sleep "$poll"
done

echo "draining"
# SIGTERM; returns when the agent has ended, or was killed after TimeoutStopSec. Either way the instance goes:
# what was acknowledged is in the object store and the database.
systemctl stop tailrace-agent.service || echo "the agent did not stop cleanly"

# After a spot notice autoscaling may want it gone, too; where it doesn't, the instance ends here.
until is_terminated; do
  sleep "$poll"
done
instance=$(fact instance-id)
until aws autoscaling complete-lifecycle-action --region "$AWS_REGION" \
  --auto-scaling-group-name "$AUTOSCALING_GROUP" --lifecycle-hook-name "$DRAIN_HOOK" \
  --instance-id "$instance" --lifecycle-action-result CONTINUE; do
  sleep "$poll"
done
echo "drained"
# Stay: a restarted watcher would find the same state and drain again.
exec sleep infinity
