# Runs in the compactor's container as `sh -ec`. From the task's environment: DATABASE_LOGIN (the secret as
# JSON), DATABASE_HOST, DATABASE_PORT, DATABASE_NAME. Tailrace reads its settings from TAILRACE_* variables.
# The password may hold any character; in a URL it must be quoted.
login=$(python3 -c '
import json, os, urllib.parse
secret = json.loads(os.environ["DATABASE_LOGIN"])
print(":".join(urllib.parse.quote(secret[key], safe="") for key in ("username", "password")))
')
export TAILRACE_DATABASE="postgresql+asyncpg://$login@$DATABASE_HOST:$DATABASE_PORT/$DATABASE_NAME?ssl=verify-full"
unset DATABASE_LOGIN
exec tailrace compact
