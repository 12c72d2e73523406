#!/bin/bash
# A search in a SLURM job that is requeued at its time limit and then continues.
#
#   sbatch examples/slurm_requeue.sh
#
# Five minutes before the limit, SLURM sends SIGUSR1 to the program of srun. haltune finishes and saves the epoch, and gives
# the trial back. The program exits with 138, and the job is requeued. If your epochs are longer, use more than 300 seconds.

#SBATCH --job-name=haltune
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300
#SBATCH --output=haltune-%j.out

srun python "${PROGRAM:-search.py}"
code=$?
if [ "$code" -eq 138 ]; then  # 128 + 10, the number of SIGUSR1
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
