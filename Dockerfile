# Hocket built from this checkout: `docker build -t hocket . && docker run --rm hocket --help`.
# Kernels are compiled for the CPU that builds the image; -DHOCKET_NATIVE=OFF makes a portable one.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /hocket
COPY tools/setup.sh tools/setup.sh
RUN tools/setup.sh
COPY . .
RUN make build CMAKE_ARGS="-DHOCKET_NATIVE=OFF"
ENTRYPOINT ["/hocket/build/hocket"]
CMD ["--help"]
