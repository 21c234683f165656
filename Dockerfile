# Hocket built from this checkout: `docker build -t hocket . && docker run --rm hocket --help`.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /hocket
COPY tools/setup.sh tools/setup.sh
RUN tools/setup.sh
COPY . .
RUN make build
ENTRYPOINT ["/hocket/build/hocket"]
CMD ["--help"]
