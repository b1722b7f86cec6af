#!/usr/bin/env bash
# Trains and measures a ranker on the GPUs of a SLURM cluster, one task a GPU:
#
#     sbatch --nodes 2 scripts/slurm.sh bert_model1_full --data msmarco_doc --data.path DIR -- --model.pairs_at_once 4
#
# First the model, then what holds for every command (data, --output_dir), behind -- what is for train.py alone.
# Lightning finds nodes, ranks and the address of the first node in SLURM's environment. A job that has ended before it
# was done goes on from its last checkpoint (every five minutes) when it is submitted or put into the queue again.
#SBATCH --job-name=lexical-translation
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

model=${1:?usage: sbatch scripts/slurm.sh MODEL [arguments of all commands] [-- arguments of train.py]}
shift
everywhere=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do everywhere+=("$1"); shift; done
[ $# -eq 0 ] || shift
devices=${SLURM_NTASKS_PER_NODE:-1}
nodes=${SLURM_JOB_NUM_NODES:-1}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# Fields, index and candidates are prepared by one process, before many would wait for it.
one=(srun --nodes 1 --ntasks 1 --ntasks-per-node 1)
"${one[@]}" .venv/bin/python train.py "${everywhere[@]}" --data.stats
"${one[@]}" .venv/bin/python train.py --model bm25_lemm --skip_trained true "${everywhere[@]}"
all=(--trainer.devices "$devices" --trainer.num_nodes "$nodes")
srun .venv/bin/python train.py --model "$model" --skip_trained true "${all[@]}" "${everywhere[@]}" "$@"
srun .venv/bin/python evaluate.py --models "bm25_lemm,$model" "${all[@]}" "${everywhere[@]}"
