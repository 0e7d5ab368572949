#!/usr/bin/env bash
# Makes the virtual environments that the comparison scripts use:
#   venv-torch    PyTorch 2.15.0        (override the place with TORCH_VENV)
#   venv-paddle   PaddlePaddle 2.6.2    (override the place with PADDLE_VENV)
#   venv-regatta  this tree's package   (override the place with REGATTA_VENV)
# Usage: setup.sh [torch|paddle|regatta]      all when no name is given
#
# PyPI's PyTorch wheel for Linux is linked against CUDA, whose packages add about 2 GB of
# downloads that no CPU run ever calls. By default the wheel is installed without them: the
# two small CUDA packages that libtorch_cpu itself links (cudart, cupti) are the real ones, the
# others are replaced by libraries of abort() functions, so that the dynamic linker is satisfied.
# The CPU code is exactly that of the wheel. Alternatives:
#   TORCH_CUDA_PACKAGES=1  install every dependency as published (about 2.6 GB of downloads)
#   TORCH_INDEX=URL        install from another index, for example PyTorch's CPU-only one
# Needs Python 3.11 or newer (PaddlePaddle 2.6.2: at most 3.12) and, for the default, cc and nm.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
torch_venv=${TORCH_VENV:-$here/venv-torch}
paddle_venv=${PADDLE_VENV:-$here/venv-paddle}
regatta_venv=${REGATTA_VENV:-$here/venv-regatta}
python=${PYTHON:-python3}

TORCH=2.15.0
PADDLE=2.6.2
TORCH_DEPS=(numpy==1.26.4 'setuptools>=77.0.3,<81' filelock typing-extensions sympy networkx jinja2 fsspec)
TORCH_CUDA=('nvidia-cuda-runtime==13.2.86.*' 'nvidia-cuda-cupti==13.2.86.*')
PADDLE_DEPS=(numpy==1.26.4 protobuf==4.25.8 setuptools==65.5.0)

pip() { # pip VENV ARGS...
    local venv=$1
    shift
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"
}

fail() {
    echo "setup.sh: $*" >&2
    exit 1
}

# Writes one library whose functions all abort, for every CUDA library that the wheel asks for
# and that is not installed.
write_stand_ins() {
    local lib=$1/torch/lib out=$1/nvidia/cu13/lib tmp soname node prefix
    tmp=$(mktemp -d)
    mkdir -p "$out"
    for f in libtorch_cpu.so libtorch_cuda.so libtorch_nvshmem.so libc10_cuda.so libtorch_python.so; do
        nm -D --undefined-only "$lib/$f"
    done | awk '{ print $NF }' | sort -u >"$tmp/symbols"
    # soname, symbol version (or -), prefix of its symbols when they carry no version
    while read -r soname node prefix; do
        [ -e "$out/$soname" ] && continue
        if [ "$node" = - ]; then
            grep -E "^${prefix}[A-Za-z0-9_]*\$" "$tmp/symbols" || true
            echo '{ global: *; };' >"$tmp/map"
        else
            sed -n "s/@\{1,2\}${node//./\\.}\$//p" "$tmp/symbols"
            echo "$node { global: *; };" >"$tmp/map"
        fi >"$tmp/names"
        {
            echo '#include <stdlib.h>'
            awk '$1 == "nvshmem_selected_device_transport" { print "long " $1 "[8];"; next }
                 { print "void " $1 "(void) { abort(); }" }' "$tmp/names"
        } >"$tmp/lib.c"
        cc -shared -fPIC -w -fno-builtin -Wl,-soname,"$soname" -Wl,--version-script="$tmp/map" \
            -o "$out/$soname" "$tmp/lib.c"
    done <<'LIBS'
libcublas.so.13 libcublas.so.13
libcublasLt.so.13 libcublasLt.so.13
libcudnn.so.9 libcudnn.so.9
libcufft.so.12 libcufft.so.12
libcusparse.so.12 libcusparse.so.12
libnvrtc.so.13 libnvrtc.so.13
libnvshmem_host.so.3 NVSHMEM
libcufile.so.0 - cuFile
libcusparseLt.so.0 - cusparseLt
libnccl.so.2 - nccl
LIBS
    rm -rf "$tmp"
}

setup_torch() {
    local venv=$torch_venv stamp="torch $TORCH ${TORCH_CUDA_PACKAGES:-0} ${TORCH_INDEX:-pypi}"
    if [ "$(cat "$venv/.regatta" 2>/dev/null)" = "$stamp" ]; then
        echo "PyTorch $TORCH is in $venv"
        return
    fi
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip "$venv" "${TORCH_DEPS[@]}"
        pip "$venv" --index-url "$TORCH_INDEX" --no-deps "torch==$TORCH"
    elif [ "${TORCH_CUDA_PACKAGES:-0}" = 1 ]; then
        pip "$venv" "${TORCH_DEPS[@]}" "torch==$TORCH"
    else
        command -v cc >/dev/null && command -v nm >/dev/null ||
            fail "cc and nm are needed; without them set TORCH_CUDA_PACKAGES=1"
        pip "$venv" "${TORCH_DEPS[@]}"
        pip "$venv" --no-deps "torch==$TORCH" "${TORCH_CUDA[@]}"
        write_stand_ins "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    fi
    "$venv/bin/python" -c "
import torch
x = torch.randn(8, 8, requires_grad=True)
(x @ x).relu().sum().backward()
print('PyTorch', torch.__version__, 'works')"
    echo "$stamp" >"$venv/.regatta"
}

setup_paddle() {
    local venv=$paddle_venv stamp="paddlepaddle $PADDLE"
    if [ "$(cat "$venv/.regatta" 2>/dev/null)" = "$stamp" ]; then
        echo "PaddlePaddle $PADDLE is in $venv"
        return
    fi
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    pip "$venv" "paddlepaddle==$PADDLE" "${PADDLE_DEPS[@]}"
    "$venv/bin/python" -c "
import paddle
paddle.enable_static()
print('PaddlePaddle', paddle.__version__, 'works')"
    echo "$stamp" >"$venv/.regatta"
}

# Always anew: the sources may have changed.
setup_regatta() {
    local venv=$regatta_venv wheels
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    pip "$venv" numpy==2.4.6 'maturin>=1.9,<2'
    wheels=$(mktemp -d)
    (cd "$here/../../python" && "$venv/bin/maturin" build --quiet --release --locked --out "$wheels")
    pip "$venv" --no-deps --force-reinstall "$wheels"/*.whl
    ls -l "$wheels" | awk 'NR > 1 { printf "wheel %s: %.2f MB\n", $NF, $5 / 1e6 }'
    rm -rf "$wheels"
    "$venv/bin/python" -c "import regatta; print('Regatta', regatta.__version__, 'works')"
}

case ${1:-all} in
all)
    setup_torch
    setup_paddle
    setup_regatta
    ;;
torch) setup_torch ;;
paddle) setup_paddle ;;
regatta) setup_regatta ;;
*) fail "unknown argument $1 (expected torch, paddle or regatta)" ;;
esac
