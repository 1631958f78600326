#!/bin/sh
# Sets up what Lifeboat's router is compared with: nginx from the system's packages, sglang-router and vllm-router from pip
# in an environment of their own. Changes nothing that is there already; `--check` only tells what is missing.
#
#   benchmark/comparison/setup.sh [--check] [FOLDER]      FOLDER: where the environment goes (default target/peers)

set -eu

SGLANG_ROUTER=0.3.2
VLLM_ROUTER=0.1.17

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

nginx_program() {
    command -v nginx 2>/dev/null || { [ -x /usr/sbin/nginx ] && echo /usr/sbin/nginx; }
}

install_nginx() {
    if nginx_program >/dev/null; then
        return
    fi
    [ "$check" = no ] || fail "nginx was not found" "run this without --check, or install your system's package nginx"
    command -v apt-get >/dev/null 2>&1 || fail "nginx was not found" "install your system's package nginx"
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo=sudo
    fi
    $sudo apt-get install -y --no-install-recommends nginx-light || $sudo apt-get install -y nginx
}

install_routers() {
    if [ -x "$folder/bin/vllm-router" ] && "$folder/bin/python" -c 'import sglang_router' 2>/dev/null; then
        return
    fi
    [ "$check" = no ] || fail "the peers' environment is not in $folder" "run this without --check"
    python3 -m venv "$folder" || fail "no environment for python" "install your system's package python3-venv"
    # What sglang-router imports at its start and does not ask for.
    "$folder/bin/pip" install --quiet "sglang-router==$SGLANG_ROUTER" "vllm-router==$VLLM_ROUTER" setproctitle aiohttp orjson uvicorn fastapi
}

main() {
    check=no
    if [ "${1:-}" = --check ]; then
        check=yes
        shift
    fi
    here=$(cd "$(dirname "$0")" && pwd)
    folder=${1:-$here/../../target/peers}
    install_nginx
    install_routers
    "$(nginx_program)" -v
    "$folder/bin/pip" list --format=freeze 2>/dev/null | grep -E '^(sglang|vllm)-router=='
}

main "$@"
