#!/bin/bash
# Follows the rotation of the database's password: writes the settings again and restarts the server if
# they differ. Connections that are open stay good meanwhile; another server takes the lease.
set -euo pipefail

if [[ $(/usr/local/lib/tailrace/write_config.sh) == changed ]]; then
  echo "the settings changed (a rotated password): restarting"
  systemctl try-restart tailrace-sequencer.service
fi
