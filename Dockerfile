# Hocket built from this checkout: `docker build -t hocket . && docker run --rm hocket --help`. A server (docs/serving.md):
# `docker run --rm -p 127.0.0.1:8000:8000 -v /srv/models:/models:ro hocket serve /models/NAME --host 0.0.0.0`.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /hocket
COPY tools/setup.sh tools/setup.sh
RUN tools/setup.sh
COPY . .
RUN make build
EXPOSE 8000
ENTRYPOINT ["/hocket/build/hocket"]
CMD ["--help"]
