# Unisono on CPUs, for `docker build --tag unisono .`; see docs/howto/containers.md.
FROM python:3.11-slim AS build
RUN python -m venv /opt/unisono
ENV PATH=/opt/unisono/bin:$PATH
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir '/source[demo]'

FROM python:3.11-slim
COPY --from=build /opt/unisono /opt/unisono
ENV PATH=/opt/unisono/bin:$PATH
RUN useradd --create-home unisono && install --directory --owner unisono --group unisono /data
USER unisono
WORKDIR /data
CMD ["unisono", "--help"]
