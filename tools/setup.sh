# shellcheck shell=bash disable=SC2034,SC2154  # It shares `root`, `venv`, `nvcc` and `nvcc_note` with ./dev.
# What a fresh Debian 12 or Ubuntu 24.04 machine lacks to build Troupe. Sourced by ./dev, which sets
# `root` and `venv`; nothing runs when it is read.
#   setup        does all steps that are not done yet; prints nothing where there is nothing to do
#   find_nvcc    sets `nvcc` (empty: none) and `nvcc_note`
# A finished step leaves the hash of what it installed in .venv/.done/, so a second run skips it and
# a changed requirements file runs it again.

# <package>:<command>, or <package> alone where dpkg must be asked. Same names on both systems.
# python3-dev is torch.compile's, which tests call.
apt_packages=(
  ca-certificates g++:g++ cmake:cmake ninja-build:ninja ccache:ccache git:git
  python3:python3 python3-venv python3-dev universal-ctags:ctags
  libyaml-cpp-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libxxhash-dev libcli11-dev
  libicu-dev libpcre2-dev libsentencepiece-dev libcurl4-openssl-dev zlib1g-dev libzstd-dev
  libgtest-dev libbenchmark-dev
)
cuda_major=13     # PyTorch's: a second CUDA runtime of another major version may not share its process
python_minor=11   # 3.11 is Debian 12's

say() { printf '%s\n' "$*"; }
die() { printf 'dev: %s\n' "$@" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
has_gpu() { [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version || -e /dev/dxg ]]; }

# --- steps: what, how long, n of m -------------------------------------------------------------

log=$root/build/setup.log
step_names=() step_commands=()
plan() {  # plan <what> <command...>: a step for run_plan
  step_names+=("$1")
  step_commands+=("$(printf '%q ' "${@:2}")")
}

run_plan() {
  local i
  for i in "${!step_names[@]}"; do
    run_step "[$((i + 1))/${#step_names[@]}] ${step_names[i]}" "${step_commands[i]}"
  done
  step_names=() step_commands=()
}

# One step, its output in the log; the log's end is shown when it fails.
run_step() {
  local what=$1 begin=$SECONDS pid
  mkdir -p "$(dirname "$log")"
  printf '%s ...' "$what"
  (eval "$2") >"$log" 2>&1 </dev/null &
  pid=$!
  while [[ -t 1 ]] && sleep 1 && kill -0 $pid 2>/dev/null; do
    printf '\r%s ... %d s' "$what" $((SECONDS - begin))
  done
  if ! wait $pid; then
    say " failed"
    tail -n 15 "$log" >&2
    explain_failure "$what"
  fi
  [[ -t 1 ]] && printf '\r%s ...' "$what"
  say " done in $((SECONDS - begin)) s"
}

explain_failure() {
  if grep -qiE 'no space left|not enough free space' "$log"; then
    die "$1 failed: the disk is full. Free some space and run the same command again."
  elif grep -qiE 'resolv|connect|timed? ?out|unreachable|network|ssl|proxy|from versions: none' "$log"; then
    die "$1 failed, it seems for want of a network (full log: $log)." \
        "Behind a proxy set https_proxy; with a mirror of PyPI set PIP_INDEX_URL." \
        "Then run the same command again: what is done stays done."
  fi
  die "$1 failed; full log: $log"
}

mark() { sha256sum <"$root/tools/requirements/$1.txt" | cut -c1-16; }
is_done() { [[ $(cat "$venv/.done/$1" 2>/dev/null) == "$(mark "$1")" ]]; }

# --- system packages ---------------------------------------------------------------------------

missing_packages() {
  local entry installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' 2>/dev/null |
              sed -n 's/^installed \([^:]*\).*/\1/p')
  for entry in "${apt_packages[@]}"; do
    [[ $entry == *:* ]] && have "${entry#*:}" && continue
    grep -qxF "${entry%%:*}" <<<"$installed" || printf '%s ' "${entry%%:*}"
  done
}

install_packages() {  # install_packages <how to become root> <package...>
  local as_root=$1
  shift
  # A list of some other repository may be out of reach; what matters is whether the packages are.
  $as_root apt-get update || true
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

can_sudo() { have sudo && { sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; }; }; }

plan_packages() {
  local missing as_root=
  if ! have apt-get; then
    have g++ && have cmake && have ninja && have python3 && return
    die "this is neither Debian nor Ubuntu: install what these packages hold, then try again:" \
        "  $(printf '%s ' "${apt_packages[@]%%:*}")"
  fi
  missing=$(missing_packages)
  [[ -z $missing ]] && return
  if [[ $EUID -ne 0 ]]; then
    if ! can_sudo; then
      die "these system packages are missing, and installing them needs root:" \
          "  apt-get install -y $missing" "Have it run, then try again."
    fi
    as_root=sudo
  fi
  # shellcheck disable=SC2086  # A list of words on purpose.
  plan "system packages: $missing" install_packages "$as_root" $missing
}

# --- Python ------------------------------------------------------------------------------------

