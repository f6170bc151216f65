#!/usr/bin/env bash
# Installs the build of torch that fits the machine, by its exact version: without CUDA where there is no NVIDIA card (a
# CUDA build is several gigabytes), the default build elsewhere. Needs PYTHON, TORCH_VERSION and TORCH_CPU_INDEX.
set -euo pipefail
# pip turns Ctrl-C into an ordinary failure; without this the next build would be tried.
trap 'exit 130' INT TERM

chosen=()
install() {
    chosen=("$@")
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"
}
does_import() { "$PYTHON" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH_VERSION')" 2>/dev/null; }

if does_import; then
    exit 0
fi
if nvidia-smi >/dev/null 2>&1; then
    echo "an NVIDIA card was found: installing the default build of torch $TORCH_VERSION"
    install "torch==$TORCH_VERSION"
elif [ "$(uname -s)-$(uname -m)" != "Linux-x86_64" ]; then
    echo "installing torch $TORCH_VERSION"
    install "torch==$TORCH_VERSION"
else
    echo "no NVIDIA card was found: installing torch $TORCH_VERSION without CUDA"
    # An index that cannot be reached is given up soon; by itself pip would ask it five more times.
    install "torch==$TORCH_VERSION+cpu" 2>/dev/null ||
        install "torch==$TORCH_VERSION+cpu" --extra-index-url "$TORCH_CPU_INDEX" --retries 1 --timeout 20 2>/dev/null || {
        echo "no build without CUDA can be reached: installing the default one, which is large"
        install "torch==$TORCH_VERSION"
    }
fi
# To pip, what an interrupted install left behind counts as installed.
does_import || install --force-reinstall --no-deps "${chosen[@]}"
