#!/usr/bin/env bash
# Trains and measures a BERT ranker on several machines of a SLURM cluster:
#     sbatch --nodes 2 --gpus-per-node 4 --ntasks-per-node 4 scripts/slurm.sh bert_model1_full --data msmarco_doc --data.path DIR
# One task a GPU: Lightning finds nodes, ranks and the address of the first node in SLURM's environment.
#SBATCH --job-name=lexical-translation
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=SIGTERM@120
#SBATCH --requeue
set -euo pipefail

model=${1:?usage: sbatch scripts/slurm.sh MODEL [further arguments of train.py]}
shift
devices=${SLURM_NTASKS_PER_NODE:-1}
nodes=${SLURM_JOB_NUM_NODES:-1}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# The data is prepared in one process before the others start: they find it in the cache.
srun --nodes 1 --ntasks 1 --ntasks-per-node 1 .venv/bin/python train.py --model bm25_lemm "$@"
# A job that was ended and put back in the queue goes on from its last checkpoint: the same command does that.
srun .venv/bin/python train.py --model "$model" --trainer.devices "$devices" --trainer.num_nodes "$nodes" "$@"
srun .venv/bin/python evaluate.py --models "$model" --trainer.devices "$devices" --trainer.num_nodes "$nodes" "$@"
