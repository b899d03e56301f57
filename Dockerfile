# The image of every part of Runledger: the subcommand says which (migrate, api, worker).
#
# A worker starts MCP servers that the configuration names as commands. This image holds no Node.js and no Python: build
# one on top of it with what your servers need, or name servers by URL.

FROM golang:1.26.8-alpine3.23 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# Static, since no C library is needed. The build context holds no .git, hence no stamp of the commit.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w" -o /out/runledger ./cmd/runledger

FROM alpine:3.23.5
# Certificates for models and tools over TLS, time zones for the clock.
RUN apk add --no-cache ca-certificates tzdata \
    && adduser -D -H -u 10001 runledger
COPY --from=build /out/runledger /usr/local/bin/runledger
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
ENTRYPOINT ["runledger"]
CMD ["--help"]
