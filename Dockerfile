# An image with paceline as its command, run by a user without privileges:
#   docker build -t paceline .
#   docker run --rm --shm-size=1g -v runs:/home/paceline/runs paceline train
#
# GPUs: torch's wheel brings CUDA's libraries, so the host needs a driver alone (docker run --gpus all).
# Build arguments:
#   BASE         an image with Python 3.11.1 or newer and pip; one with CUDA's compiler for DeepSpeed's operations on GPUs
#   TORCH_INDEX  the package index of torch's builds for CPUs, which are smaller; "" for the usual index
#   EXTRAS       of paceline, separated by commas
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
ARG TORCH_INDEX=""
ARG EXTRAS=figures
# The C++ compiler is for paceline's native sums, and for DeepSpeed's Adam. Debian keeps no versions to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir --constraint /tmp/constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && set -- /tmp/wheels/*.whl \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt "$1${EXTRAS:+[$EXTRAS]}" \
    && rm -rf /tmp/wheels /tmp/constraints.txt
RUN useradd --create-home --uid 10001 paceline \
    && install --directory --owner=paceline /home/paceline/runs
USER 10001
WORKDIR /home/paceline
ENTRYPOINT ["paceline"]
CMD ["doctor"]
