"""A real nginx for the tests, its certificate, and a browser that reaches it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from web_servers import free_port

NAME = "git.example.com"


class Led(httpx.HTTPTransport):
    """A transport that sends every request to one port of this machine, as a name server and a router do."""

    def __init__(self, port: int, source: str, trust: ssl.SSLContext) -> None:
        super().__init__(verify=trust, local_address=source)
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the port, with the server name of its URL."""
        url = request.url.copy_with(host="127.0.0.1", port=self._port)
        more = {**request.extensions, "sni_hostname": request.url.host}
        return super().handle_request(
            httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=more)
        )


def browser(folder: Path, port: int, source: str, address: str = f"https://{NAME}") -> httpx.Client:
    """Create a client that requests an address as a browser does, and reaches the proxy."""
    led = Led(port, source, ssl.create_default_context(cafile=str(folder / "cert.pem")))
    return httpx.Client(base_url=address, transport=led, headers={"origin": address}, timeout=60)


def certify(folder: Path) -> None:
    """Write a certificate for the name in the samples to cert.pem, and its key to key.pem."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(secret)


@contextmanager
def nginx(folder: Path, server: str, changes: dict[str, str]) -> Iterator[int]:
    """Run nginx with `server` blocks in which some texts are changed, and yield its port for HTTPS.

    All its files are in the folder, which gets a certificate.
    """
    if (program := shutil.which("nginx")) is None:
        pytest.skip("nginx is not installed: apt-get install nginx")
    certify(folder)
    port = free_port()
    for old, new in {**changes, "listen 443 ssl": f"listen 127.0.0.1:{port} ssl"}.items():
        assert old in server
        server = server.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; events {{}} http {{ access_log off; {places} {server} }}"
    )
    command = [program, "-e", "stderr", "-p", str(folder), "-c", str(config)]
    with subprocess.Popen(command, cwd=folder, env={"HOME": str(folder)}, stderr=subprocess.PIPE) as process:  # noqa: S603
        try:
            for _ in range(600):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, process.stderr.read().decode()
                time.sleep(0.1)
            yield port
        finally:
            process.kill()
