
# What each job script does first. Before it stand run, hedgerow, inside (the words that start a program in the image, or
# none), image and max_requeues.

# What a node may lack is said before a program fails by it.
if [ -n "$image" ] && ! command -v apptainer > /dev/null; then
  echo "hedgerow: node $(hostname) has no apptainer; load its module (slurm.modules), or leave slurm.container out" >&2
  exit 5
fi
if [ -n "$image" ] && [ ! -r "$image" ]; then
  echo "hedgerow: node $(hostname) does not see the image $image; put it on a file system that all nodes share" >&2
  exit 5
fi

# Signals reach the batch shell alone. It hands them on (as SIGUSR1: srun answers SIGTERM by killing its tasks), remembers
# them, and tells the end of the command from the interruption of its own wait.
told='' signals=0 child='' tender=''
hand_on() { told=$1 signals=$((signals + 1)); [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null; }
trap 'hand_on limit' USR1  # the wall-time limit is near, or Slurm preempts and says so
trap 'hand_on end' TERM    # Slurm ends the job: preempted, or cancelled

supervise() {  # supervise COMMAND...: its exit code is in $code
  local seen
  "$@" &
  child=$!
  [ "$signals" = 0 ] || kill -USR1 "$child"  # it came in between
  while :; do
    seen=$signals
    wait "$child"
    code=$?
    [ "$seen" = "$signals" ] && break
  done
  [ "$code" = 138 ] && code=4  # told before it could listen
  child=
}

# Slurm counts the rounds. A cancelled job is not running any more when it hears of it.
back_to_the_queue() {
  if [ "${SLURM_RESTART_COUNT:-0}" -ge "$max_requeues" ]; then
    echo "hedgerow: requeued $max_requeues times, which is slurm.max_requeues; submit it again to go on" >&2
    return
  fi
  if [ "$told" = end ] && [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T 2>/dev/null)" != RUNNING ]; then
    return
  fi
  echo "hedgerow: round $((${SLURM_RESTART_COUNT:-0} + 1)) is over, checkpointed; job $SLURM_JOB_ID goes back to the queue"
  scontrol requeue "$SLURM_JOB_ID"
}
