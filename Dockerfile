# The `foreread` command in an image: a static binary and root certificates, nothing else.
#
#   docker build -t foreread .
#       compiles the command in Debian's image with Rust. From the source archive with its dependencies
#       (`packaging/dist`) the build needs no network beyond that image.
#   docker build -t foreread --target prebuilt DIRECTORY
#       takes DIRECTORY/foreread, a static binary, and DIRECTORY/ca-certificates.crt. No base image is needed.

ARG BASE=docker.io/library/rust:1.95-bookworm
FROM ${BASE} AS build
COPY . /src
WORKDIR /src
# With a target, build scripts and macros are not static.
RUN target="$(rustc -vV | sed -n 's/^host: //p')" \
    && RUSTFLAGS="-C target-feature=+crt-static" \
       cargo build --release --locked --package foreread-cli --bin foreread --target "$target" \
    && mkdir /made && cp "target/$target/release/foreread" /etc/ssl/certs/ca-certificates.crt /made/

FROM scratch AS prebuilt
COPY foreread /usr/bin/foreread
COPY ca-certificates.crt /etc/ssl/certs/
ENV PATH=/usr/bin
# For `demo`, and for what is made without a name.
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/foreread"]

FROM scratch
COPY --from=build /made/foreread /usr/bin/foreread
COPY --from=build /made/ca-certificates.crt /etc/ssl/certs/
ENV PATH=/usr/bin
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/foreread"]
