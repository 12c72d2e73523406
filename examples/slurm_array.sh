#!/bin/bash
# A search on a SLURM cluster: every task of the array is a worker. Workers may start and stop at any time.
#
#   sbatch examples/slurm_array.sh
#
# All workers run the same command. The study file names their shared database, from which each worker gets its trials:
#
#   [study]
#   store = "postgresql+psycopg://me@database.cluster/searches"
#   checkpoints = "/shared/me/digits"                  # a folder that every node can read and write
#
# If a worker is killed or its node fails, its trial is given back. At its time limit, a worker first saves its trial.
# scancel ends tasks within KillWait, usually 30 s. `haltune stop` ends them after their current epochs: then call `haltune resume`
# before you submit the job again.

#SBATCH --job-name=haltune
#SBATCH --array=0-15
#SBATCH --time=04:00:00
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --signal=B:TERM@300
#SBATCH --output=haltune-%A-%a.out

# --signal=B: five minutes before the time limit, haltune alone gets SIGTERM, because `exec` replaces the shell by haltune.
# The current epoch ends and is saved, and the trial is given back. If your epochs are longer, use more than 300 seconds.

set -euo pipefail

STUDY=${STUDY:-/shared/me/digits.toml}
PROGRAM=${PROGRAM:-/shared/me/train_script.py}

exec haltune run --study "$STUDY" --logs "logs/$SLURM_ARRAY_JOB_ID" -- python "$PROGRAM"
