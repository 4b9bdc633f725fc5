#!/usr/bin/env bash
# Runs a pack of tools/gpu_pack.py, in which this file is run.sh, on a machine with a GPU:
#   run.sh check               what this machine lacks for it; nothing is run
#   run.sh test [PROGRAM...]   the cases for CUDA of all test programs, or of these
#   run.sh sanitize [PROGRAM...]  the same under memcheck, racecheck and synccheck: of sanitized.txt, or of these
#   run.sh speed [NAME...]     the commands of speed.txt, one after another, or these
#   run.sh python              tests/troupe_gpu_test.py: two runs of a recipe have the same bits; tests/gpu_code_test.py
#   run.sh ptx OTHER           of a build that has PTX alone: the kernels' cases with CUDA_FORCE_PTX_JIT=1, and a training
#                              run beside that of OTHER, the folder of another build's pack (tools/gpu_ptx.py)
#   run.sh                     test, sanitize, speed
# Each program has a log, $OUT/STEP.PROGRAM.log ($OUT: logs/ where it is not set), and a line in $OUT/summary.txt. Ends
# with 1 where one failed or took too long, with 7 where something is missing here.
#   TEST_LIMIT=300 SANITIZE_LIMIT=180 SPEED_LIMIT=180   seconds a program may take
#   JOBS=4        test programs at a time; what is timed and what is sanitized runs alone
#   TOOLS="memcheck racecheck synccheck"   CASES='*some*'   (these alone)   PYTHON=python3
#   TAR=1         at the end the logs become one file, $OUT/logs.tar.gz
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit
here=$PWD
OUT=${OUT:-$here/logs} PYTHON=${PYTHON:-python3} JOBS=${JOBS:-4} TOOLS=${TOOLS:-memcheck racecheck synccheck}
TEST_LIMIT=${TEST_LIMIT:-300} SANITIZE_LIMIT=${SANITIZE_LIMIT:-180} SPEED_LIMIT=${SPEED_LIMIT:-180}
{ read -r torch_version; read -r commit; } <build.txt
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 7

step=${1:-all}
case $step in
  all | check | test | sanitize | speed | python | ptx) shift $(($# > 0)) ;;
  *) sed -n '2,/^set/p' run.sh | sed '$d' >&2; exit 2 ;;
esac

missing() { printf 'run.sh: %s\n' "$@" >&2; exit 7; }

site=$("$PYTHON" -c 'import pathlib, torch; print(torch.__version__.split("+")[0], pathlib.Path(torch.__file__).parents[1])') ||
  missing "$PYTHON has no PyTorch: name one that has with PYTHON=/path/to/python3"
[[ ${site%% *} == "$torch_version" ]] ||
  missing "the PyTorch of $PYTHON is ${site%% *}, and the pack was built with $torch_version"
site=${site#* }
libraries=$here/build:$site/torch/lib
for folder in cu13 cudnn nccl; do libraries+=:$site/nvidia/$folder/lib; done
export LD_LIBRARY_PATH=$libraries:${LD_LIBRARY_PATH:-} TROUPE_BUILD=$here/build OMP_WAIT_POLICY=passive

unfound=$(ldd build/*_test build/*_speed build/*_bench build/troupe build/*.so* 2>/dev/null |
          sed -n 's/^\s*\(\S*\) => not found.*/\1/p' | sort -u | grep -vE '^lib(cuda|nvidia-ml)\.so') || true
[[ -z $unfound ]] || missing "libraries that neither the pack nor this machine has:" $unfound
[[ -e /dev/nvidiactl || -e /dev/dxg ]] || missing "there is no GPU here; all else that the pack needs is"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null |
            tail -n 1)

# one STEP NAME LIMIT COMMAND...: runs it under the limit, and says how it ended.
one() {
  local step=$1 name=$2 limit=$3 begin=$SECONDS code=0 said
  shift 3
  timeout --kill-after 10 "$limit" "$@" >"$OUT/$step.$name.log" 2>&1 || code=$?
  case $code in
    0) said=passed ;;
    124 | 137) said="TOO LONG, over $limit s" ;;
    *) said="FAILED with $code" ;;
  esac
  printf '%-10s %-40s %4d s  %s\n' "$step" "$name" $((SECONDS - begin)) "$said" | tee -a "$OUT/summary.txt"
  [[ $code -eq 0 ]]
}

