# oomscope and PyTorch's CUDA build, without NVIDIA's libraries: the virtual card stands in for them, so no GPU is needed.
#
#     docker build --tag oomscope .
#     docker run --rm --volume "$PWD:/work" oomscope explain snapshot.pickle
FROM python:3.12 AS build
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY oomscope /source/oomscope
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.lock /
RUN pip install --no-cache-dir --no-deps --requirement /requirements.lock
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/*.whl
WORKDIR /work
ENTRYPOINT ["oomscope"]
