#!/usr/bin/env bash
# Installs the build of torch that fits the machine, by its exact version: without CUDA where there is no NVIDIA card (a
# CUDA build is several gigabytes), the default build elsewhere. Needs PYTHON, TORCH_VERSION and TORCH_CPU_INDEX.
set -euo pipefail

pip() { "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }

if "$PYTHON" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH_VERSION')" 2>/dev/null; then
    exit 0
fi
if nvidia-smi >/dev/null 2>&1; then
    echo "an NVIDIA card was found: installing the default build of torch $TORCH_VERSION"
    pip "torch==$TORCH_VERSION"
elif [ "$(uname -s)-$(uname -m)" != "Linux-x86_64" ]; then
    echo "installing torch $TORCH_VERSION"
    pip "torch==$TORCH_VERSION"
else
    echo "no NVIDIA card was found: installing torch $TORCH_VERSION without CUDA"
    pip "torch==$TORCH_VERSION+cpu" 2>/dev/null ||
        pip "torch==$TORCH_VERSION+cpu" --extra-index-url "$TORCH_CPU_INDEX" 2>/dev/null || {
        echo "no build without CUDA can be reached: installing the default one, which is large"
        pip "torch==$TORCH_VERSION"
    }
fi
