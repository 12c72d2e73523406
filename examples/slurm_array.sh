#!/bin/bash
# A search on a SLURM cluster: every task of the array is one more worker, and each may come and go.
#
#   sbatch examples/slurm_array.sh
#
# All of them run the same command. The study file names the database they share, which tells each what to train:
#
#   [study]
#   store = "postgresql+psycopg://me@database.cluster/searches"
#   checkpoints = "/shared/me/digits"                  # a folder that every node sees
#
# A worker that is killed, or whose node dies, gives its trial back; one that reaches its time limit saves it first.
# `haltune stop` ends the search politely, scancel at once; submit it again and it goes on where it was.

#SBATCH --job-name=haltune
#SBATCH --array=0-15
#SBATCH --time=04:00:00
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --signal=B:TERM@300
#SBATCH --output=haltune-%A-%a.out

# --signal=B: five minutes before the time limit haltune, and not what it started, gets SIGTERM (`exec` puts it in the place
# of the shell): the epoch under way ends, is saved, and its trial given back. Give longer epochs more than 300 seconds.

set -euo pipefail

STUDY=${STUDY:-/shared/me/digits.toml}
PROGRAM=${PROGRAM:-/shared/me/train_script.py}

exec haltune run --study "$STUDY" --logs "logs/$SLURM_ARRAY_JOB_ID" -- python "$PROGRAM"
