#!/usr/bin/env bash
# One run of a deployment with nothing but curl and python3. Exit code: 0 passed, 2 accuracy, 3 configuration,
# 4 timed out (the run is cancelled), 1 anything else. `assay trigger` does the same, and fetches the results as well.
#
#   PREFECT_API_URL=http://HOST:4200/api PREFECT_API_AUTH_STRING=USER:PASSWORD \
#     examples/ci/trigger.sh accuracy-debugger/ci '{"parameters": {"engine": {"model": "/models/m"}}}' pipeline-42 3600
set -euo pipefail

deployment=${1:?usage: trigger.sh FLOW/DEPLOYMENT PARAMETERS_AS_JSON [IDEMPOTENCY_KEY] [TIMEOUT_S]}
parameters=${2:-"{}"}
key=${3:-"ci-$(date +%s)-$$"}
timeout_s=${4:-7200}
api=${PREFECT_API_URL:?set PREFECT_API_URL, e.g. http://127.0.0.1:4200/api}
api=${api%/}

# The server answers 503, or 500 with "database is locked", when it is busy: tried again. The idempotency key makes
# trying again safe. The password goes in through a file descriptor, where `ps` does not show it.
request() { # METHOD PATH [BODY] -> prints "<body>\n<status>"
  local auth=()
  [[ -z ${PREFECT_API_AUTH_STRING:-} ]] || auth=(--config <(printf 'user = "%s"\n' "$PREFECT_API_AUTH_STRING"))
  local attempt answer status
  for attempt in 1 2 3 4 5 6 7 8; do
    answer=$(curl -sS --max-time 30 "${auth[@]}" -X "$1" -H 'content-type: application/json' \
      -w '\n%{http_code}' ${3:+--data "$3"} "$api$2") || answer=$'\n000'
    status=${answer##*$'\n'}
    case "$status:$answer" in
      000:* | 429:* | 502:* | 503:* | 504:* | 500:*"database is locked"*) sleep $((attempt < 5 ? attempt : 5)) ;;
      *) break ;;
    esac
    [[ -z ${PREFECT_API_AUTH_STRING:-} ]] || auth=(--config <(printf 'user = "%s"\n' "$PREFECT_API_AUTH_STRING"))
  done
  printf '%s' "$answer"
}
field() { # JSON on standard input, path as words -> the value, empty when there is none
  python3 -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]:
    value = (value or {}).get(name)
print("" if value is None else value)' "$@"
}
body() { printf '%s' "${1%$'\n'*}"; }
status() { printf '%s' "${1##*$'\n'}"; }

answer=$(request GET "/deployments/name/$deployment")
case $(status "$answer") in
  200) id=$(body "$answer" | field id) ;;
  401 | 403) echo "the server refuses us: set PREFECT_API_AUTH_STRING" >&2; exit 3 ;;
  404) echo "no deployment $deployment" >&2; exit 3 ;;
  *) echo "the API answers $(status "$answer")" >&2; exit 1 ;;
esac

payload=$(python3 -c '
import json, sys
print(json.dumps({"parameters": json.loads(sys.argv[1]), "idempotency_key": sys.argv[2], "tags": ["ci"]}))
' "$parameters" "$key") || { echo "the parameters are no JSON: $parameters" >&2; exit 3; }
answer=$(request POST "/deployments/$id/create_flow_run" "$payload")
case $(status "$answer") in
  200 | 201) run=$(body "$answer" | field id) ;;
  409 | 422) echo "the parameters are refused: $(body "$answer")" >&2; exit 3 ;;
  *) echo "the API answers $(status "$answer")" >&2; exit 1 ;;
esac
echo "run: ${api%/api}/runs/flow-run/$run"

told=""
end=$((SECONDS + timeout_s))
while :; do
  answer=$(request GET "/flow_runs/$run")
  [[ $(status "$answer") == 200 ]] || { echo "the API answers $(status "$answer")" >&2; exit 1; }
  type=$(body "$answer" | field state type)
  name=$(body "$answer" | field state name)
  now="$name: $(body "$answer" | field state message)"
  [[ $now == "$told" ]] || { echo "$now"; told=$now; }
  case "$type/$name" in
    COMPLETED/*) exit 0 ;;
    FAILED/AccuracyFailed) exit 2 ;;
    FAILED/ConfigurationFailed) exit 3 ;;
    FAILED/* | CRASHED/* | CANCELLED/*) exit 1 ;;
  esac
  if ((SECONDS >= end)); then
    request POST "/flow_runs/$run/set_state" '{"state": {"type": "CANCELLING", "name": "Cancelling"}}' >/dev/null
    echo "not over after $timeout_s s: cancelled" >&2
    exit 4
  fi
  sleep 3
done
