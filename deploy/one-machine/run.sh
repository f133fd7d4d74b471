#!/usr/bin/env bash
# A federation of real processes on this machine: a coordinator, its door and four hospitals, over TLS
# on loopback. The same commands, in the same order, serve on five machines.
#   deploy/one-machine/run.sh [FOLDER]      (default: federation-demo; it must not exist)
# The door is nginx where it is installed; DOOR=--no-nginx takes the small proxy.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
at=${1:-federation-demo}
sites="graz hanoi izmir jaipur"
port=${PORT:-18443}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

stop() {
  for site in $sites; do
    [ -f "$at/$site/settings.json" ] && consilia site down --at "$at/$site" >/dev/null || true
  done
  [ -f "$at/coordinator/settings.json" ] && consilia coordinator down --at "$at/coordinator" >/dev/null || true
}
trap stop EXIT

mkdir -p "$at"
consilia coordinator init "$at/coordinator" --federation "$here/federation.toml" --host localhost --port "$port"

for site in $sites; do # at each hospital
  consilia site init "$at/coordinator/invitations/$site.invitation" --data "dataset:phantom-lesions/$site" --at "$at/$site" --threads 1
done

for site in $sites; do # their enrolments come back
  consilia coordinator admit "$at/$site/$site.enrolment" --at "$at/coordinator"
done

consilia coordinator up --at "$at/coordinator" ${DOOR:-}
for site in $sites; do consilia site up --at "$at/$site" & done
wait

consilia coordinator run "$here" --at "$at/coordinator" --out "$at/run"
consilia coordinator status --at "$at/coordinator"
consilia site ledger --at "$at/hanoi"
consilia report "$at/run"
