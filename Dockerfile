# An image with the program, its CUDA kernels and its Python package:
#   docker build -t troupe . && docker run --rm --gpus all troupe troupe doctor
FROM debian:12 AS build
WORKDIR /src
COPY . .
RUN ./dev setup --cuda && ./dev wheel

FROM debian:12
COPY --from=build /src/dist /dist
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv ca-certificates libcurl4 \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/troupe \
 && /opt/troupe/bin/pip install --no-cache-dir /dist/*.whl \
 && rm -r /dist
ENV PATH=/opt/troupe/bin:$PATH
