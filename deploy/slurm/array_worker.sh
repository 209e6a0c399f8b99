
# The end of an array's task: $srun are the words that start one worker a task, $coordinator_job is a file with the number
# of the job that coordinates.

# Whether the job that coordinates is over; not if Slurm does not answer.
coordinator_is_over() {
  local said
  if said=$(squeue --noheader --job "$(cat "$coordinator_job")" --format %T 2>&1); then
    [ -z "$said" ]
  else
    [[ $said = *"Invalid job id"* ]]
  fi
}

has_room() { [[ $("${inside[@]}" "$hedgerow" status --run "$run" --json 2>&1) != *'"has_room":false'* ]]; }

while [ -z "$told" ]; do
  supervise "${srun[@]}" "${inside[@]}" "$hedgerow" worker --run "$run" --wait "$wait_s"
  [ -z "$told" ] || break
  coordinator_is_over && exit 0
  [ "$code" = 2 ] && exit 2  # another version, or no such run: the same again would end the same
  # 4 without a word to this shell: the coordinator has no room now, for which the next one waits; else the step alone was
  # ended, as when Slurm is about to preempt the job.
  pause=5
  [ "$code" = 4 ] && has_room && pause=40
  supervise sleep "$pause"
  coordinator_is_over && exit 0
done
back_to_the_queue
exit 4
