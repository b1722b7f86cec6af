#!/usr/bin/env bash
# Train and measure a ranker on the GPUs of a SLURM cluster, one task a GPU:
#
#     sbatch --nodes 2 scripts/slurm.sh bert_model1_full --data msmarco_doc --data.path DIR -- --model.pairs_at_once 4
#
# First the model, then the options of every command (data, --output_dir); after -- the options of train.py alone.
# Lightning reads nodes, ranks and the address of the first node from SLURM's environment. A job that ended early resumes
# from its last checkpoint (every five minutes) when it is submitted or queued again.
#SBATCH --job-name=lexical-translation
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

model=${1:?usage: sbatch scripts/slurm.sh MODEL [options of all commands] [-- options of train.py]}
shift
everywhere=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do everywhere+=("$1"); shift; done
[ $# -eq 0 ] || shift
devices=${SLURM_NTASKS_PER_NODE:-1}
nodes=${SLURM_JOB_NUM_NODES:-1}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# One process prepares fields, index and candidates, so that the others need not wait on a GPU.
single=(srun --nodes 1 --ntasks 1 --ntasks-per-node 1)
"${single[@]}" .venv/bin/python train.py "${everywhere[@]}" --data.stats
"${single[@]}" .venv/bin/python train.py --model bm25_lemm --skip_trained true "${everywhere[@]}"
all=(--trainer.devices "$devices" --trainer.num_nodes "$nodes")
srun .venv/bin/python train.py --model "$model" --skip_trained true "${all[@]}" "${everywhere[@]}" "$@"
srun .venv/bin/python evaluate.py --models "bm25_lemm,$model" "${all[@]}" "${everywhere[@]}"
