
# With an image, in a job that starts workers or ranks: $workers and $ranks are the launchers beside this script, or empty.

trap 'hand_on failed' USR2

says() { grep -qs "$1" "$run/logs/status.json"; }

# hedgerow in its image has neither srun nor mpirun. So this shell starts what the run wants, again whenever that has ended.
# Launchers that end at once five times in a row end the job, as a coordinator would that tends them itself.
tend() {
  local over='' failures=0 begun launcher code
  trap 'over=1' USR1 TERM
  while [ -z "$over" ]; do
    launcher=
    # The coordinator makes the folder of the logs, and has no room for workers while it stops.
    [ -d "$run/logs" ] && ! says '"has_room":false' && launcher=$workers
    [ -n "$ranks" ] && says 'waits for its ranks' && launcher=$ranks
    if [ -z "$launcher" ]; then
      sleep 1
      continue
    fi
    begun=$SECONDS
    "$run/slurm/$launcher"
    code=$?
    [ -z "$over" ] || break
    failures=$((failures + 1))
    [ "$code" != 0 ] && [ "$code" != 4 ] && [ $((SECONDS - begun)) -lt 30 ] || failures=0
    if [ "$failures" = 5 ]; then
      echo "hedgerow: $run/slurm/$launcher ended with $code at once, five times; $run/logs says why" >&2
      kill -USR2 $$
      break
    fi
    sleep "$((failures + 1))"
  done
}

end_tending() {
  local second
  kill -USR1 "$tender" 2>/dev/null
  for second in {1..20}; do  # of workers that were just told; those that stay go with the job
    kill -0 "$tender" 2>/dev/null || break
    sleep 1
  done
  [ "$told" != failed ] || exit 5
}

tend &
tender=$!
