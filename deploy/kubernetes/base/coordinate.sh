#!/bin/sh
# The coordinator's pod: `hedgerow run`, and what its exit code means to Kubernetes, which restarts whatever ends here.
#   1 failed, 5 environment   end with that code: it is started again, ever later, and goes on
#   0 done, 2 usage, 3 partial   starting again would help nobody (3: it would retry what is quarantined, for ever): stay,
#                             so that `kubectl exec` and `kubectl logs` still answer; the readiness probe says no
#   4 interrupted             after SIGTERM (eviction, deletion) end; else `hedgerow stop` asked for it: stay
# A file cluster.toml beside the recipe says what the workers' nodes are: then what does not fit them is refused at once. Without
# it the run waits for the first workers and is cut for those.
# Usage: coordinate.sh RUN_DIRECTORY RECIPE
set -u

signals=0 child=
tell() {
  signals=$((signals + 1))
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
trap tell TERM INT

cluster=$(dirname "$2")/cluster.toml
[ -e "$cluster" ] && set -- "$1" "$2" --cluster "$cluster"
run=$1 recipe=$2
shift 2
hedgerow run --run "$run" --recipe "$recipe" --workers 0 "$@" &
child=$!
[ "$signals" = 0 ] || kill -TERM "$child"  # the signal came before there was a child
while :; do  # a signal ends `wait`, not the child, whose code sh keeps; `kill -0` would miss one that sh has reaped already
  seen=$signals
  wait "$child"
  again=$?
  [ "$again" = 127 ] || code=$again  # 127: it had said so, and a signal came between
  [ "$seen" = "$signals" ] && break
done
child=

[ "$signals" = 0 ] || exit "$code"
case $code in
  0 | 2 | 3 | 4)
    echo "hedgerow run ended with exit code $code; this pod stays for 'kubectl exec' until it is deleted" >&2
    while [ "$signals" = 0 ]; do  # a signal between these lines is seen a second later
      sleep 1 &
      child=$!
      wait "$child"
    done
    ;;
esac
exit "$code"
