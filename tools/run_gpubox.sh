#!/bin/sh
# Trains in GPUBox mode on one machine: servers that hold the rows in memory and on disk, and one
# worker with its devices. Further arguments go to the command, such as: -o runner.use_gpu=False
#
#   sh tools/run_gpubox.sh
#   SC="python -u tools/static_gpubox_trainer.py -m models/rank/dnn/config_gpubox.yaml" \
#       sh tools/run_gpubox.sh
set -eu

# One server for each address; set a free port if 29011 is occupied.
export PADDLE_PSERVERS_IP_PORT_LIST="${PADDLE_PSERVERS_IP_PORT_LIST:-127.0.0.1:29011}"
# Devices of the worker.
export FLAGS_selected_gpus="${FLAGS_selected_gpus:-0}"
# What every process runs.
SC="${SC:-regatta train -m models/rank/dnn/config_gpubox.yaml}"
LOG="${LOG:-./log}"

export PADDLE_TRAINERS=1
export PADDLE_TRAINERS_NUM=1
mkdir -p "$LOG"

servers=
stop_servers() {
    for pid in $servers; do
        kill "$pid" 2>/dev/null || true
    done
}
trap stop_servers EXIT
trap 'exit 130' INT TERM

number=0
for address in $(echo "$PADDLE_PSERVERS_IP_PORT_LIST" | tr ',' ' '); do
    echo "server $number at $address, log $LOG/pserver.$number.log"
    TRAINING_ROLE=PSERVER POD_IP="${address%:*}" PADDLE_PORT="${address##*:}" \
        $SC "$@" >"$LOG/pserver.$number.log" 2>&1 &
    servers="$servers $!"
    number=$((number + 1))
done

echo "worker 0, devices $FLAGS_selected_gpus, log $LOG/worker.0.log"
code=0
TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 POD_IP=127.0.0.1 \
    $SC "$@" >"$LOG/worker.0.log" 2>&1 || code=$?
if [ "$code" -ne 0 ]; then
    echo "the worker failed with exit code $code; its last lines:" >&2
    tail -n 5 "$LOG/worker.0.log" >&2
    exit "$code"
fi
# Servers end by themselves when the worker has left.
for pid in $servers; do
    wait "$pid" || code=$?
done
servers=
echo "done, logs in $LOG"
exit "$code"