filter_of() { [[ -n ${CASES:-} ]] && echo "$CASES" || sed -n "s/^$1 //p" tests.txt; }

test_program() {
  one test "$1" "$TEST_LIMIT" "build/$1" --gtest_filter="$(filter_of "$1")" \
    "--gtest_output=json:$here/build/test_results/$1.json"
}

step_check() { echo "run.sh: nothing is missing; compute-sanitizer: ${sanitizer:-none}"; }

step_test() {
  local code=0
  rm -rf build/test_results
  export -f one test_program filter_of
  export OUT TEST_LIMIT CASES here
  { [[ $# -gt 0 ]] && printf '%s\n' "$@" || cut -d' ' -f1 tests.txt; } |
    xargs -P "$JOBS" -I{} bash -c 'test_program {}' || code=1
  { "$PYTHON" tools/tests.py count build; "$PYTHON" tools/tests.py cuda build; } | tee -a "$OUT/summary.txt"
  return $code
}

step_sanitize() {
  local code=0 name tool
  [[ -n $sanitizer ]] || missing "there is no compute-sanitizer on the path or under /usr/local/cuda"
  for name in $([[ $# -gt 0 ]] && echo "$@" || cat sanitized.txt); do
    for tool in $TOOLS; do
      one "$tool" "$name" "$SANITIZE_LIMIT" "$sanitizer" --tool "$tool" --error-exitcode 9 "build/$name" \
        --gtest_filter="$(filter_of "$name")" || code=1
    done
  done
  return $code
}

step_speed() {
  local code=0 name words
  for name in "$@"; do
    grep -q "^$name " speed.txt || missing "speed.txt has no $name, but: $(cut -d' ' -f1 speed.txt | tr '\n' ' ')"
  done
  while read -r name words <&3; do
    [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
    words=${words/#python3/$PYTHON}
    # shellcheck disable=SC2086  # A command's words on purpose.
    one speed "$name" "$SPEED_LIMIT" $words || code=1
  done 3<speed.txt
  return $code
}

step_python() {
  local code=0 name
  for name in troupe_gpu_test gpu_code_test; do
    one python "$name" "$((3 * TEST_LIMIT))" "$PYTHON" tools/run_python_test.py "tests/$name.py" "$OUT/$name.json" || code=1
  done
  return $code
}

# With the variable machine code is left alone, PyTorch's too: so for programs without it.
step_ptx() {
  local code=0
  [[ -x ${1:-}/build/troupe ]] || missing "run.sh ptx OTHER: ${1:-OTHER} is no folder of a pack, with build/troupe in it"
  export CUDA_CACHE_MAXSIZE=4294967296
  # shellcheck disable=SC2046  # A word a program.
  CUDA_FORCE_PTX_JIT=1 step_test $(cat kernels.txt) || code=1
  one ptx training "$((4 * TEST_LIMIT))" "$PYTHON" tools/gpu_ptx.py build/troupe "$1/build/troupe" || code=1
  cat "$OUT/ptx.training.log" >>"$OUT/summary.txt"
  return $code
}

{ printf 'commit %s, PyTorch %s\n' "$commit" "$torch_version"; nvidia-smi -L; } >>"$OUT/summary.txt" 2>&1
code=0
case $step in
  all) for each in test sanitize speed; do "step_$each" || code=1; done ;;
  *) "step_$step" "$@" || code=1 ;;
esac
if [[ -n ${TAR:-} ]]; then (cd "$OUT" && tar czf logs.tar.gz ./*.log && rm -f ./*.log); fi
exit $code
