# An image that serves a checkpoint: docker build -f serve/pserve.Dockerfile -t shardline-serve .
# docker run -p 8000:8000 -v /models/mine:/model --shm-size 8g shardline-serve --tp 4 --api-key-file /run/secrets/keys
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends make
COPY . /src
RUN cd /src && tools/setup --deb && make deb

FROM debian:12
COPY --from=build /src/build/shardline_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/shardline_*.deb ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* /tmp/shardline_*.deb && useradd --create-home serve
USER serve
WORKDIR /home/serve
EXPOSE 8000
HEALTHCHECK --start-period=300s CMD ["curl", "-sSf", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["pserve", "/model", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--allow-host", "*"]
