#!/usr/bin/env bash
# Troupe in a container, with this working tree in it:
#   ./docker.sh                                        a shell in this folder
#   ./docker.sh troupe train recipes/quickstart.yaml   one command; what it writes here is yours
#   ./docker.sh --build [command...]                   the image anew first, of the sources as they are
# The Dockerfile beside makes the image, the first time. GPUs are handed in where there are any.
# DOCKER=podman takes another engine, IMAGE another name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
docker=${DOCKER:-docker} image=${IMAGE:-troupe}

command -v "$docker" >/dev/null || {
  echo "docker.sh: there is no $docker here: install it, or name an engine that is (DOCKER=podman)" >&2
  exit 7
}
build=no
if [[ ${1:-} == --build ]]; then build=yes; shift; fi
if [[ $build == yes ]] || ! "$docker" image inspect "$image" >/dev/null 2>&1; then
  "$docker" build --tag "$image" "$here"
fi

# Ranks of one machine share memory, NCCL pins it, and a core has a large stack.
options=(--rm --ipc host --ulimit memlock=-1 --ulimit stack=67108864
         --user "$(id -u):$(id -g)" --env HOME=/tmp --volume "$here:$here" --workdir "$here")
[[ -t 0 && -t 1 ]] && options+=(--interactive --tty)
[[ -e /dev/nvidiactl || -e /dev/dxg ]] && options+=(--gpus all)
[[ $# -gt 0 ]] || set -- bash
exec "$docker" run "${options[@]}" "$image" "$@"
