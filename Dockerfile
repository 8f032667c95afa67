# The images, for those who have a container builder; `cargo xtask image` makes the same without one.
#
#   docker build --target sidecar --build-arg SLUICE_COMMIT=$(git rev-parse --short=12 HEAD) -t sluice.dev/sidecar:0.1.0 .
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
# What `--version` tells; the context has no repository to ask.
ARG SLUICE_COMMIT
RUN cargo build --release --workspace --bins --locked \
    && for binary in sluice-sidecar sluice-engine sluice-operator sluice-devices; do \
           strip --strip-debug "target/release/$binary"; \
       done

# glibc, libgcc, roots of trust, and nothing to log into.
FROM gcr.io/distroless/cc-debian12 AS runtime
USER 65532:65532
WORKDIR /

# Whoever may not read a program cannot look into it while it runs: it has keys, and an engine beside it.
FROM runtime AS sidecar
COPY --chmod=711 --from=build /source/target/release/sluice-sidecar /usr/bin/
ENTRYPOINT ["/usr/bin/sluice-sidecar"]

FROM runtime AS engine
COPY --from=build /source/target/release/sluice-engine /usr/bin/
ENTRYPOINT ["/usr/bin/sluice-engine"]

FROM runtime AS operator
COPY --from=build /source/target/release/sluice-operator /usr/bin/
ENTRYPOINT ["/usr/bin/sluice-operator"]

FROM runtime AS devices
COPY --from=build /source/target/release/sluice-devices /usr/bin/
ENTRYPOINT ["/usr/bin/sluice-devices"]