find_python() {
  local name
  for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    have "$name" && "$name" -c "import sys; sys.exit(sys.version_info < (3, $python_minor))" &&
      python=$name && return
  done
  die "Python 3.$python_minor or newer is needed, and $(python3 --version 2>&1 || true) is here." \
      "Install one and name it: PYTHON=/path/to/python3 ./dev setup"
}

plan_venv() {
  "$venv/bin/python" -c 'import pip' 2>/dev/null && return
  rm -rf "$venv/.done"
  plan "virtual environment .venv" make_venv
}

make_venv() {
  find_python
  "$python" -m venv --clear "$venv"
}

# plan_wheels <requirements file> <GB> <what> [pip option...]
plan_wheels() {
  local free
  is_done "$1" && return
  free=$(df -Pk "$root" | awk 'NR == 2 {print int($4 / 1000000)}')
  [[ $free -ge $2 ]] || die "$3 needs $2 GB of disk, and $free GB are free in $root"
  plan "$3" install_wheels "$1" "${@:4}"
}

install_wheels() {
  [[ $1 != torch_cuda ]] || find "$venv" -lname libcuda_stand_in.so -delete
  "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off \
    "${@:2}" -r "$root/tools/requirements/$1.txt"
  case $1 in
    nvcc) link_wheel_toolkit ;;
    torch_cpu) "$venv/bin/python" "$root/tools/cuda_stand_ins.py" "$(site_packages)" ;;
  esac
  mkdir -p "$venv/.done"
  mark "$1" >"$venv/.done/$1"
}

# --- CUDA --------------------------------------------------------------------------------------

site_packages() { printf '%s\n' "$venv"/lib/python3*/site-packages; }
wheel_toolkit() { printf '%s\n' "$(site_packages)/nvidia/cu$cuda_major"; }

# On a machine without a GPU CUDA's libraries, 4.7 GB, are installed for who asks: ./dev setup --cuda. What
# was asked for once stays.
asked_for_cuda=
wants_cuda() { [[ -n $asked_for_cuda ]] || has_gpu || is_done torch_cuda; }

find_nvcc() {
  local candidate release toolkit
  nvcc='' nvcc_note='no CUDA compiler: the CUDA half is not built'
  toolkit=$(wheel_toolkit)
  for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" \
                   /usr/local/cuda/bin/nvcc "$toolkit/bin/nvcc"; do
    [[ -x $candidate && ! -d $candidate ]] || continue
    release=$("$candidate" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    if [[ ${release%%.*} == "$cuda_major" ]]; then
      if wants_cuda; then
        nvcc=$candidate nvcc_note="nvcc $release, $candidate"
      else
        nvcc_note="no GPU: the CUDA half is not built (./dev setup --cuda has it built with $candidate)"
      fi
      return
    fi
    nvcc_note="nvcc $release in $candidate is passed over: PyTorch is built with CUDA $cuda_major"
  done
}

# The compiler's wheels hold versioned libraries alone and a folder lib; toolkits have lib64 and
# names without a version, which is where CMake looks.
link_wheel_toolkit() {
  local toolkit library
  toolkit=$(wheel_toolkit)
  for library in "$toolkit"/lib/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  ln -sfn lib "$toolkit/lib64"
}

# --- all ---------------------------------------------------------------------------------------

# setup [--cuda | --program]: with --cuda the CUDA half on a machine without a GPU too; with --program what
# builds and runs the program alone: the Python libraries that tests and checks need, a minute, come later.
setup() {
  local begin=$SECONDS planned
  [[ ${1:-} != --cuda ]] || asked_for_cuda=1
  [[ ${1:-} == --program ]] || apt_packages+=(strace:strace)  # tests of faults look at what a program asks the kernel
  find_nvcc
  plan_packages
  plan_venv
  if wants_cuda; then
    plan_wheels torch_cuda 10 "PyTorch with its CUDA libraries (4.7 GB)"
    plan_wheels cutlass 1 "CUTLASS headers" --no-deps
    plan_wheels cudnn 1 "cuDNN's frontend headers" --no-deps
    if [[ -z $nvcc || $nvcc == "$(wheel_toolkit)"/* ]]; then
      plan_wheels nvcc 2 "CUDA compiler and headers" --no-deps
    fi
  else
    plan_wheels torch_cpu 4 "PyTorch, the CPU part (1.3 GB)" --no-deps
  fi
  if [[ ${1:-} != --program ]]; then
    plan_wheels python 1 "Python libraries for tests"
    plan_wheels newest 1 "the newest transformers, beside the pinned one" --no-deps --upgrade --target "$venv/newest"
    plan_wheels oracles 1 "tokenizers, llama.cpp and TRL to compare with" --no-deps
    plan_wheels types 1 "mypy, which reads the types of the Python package" --no-deps
    plan_wheels lint 1 "clang-format and clang-tidy"
  fi
  planned=${#step_names[@]}
  run_plan
  find_nvcc
  [[ $planned -eq 0 ]] || say "set up in $((SECONDS - begin)) s"
}
