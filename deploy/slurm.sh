#!/usr/bin/env bash
#SBATCH --job-name=muxrl
#SBATCH --nodes=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=muxrl-%j.log
# A run that outlives its job: sbatch deploy/slurm.sh CONFIG [key=value ...]
#
# Five minutes before the time limit SLURM sends SIGTERM to this script: the run ends cleanly, with
# a checkpoint, and the job queues again, which goes on from there. One that has reached its stop
# condition, or failed, is not queued again. With SLURM 22.05 a job was requeued twice and completed.
set -uo pipefail

base="runs/slurm-$SLURM_JOB_ID" # a job keeps its number when it is queued again
run=""
for candidate in "$base".*; do # the one of these that has a checkpoint
	[[ -e $candidate/checkpoints/last ]] && run=$candidate
done
if [[ $run ]]; then
	muxrl launch --resume "$run" --no-progress &
else
	muxrl launch "$@" --run-dir "$base.${SLURM_RESTART_COUNT:-0}" --no-progress &
fi
child=$!
is_over_time=""
trap 'is_over_time=1; kill -TERM "$child"' TERM
wait "$child"
code=$?
if [[ $is_over_time ]]; then # the signal ended the first wait
	wait "$child"
	code=$?
fi
if [[ $is_over_time && $code -eq 130 ]]; then
	scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
