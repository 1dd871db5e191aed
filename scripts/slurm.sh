#!/usr/bin/env bash
# Trains a recipe in a Slurm allocation, one process per GPU, on any number of machines:
#   sbatch --nodes 2 --gpus-per-node 4 scripts/slurm.sh RECIPE --context 4 --out runs/NAME
# Arguments go to `kernelfield train`. The folder of --out must be on a disk that all machines see. A job that is
# requeued, or a process that dies, continues from the last checkpoint. Without GPUs, set PROCESSES to the number of
# processes per machine.
#SBATCH --job-name=kernelfield
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
processes=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}
echo "rendezvous at $head:${PORT:-29500}, $SLURM_NNODES machines of $processes processes"
exec srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "$processes" \
    --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d \
    --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-endpoint "$head:${PORT:-29500}" \
    -m kernelfield train "$@"
